"""Measures one model after the other: `measuring.py`, as a process of its own, reads a line of JSON with a model's name and file for each,
and writes a line with what it found (`Found`). A model that ends the process ends nobody else."""

import ctypes
import dataclasses
import json
import logging
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

if __name__ == "__main__":  # support is a package of tests
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np
from support.contexts import n_hooked
from support.decoding import kld
from support.prefix_server import EXACT, ask, n_read, serve

from edgekv.common.errors import EdgeKVError, ModelError
from edgekv.config import KvOptions
from edgekv.models import geometry
from edgekv.models.geometry import Geometry
from edgekv.models.reader import open_gguf
from edgekv.planning import fit
from edgekv.prefix_cache.settings import StoreSettings
from edgekv.runtime import attachments
from edgekv.runtime.runtime import Runtime

import llama_cpp

N_CTX, N_UBATCH = 512, 256
N_PROMPT = 320  # two ubatches, each read as a prompt
STEPS = (1, 1, 1, 3, 1, 1)
N_OTHER = N_PROMPT - 40
"""So many tokens of the prompt are others in the control."""

N_ALMOST_ALL = N_PROMPT - 2
"""The same where some layers are attended whole: windows see the last tokens alone."""

EXACT_TOKENS = 64
ALL_CERTAIN = 1e9
"""A resolution at which every token is read for certain."""
SAMPLES = 100.0
"""A resolution at which most tokens are read by chance."""


@dataclass
class Found:
    """What EdgeKV does with a model. KLDs are the largest over the tokens, in nats, from stock with flash attention on one thread: two processes measure."""

    architecture: str
    refused: str | None = None
    """Why EdgeKV does not open it; nothing else was measured then."""
    crashed: str | None = None
    """How the process ended."""
    layers: list[tuple[str, str]] = field(default_factory=list)
    """(what it keeps of a sequence, why EdgeKV attends it or not) of each layer, as `doctor` says it."""
    hooked: list[bool] = field(default_factory=list)
    whole_layers: list[bool] = field(default_factory=list)  # attended by EdgeKV, whole in every mode
    by_header: list[bool] = field(default_factory=list)
    """The layers that EdgeKV would attend by the file's header alone: `plan` and `models show` go by these."""
    whole_by_header: list[bool] = field(default_factory=list)
    spread: float = 0.0
    """Stock from itself: on two threads, without flash attention, the last token of the prompt by itself."""
    exact: float = 0.0
    same_bits: bool = False
    """Mode exact gives stock's logits bit for bit."""
    certain: float = 0.0
    """Mode sparse where it reads every token for certain, from mode exact."""
    whole: bool = True
    """Mode sparse below `exact_tokens` gives the logits of mode exact bit for bit."""
    control: float = 0.0
    """Stock with another text in most of the prompt: what a fault of attention would look like."""
    sampled: float = 0.0
    """Mode sparse where it reads most tokens by chance, from mode exact: the mean over the tokens."""
    control_mean: float = 0.0
    """The mean, where only the first N_OTHER tokens are others."""
    finite: bool = True
    share_read: float = 1.0
    """The share of the tokens that a sample reads."""
    listed: int = 0
    """Cells that an index lists for each token, of which it reads those that it sees; 0: there is no index, or it does not say so."""
    unlisted: float = 0.0
    """Stock with an index that lists every cell: what it would look like if the lists were not read."""
    mass: list[float] = field(default_factory=list)
    """Attention mass that our nodes saw in each served layer, for each token and query head, in the ubatch in which they saw least: 1 where
    they attended every ubatch; less where attention sinks take a part."""
    n_ubatches: int = 0
    """Those that our nodes should attend: the prompt's two, and those of decode steps; stock nodes read prompts of compressed rows, and of
    what an index lists."""
    n_ubatches_hooked: int = 0
    n_prompt: int = 0
    n_back: int = 0
    """Tokens of a prompt that a new server has from the folder of the one before."""
    back: float = 0.0
    """KLD of what it answers then from what was answered cold."""
    warnings: list[str] = field(default_factory=list)
    seconds: float = 0.0


def measure(architecture: str, path: Path) -> Found:
    began, found = time.perf_counter(), Found(architecture)
    try:
        shape = geometry(path)
    except ModelError as error:
        found.refused = str(error).replace(str(path), "the file")
        return found
    with _model(path) as model:
        stock = _attention(found, model, shape)
        _store(found, path)
        if any(found.hooked + found.whole_layers) or found.n_back:
            _spread(found, model, stock)
        if any(found.hooked) and shape.index_rows:
            found.listed = shape.index_rows
            with _model(path, f"{architecture}.attention.indexer.top_k") as without:
                found.unlisted = _apart(stock, _logits(without, _tokens(), KvOptions(mode="off")))
    found.seconds = time.perf_counter() - began
    return found


# ---- attention ------------------------------------------------------------------------------------------------------------------


def _attention(found: Found, model: object, shape: Geometry) -> np.ndarray:
    """Returns stock's logits."""
    tokens = _tokens()
    stock = _logits(model, tokens, KvOptions(mode="off"))
    with _context(model, KvOptions(mode="exact", policy="none")) as (ctx, run):
        exact = _decode(model, ctx, tokens)
        found.layers = _layers(shape, model, [layer.reason for layer in run.layers])
        found.hooked, found.by_header = [layer.hooked for layer in run.layers], [layer.served for layer in fit.layers(shape)]
        found.whole_layers, found.whole_by_header = [layer.whole for layer in run.layers], [layer.whole for layer in fit.layers(shape)]
        found.n_ubatches, found.n_ubatches_hooked = len(STEPS) + (0 if shape.mla or shape.index_rows else 2), n_hooked(run)
    found.exact, found.same_bits = _apart(stock, exact), bool((stock == exact).all())
    sparse = KvOptions(mode="sparse", policy="none")
    with _context(model, sparse) as (ctx, run):
        mass = _watch_mass(run)
        found.whole = bool((_decode(model, ctx, tokens) == exact).all())
        found.mass = [float(min(one)) for one in zip(*mass[-found.n_ubatches :])]
    found.finite = bool(np.isfinite(stock).all() and np.isfinite(exact).all())
    if not any(found.hooked):
        return stock
    certain = _logits(model, tokens, sparse.with_(exact_tokens=EXACT_TOKENS, sample_budget=ALL_CERTAIN))
    found.certain = _apart(exact, certain)
    with _context(model, sparse.with_(exact_tokens=EXACT_TOKENS, sample_budget=SAMPLES)) as (ctx, run):
        sampled = _decode(model, ctx, tokens)
        read = run.selection()
    found.sampled = float(kld(exact, sampled).mean())
    found.share_read = read.n_read / read.n_visible if read.n_visible else 1.0
    found.finite = found.finite and bool(np.isfinite(certain).all() and np.isfinite(sampled).all())
    return stock


def _spread(found: Found, model: object, stock: np.ndarray) -> None:
    """How far stock is from itself, and from another text."""
    tokens = _tokens()

    def another(n: int) -> np.ndarray:
        other = _tokens()
        other[:n] = np.random.default_rng(3).integers(0, 128, n)
        return kld(stock, _logits(model, other, KvOptions(mode="off")))

    distant = another(N_OTHER)
    control = another(N_ALMOST_ALL) if any(found.whole_layers) else distant
    found.control, found.control_mean = float(control.max()), float(distant.mean())
    found.spread = max(_apart(stock, _logits(model, tokens, KvOptions(mode="off"), **different)) for different in (
        {"n_threads": 2, "n_threads_batch": 2}, {"flash_attn_type": llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED}, {"n_ubatch": N_PROMPT - 1}))


def _tokens() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 128, N_PROMPT + sum(STEPS))


WINDOW = "attended by EdgeKV: a sliding window"
KEEPS = {"recurrent": "a state", "sliding window": "rows of a window", WINDOW: "rows of a window", "no attention": "nothing", "reads the cache": "nothing",
         "no KV cache": "something of its own kind"}
"""What a layer keeps of a sequence, by the beginning of what `doctor` says of it; rows, where none fits."""


def _layers(shape: Geometry, model: object, reasons: list[str]) -> list[tuple[str, str]]:
    """(what it keeps of a sequence, why EdgeKV attends it or not) of each layer."""
    rows = "compressed rows" if shape.mla else "rows"
    if open_gguf(shape.path).value(f"{shape.architecture}.attention.indexer.key_length"):
        rows += " and an index"
    alike = not any(reason.startswith(("recurrent", "sliding window", WINDOW)) for reason in reasons)
    if llama_cpp.llama_model_is_hybrid(model) and alike:
        rows += " and a state"  # each layer has both
    found = []
    for reason in reasons:
        own = next((what for beginning, what in KEEPS.items() if reason.startswith(beginning)), rows)
        found.append((own, reason))
    return found


@contextmanager
def _model(path: Path, key: str | None = None) -> Iterator[object]:
    """key: an integer of the file's header that shall be as large as a context."""
    settings = llama_cpp.llama_model_default_params()
    if key is not None:
        given = (llama_cpp.llama_model_kv_override * 2)()
        given[0].tag, given[0].key, given[0].value.val_i64 = llama_cpp.LLAMA_KV_OVERRIDE_TYPE_INT, key.encode(), N_CTX
        settings.kv_overrides = given
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), settings)
    try:
        yield model
    finally:
        llama_cpp.llama_model_free(model)


@contextmanager
def _context(model: object, options: KvOptions, **params: int) -> Iterator[tuple[object, Runtime]]:
    settings = llama_cpp.llama_context_default_params()
    settings.n_ctx, settings.n_batch, settings.n_ubatch, settings.n_seq_max = N_CTX, N_PROMPT, N_UBATCH, 1
    settings.n_threads = settings.n_threads_batch = 1
    settings.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
    for name, value in params.items():
        setattr(settings, name, value)
    with attachments.defaults(options):
        ctx = llama_cpp.llama_init_from_model(model, settings)
    if not ctx:
        raise EdgeKVError("llama.cpp makes no context of it")
    try:
        yield ctx, attachments.find(ctypes.cast(ctx, ctypes.c_void_p).value)
    finally:
        llama_cpp.llama_free(ctx)


def _logits(model: object, tokens: np.ndarray, options: KvOptions, **params: int) -> np.ndarray:
    with _context(model, options, **params) as (ctx, _):
        return _decode(model, ctx, tokens)


def _decode(model: object, ctx: object, tokens: np.ndarray) -> np.ndarray:
    """Logits of the prompt's last token and of every token behind it, float32 [token, n_vocab]."""
    n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    edges = np.cumsum([0, N_PROMPT, *STEPS])
    found = []
    for first, end in pairwise(edges):
        batch = llama_cpp.llama_batch_init(int(end - first), 0, 1)
        try:
            batch.n_tokens = int(end - first)
            wanted = [i for i in range(batch.n_tokens) if first > 0 or i == batch.n_tokens - 1]
            for i in range(batch.n_tokens):
                batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = int(tokens[first + i]), int(first + i), 1, int(i in wanted)
                batch.seq_id[i][0] = 0
            if (status := llama_cpp.llama_decode(ctx, batch)) != 0:
                raise EdgeKVError(f"llama_decode failed with status {status}")
            found += [np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(ctx, i), (n_vocab,)).copy() for i in wanted]
        finally:
            llama_cpp.llama_batch_free(batch)
    return np.stack(found)


def _apart(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(kld(one, other)).max())


def _watch_mass(run: Runtime) -> list[np.ndarray]:
    """A list that gets, for each ubatch, the attention mass of a token and query head in each served layer: float64 [layer]."""
    heads = np.array([layer.n_head for layer in run.layers if layer.hooked])
    seen: list[np.ndarray] = []
    run.observers.append(lambda ubatch: seen.append(
        ubatch.mass_sum.sum(axis=(1, 2), dtype=np.float64) / heads / ubatch.n_observed if ubatch.n_observed else np.zeros(len(heads))))
    return seen


# ---- the store ------------------------------------------------------------------------------------------------------------------


def _store(found: Found, path: Path) -> None:
    """A prompt is read cold, then again by a new server with the same folder."""
    prompt = np.random.default_rng(2).integers(0, 128, N_PROMPT).tolist()
    with tempfile.TemporaryDirectory() as folder, _warnings(found):
        answers = []
        for _ in range(2):
            with serve(path, EXACT, StoreSettings(folder=Path(folder)), n_ctx=2 * N_CTX) as server:
                answers.append(ask(server, prompt, 4, n_probs=128))
                server.settle()
                if server.prefixes is not None:
                    server.prefixes.flush()
        cold, back = answers
    found.n_prompt, found.n_back = len(prompt), len(prompt) - n_read(back)
    found.back = max(_apart(*(_log_chances(answer, i) for answer in answers)) for i in range(_n_alike(cold["tokens"], back["tokens"])))


def _n_alike(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens whose chances depend on the same tokens: up to the first that differs."""
    return next((i + 1 for i, (a, b) in enumerate(zip(one, other)) if a != b), len(one))


def _log_chances(answer: dict, i: int) -> np.ndarray:
    """float [n]: logarithms of the chances of the vocabulary, or of its first 128 tokens by number."""
    of = {one["id"]: one["logprob"] for one in answer["completion_probabilities"][i]["top_logprobs"]}
    return np.array([of.get(token, -50.0) for token in range(128)])


@contextmanager
def _warnings(found: Found) -> Iterator[None]:
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: found.warnings.append(record.getMessage())
    logger = logging.getLogger("edgekv")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def main() -> None:
    llama_cpp.llama_backend_init()
    for line in sys.stdin:
        architecture, path = json.loads(line)
        print(json.dumps(dataclasses.asdict(measure(architecture, Path(path)))), flush=True)


if __name__ == "__main__":
    main()
