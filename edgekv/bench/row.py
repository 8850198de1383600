"""The row of every speed measurement: llama-bench's fields first, under its names, then ours."""

import datetime
from typing import Any

from edgekv.bench.environment import llama_cpp_commit
from edgekv.bench.fields import FIGURES
from edgekv.bench.request import BenchTest
from edgekv.measure.decoder import Decoder  # first: it puts llama_cpp on our libraries
from edgekv.models import Geometry

import llama_cpp

Row = dict[str, Any]

LLAMA_BENCH = (
    "build_commit", "build_number", "cpu_info", "gpu_info", "backends", "model_filename", "model_type", "model_size", "model_n_params",
    "n_batch", "n_ubatch", "n_threads", "cpu_mask", "cpu_strict", "poll", "type_k", "type_v", "n_gpu_layers", "n_cpu_moe", "split_mode",
    "main_gpu", "no_kv_offload", "flash_attn", "devices", "tensor_split", "tensor_buft_overrides", "load_mode", "lazy_mode", "embeddings",
    "no_op_offload", "no_host", "repack", "fit_target", "fit_min_ctx", "n_prompt", "n_gen", "n_depth", "test_time", "avg_ns", "stddev_ns",
    "avg_ts", "stddev_ts", "samples_ns", "samples_ts",
)
"""The fields that the pinned llama.cpp writes."""

_PLACE = ("kind", "test", "text", "kv_mode", "n_ctx", "kv_dir", "fill", "peer", "note", "environment")

OURS = (*_PLACE, *(figure.key for figure in FIGURES))

_AS_LLAMA_BENCH = {
    "cpu_mask": "0x0", "cpu_strict": False, "poll": 0, "n_cpu_moe": 0, "split_mode": "layer", "main_gpu": 0, "no_kv_offload": False,
    "devices": "auto", "tensor_split": "0.00", "tensor_buft_overrides": "none", "load_mode": "auto", "lazy_mode": "auto",
    "embeddings": False, "no_op_offload": 0, "no_host": False, "repack": True, "fit_target": 0, "fit_min_ctx": 0,
}
"""llama-bench's defaults, which are also ours, but for `poll`: threads sleep between two graphs."""


def empty_row() -> Row:
    return dict.fromkeys((*LLAMA_BENCH, *OURS)) | {"kind": "bench", "best_stock": False}


def model_fields(model: Geometry, decoder: Decoder | None) -> Row:
    """The fields about the model. decoder: one of its contexts, or None."""
    fields: Row = {"model_filename": str(model.path), "model_size": model.tensor_bytes, "model_n_params": model.n_params}
    if decoder is not None:
        said = llama_cpp.ctypes.create_string_buffer(128)
        llama_cpp.llama_model_desc(decoder.llama.model, said, len(said))
        fields |= {"model_type": said.value.decode("utf-8", "replace"), "n_gpu_layers": decoder.llama.model_params.n_gpu_layers}
    return fields


def machine_fields(where: dict[str, Any]) -> Row:
    """The fields about the machine. where: its environment."""
    return {**_AS_LLAMA_BENCH, "build_commit": llama_cpp_commit(), "build_number": 0, "cpu_info": where["cpu"],
            "gpu_info": where["gpu"] or "", "backends": "CUDA" if where["gpu"] else "CPU", "environment": where}


def test_fields(test: BenchTest, type_k: str, type_v: str, text: str, fill: str) -> Row:
    now = datetime.datetime.now(datetime.timezone.utc)
    return {"test": test.name, "n_prompt": test.n_prompt, "n_gen": test.n_gen, "n_depth": test.depth, "type_k": type_k,
            "type_v": type_v, "text": text, "fill": fill if test.depth else None, "test_time": now.strftime("%Y-%m-%dT%H:%M:%SZ")}


def from_peer(answer: Row, name: str, common: Row) -> Row:
    """The row of another llama-bench: its own fields, and the machine that ran it."""
    ours = {key: common.get(key) for key in OURS}
    return {**empty_row(), **ours, **answer, "kind": "bench", "kv_mode": "peer", "peer": name, "best_stock": False,
            "fill": "random" if answer["n_depth"] else None}
