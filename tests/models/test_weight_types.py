"""Whatever type of weights llama.cpp reads, EdgeKV describes, plans, measures and runs."""

import gguf
import numpy as np
import pytest
from msgspec import structs
from support.headers import with_keys

from edgekv._native.gguf_header import block_sizes
from edgekv.common.errors import EXIT_MODEL, ModelError
from edgekv.config import KvOptions
from edgekv.llama import Llama
from edgekv.measure import weights as measuring
from edgekv.measure.planned import PlanQuestion, plan_here
from edgekv.models import geometry
from edgekv.models.model_shape import ModelShape
from edgekv.models.model_writer import write_empty
from edgekv.planning.host import MatrixShape, StepRates

SHAPE = ModelShape("types", "llama", 2, 256, 256, 4, 2, 64, 512, 4096, 10_000.0)
NO_WEIGHTS = {"Q8_1", "Q8_K", "I8", "I16", "I32", "I64", "F64"}
"""Of steps in a computation, or of other tensors than matrices."""


@pytest.mark.parametrize("kind", sorted(block_sizes().keys() - NO_WEIGHTS))
def test_a_model_of_each_type(tmp_path, kind):
    path = write_empty(SHAPE, tmp_path / "model.gguf", kind)
    assert geometry(path).file_type == kind
    plan = plan_here(path, PlanQuestion(KvOptions(attention_device="cpu"), 512))
    assert plan.problem is None and plan.parts[0].bytes == geometry(path).tensor_bytes
    llama = Llama(str(path), n_ctx=256, n_threads=1, logits_all=True)
    llama.eval([1, 2, 3])
    assert np.isfinite(llama.scores[:3]).all()
    llama.close()


def test_rates_of_a_type_that_gguf_does_not_name(monkeypatch):
    monkeypatch.setattr(measuring, "_PROMPT_BYTES", 1 << 18)  # how long it takes is no question here
    rates = measuring.weight_rates("q2_0", MatrixShape(256, 256), StepRates(1e-6, 1e-6), 1)
    assert min(rates.decode_stock, rates.decode_exact, rates.prompt_stock, rates.prompt_exact) > 0


def test_tokens_of_an_empty_mixture_go_to_all_its_experts(tmp_path):
    """Tokens that all met the same experts would be measured as a model without a mixture is."""
    shape = measuring._weights_shape(2, "q2_k", MatrixShape(256, 256, n_expert=8, n_used=2))
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(write_empty(shape, tmp_path / "model.gguf", "q2_k")).tensors}
    assert not np.any(tensors["blk.0.ffn_up_exps.weight"].data) and tensors["blk.0.ffn_up_exps.weight"].tensor_type.name == "Q2_K"
    for il in range(2):
        logits = tensors["token_embd.weight"].data[260:380] * tensors[f"blk.{il}.ffn_norm.weight"].data @ tensors[f"blk.{il}.ffn_gate_inp.weight"].data.T
        chosen = np.argsort(logits, axis=1)[:, -shape.experts.n_used:]
        assert np.bincount(chosen.ravel()).min() > 0
    rates = measuring.weight_rates("q2_k", MatrixShape(256, 256, 16, 16, n_expert=8, n_used=2), StepRates(1e-6, 1e-6), 1)
    assert min(structs.astuple(rates)) > 0


def test_weights_that_llama_cpp_cannot_map_are_a_sentence(synthetic, tmp_path):
    with pytest.raises(ModelError, match="at multiples of 8 bytes, and llama.cpp maps them at multiples of 32: convert it again") as caught:
        geometry(with_keys(synthetic(), tmp_path / "model.gguf", {"general.alignment": 8}))
    assert caught.value.exit_code == EXIT_MODEL


def test_a_mix_of_which_the_file_has_nothing_is_not_its_name(synthetic, tmp_path):
    """llama.cpp's quantiser takes another type for rows that are no whole blocks, and keeps the name."""
    assert geometry(with_keys(synthetic(), tmp_path / "model.gguf", {"general.file_type": 10})).file_type == "F16"
