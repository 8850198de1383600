"""`Llama`: llama_cpp.Llama with KV options. Same methods, same results."""

from __future__ import annotations

import ctypes
import inspect
import logging
import os
import sys
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import edgekv
from edgekv import _native
from edgekv._native import core
from edgekv.cache_types import with_layer_types
from edgekv.common.enums import CacheType, DeviceKind, KvMode
from edgekv.common.errors import ConfigError, DoesNotFit, EdgeKVError, ModelError
from edgekv.config import AUTO_DEVICE, KvOptions, option_names
from edgekv.config.setting_table import OLD_KEYWORDS
from edgekv.llama_keywords import LlamaKeywords, as_in, check_names, check_numbers, in_python, signature_of
from edgekv.models import geometry
from edgekv.models.geometry import open_model
from edgekv.planning import device_mode, devices, fit
from edgekv.planning.allocations import ContextRequest, Slots
from edgekv.planning.available import available_bytes
from edgekv.planning.context import check_context
from edgekv.planning.device_fit import device_plan
from edgekv.planning.devices import Placement
from edgekv.planning.home import no_home
from edgekv.planning.kept_head_errors import KeptHeadErrors, key_of
from edgekv.prefix_cache.digests import digest_of_model
from edgekv.runtime import answers, attachments, measured_heads  # first: it puts llama_cpp on our libraries
from edgekv.runtime.runtime import Runtime
from edgekv.tiering import eviction

import llama_cpp

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

log = logging.getLogger("edgekv")

_upstream = logging.getLogger("edgekv.llama.cpp")
_upstream.addHandler(logging.NullHandler())  # otherwise Python prints warnings to standard error
_LEVELS = {1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR}  # of enum ggml_log_level


@llama_cpp.llama_log_callback
def _log(level: int, text: bytes, _: ctypes.c_void_p) -> None:
    """Log llama.cpp's messages, and print them to standard error where `verbose` asks for them. It replaces llama_cpp's own callback, which
    numbers the levels as an older ggml did and so prints unwanted warnings."""
    words = text.decode("utf-8", "replace")
    _upstream.log(_LEVELS.get(level, logging.DEBUG), "%s", words.rstrip())
    if logging.getLogger("llama-cpp-python").level <= logging.DEBUG:
        print(words, end="", file=sys.stderr, flush=True)


def listen() -> None:
    """Route llama.cpp's messages here. A server in this process takes them for itself: call this again after it."""
    llama_cpp.llama_log_set(_log, None)


listen()
for _part in (llama_cpp.llama, llama_cpp._internals):  # it hides the process's streams, for good where two threads load; `_log` prints nothing unasked
    _part.suppress_stdout_stderr = lambda disable: nullcontext()  # type: ignore[attr-defined]

ALL_LAYERS = -1
"""llama_cpp's n_gpu_layers for a whole model on the GPU."""


class Llama(llama_cpp.Llama):
    """A drop-in `llama_cpp.Llama` whose decode attention runs in EdgeKV.

    Args:
        model_path: a GGUF file.
        kv: KV mode, "exact", "sparse", "evict" or "off" (default: EDGEKV_KV, else
            `device_mode.chosen_mode`: sparse on most processors; on a GPU that `edgekv doctor --gpu` has proven what its plan
            promises, and "off" on others).
            In mode evict n_batch and n_ubatch are by default at most a quarter of the kept tokens.
        kv_options: every KV option at once, e.g. KvOptions(mode="sparse", sample_budget=2000). None: the EDGEKV_* variables,
            then the defaults.
        Each option of KvOptions can also be named, e.g. sample_budget=2000, page_size=32, kv_vram="2GiB"; it overrides kv_options.
        type_k, type_v: cache types, "f16", "q8_0", "q4_0" or an `enum ggml_type` number. kv_bytes chooses them by layer instead.
        kv_dir: a folder on a disk (KvOptions): K and V lie in a file there, whose space is taken at once, for contexts larger than memory. kv_budget is
            then memory for copies of the rows that are read most lately (None: three quarters of what is free, or none where all fit).
        flash_attn: on by default, unlike in llama_cpp: without it V is stored transposed and the layers run stock.
        n_gpu_layers: all by default on a GPU that is used (`PlacementOptions.attention_device`), unlike in llama_cpp.
        swa_full: off by default, unlike in llama_cpp: sliding layers keep only their window, as in llama.cpp's own programs. A prompt that
        goes back beyond the window is then read again from its start. With swa_full it is not, but such layers keep every token.
        n_batch, n_ubatch: on such a GPU its plan sets the defaults, up to 2,048 tokens (`device_fit.device_plan`).
        weights_from_disk: load a model whose weights are larger than the free memory, which is refused otherwise; with use_mmap every token
            then reads them from the disk again.
        verbose: off by default, unlike in llama_cpp: its log, some hundred lines, would drown what a program prints.
        report: completions, and the last chunks of streamed ones, have a field "edgekv" (`AnswerReport.fields`).
        Everything else is as in llama_cpp.Llama.

    `kv` is then the context's Runtime (mode, layers, cells, memory, observers); `kv.configure(options)` changes it while it runs.

    Raises ConfigError for a bad option; CudaUnavailable if a GPU was asked for and cannot be used; DoesNotFit, before anything is loaded,
    where model and context need more memory than is free (`edgekv plan` counts the same); ModelError if the file cannot be loaded;
    EdgeKVError if the context cannot be created.
    """

    def __init__(self, model_path: str, *, kv: KvMode | str | None = None, kv_options: KvOptions | None = None,
                 type_k: CacheType | str | int | None = None, type_v: CacheType | str | int | None = None, flash_attn: bool = True,
                 weights_from_disk: bool = False, report: bool = False, **options: Unpack[LlamaKeywords]):
        self._report, self._raised = report, list[BaseException]()
        try:
            check_names(options)
            check_numbers(options)
            self._open(model_path, kv, kv_options, type_k, type_v, flash_attn, weights_from_disk, dict(options))
        except EdgeKVError as error:
            if not edgekv.owns_process:  # whose options are those of the command line
                error.args = (in_python(str(error)), *error.args[1:])
            raise

    def _open(self, model_path: str, kv: KvMode | str | None, kv_options: KvOptions | None,
              type_k: CacheType | str | int | None, type_v: CacheType | str | int | None, flash_attn: bool, weights_from_disk: bool,
              options: dict[str, Any]) -> None:
        if not isinstance(kv_options, KvOptions | None):
            raise ConfigError(f"kv_options is {kv_options!r}; give KvOptions(...), or each option by its own name")
        if "mode" in options and kv is not None:
            raise ConfigError("kv and mode are one option; leave one of the two out")
        kv = options.pop("mode", kv)
        named = {"mode": kv, "type_k": _cache_name(type_k), "type_v": _cache_name(type_v)}
        named |= {name: options.pop(name) for name in (*option_names(), *OLD_KEYWORDS) if name in options}
        if kv_options is None:
            self._kv_options = KvOptions.from_env(**named)
        else:
            self._kv_options = kv_options.with_(**{name: value for name, value in named.items() if value is not None})
        given, self._weights_from_disk = [name for name, value in named.items() if value is not None], weights_from_disk
        if (adapter := options.get("lora_path")) and not os.path.isfile(adapter):
            raise ModelError(f"there is no adapter {adapter}; lora_path wants a GGUF file")
        if options.get("draft_model") is not None:
            options.setdefault("logits_all", True)  # llama_cpp asks for all logits then, but makes room for those of one batch
        if not options.get("vocab_only"):
            self._kv_options = with_layer_types(Path(model_path), self._kv_options, n_threads=options.get("n_threads"))
        cache = self._kv_options.cache
        kinds: dict[str, Any] = {name: given if isinstance(given, int) else chosen.ggml_type
                                 for name, given, chosen in (("type_k", type_k, cache.type_k), ("type_v", type_v, cache.type_v))}
        if self._kv_options.mode is KvMode.EVICT:
            if self._kv_options.eviction.evict_to.bytes:
                self._kv_options = fit.in_tokens(geometry(Path(model_path)), self._kv_options)
            n_batch = eviction.batch_tokens(fit.kept(options.get("n_ctx", 512) or 1 << 30, self._kv_options))
            options.setdefault("n_batch", n_batch)
            options.setdefault("n_ubatch", min(n_batch, options["n_batch"]))
        if cache.kv_dir is not None and not flash_attn:
            raise ConfigError("a KV home on disk needs flash_attn, without which V is stored transposed: each token would read all of it")
        options.setdefault("swa_full", False)
        options.setdefault("verbose", False)
        if options.get("n_gpu_layers") == 0 and self._kv_options.placement.attention_device == AUTO_DEVICE:
            self._kv_options = self._kv_options.with_(attention_device=DeviceKind.HOST.value)
        placement = devices.place(self._kv_options, Path(model_path))
        if named["mode"] is None and kv_options is None and not os.environ.get("EDGEKV_KV"):  # no mode is set
            self._kv_options = self._kv_options.with_(
                mode=device_mode.chosen_mode(placement, Path(model_path), self._kv_options, options.get("n_ctx", 512) or None))
        self._kv_options.check_effect(given, lambda name: "kv" if name == "mode" else name)
        if self._kv_options.mode is KvMode.EVICT and options.get("embedding"):
            raise ConfigError('an embedding is of all tokens, and mode evict drops some; use kv="exact", or leave embedding out')
        self._kv_options = placement.in_force(self._kv_options, given)
        if placement.warning:
            log.warning("%s", placement.warning)
        if placement.kind is DeviceKind.CUDA:
            options.setdefault("n_gpu_layers", ALL_LAYERS)
        if not _GPUS.intersection(options) and (gpu := _only_gpu(placement, options.get("n_gpu_layers", 0))) is not None:
            options |= {"split_mode": llama_cpp.LLAMA_SPLIT_MODE_NONE, "main_gpu": gpu}
        if placement.room is not None and (placement.kind is DeviceKind.EMULATED or options["n_gpu_layers"] == ALL_LAYERS):
            model = geometry(Path(model_path))
            n_ctx = options.get("n_ctx", 512) or model.n_ctx_train
            n_ubatch = device_plan(model, n_ctx, self._kv_options, placement.room, all_logits=True).n_ubatch
            options.setdefault("n_batch", n_ubatch)
            options.setdefault("n_ubatch", min(n_ubatch, options["n_batch"]))
        if not options.get("vocab_only"):
            shared = {name: options[name] for name in _OF_MACHINE if name in options}
            self._kv_options = with_head_errors(Path(model_path), self._kv_options, weights_from_disk=weights_from_disk, **shared)
            self._kv_options = _checked(Path(model_path), self._kv_options, options, placement.room is None, weights_from_disk)
        try:
            with core.raising(), attachments.defaults(self._kv_options):
                super().__init__(str(model_path), flash_attn=flash_attn, **kinds, **options)
        except EdgeKVError:
            raise
        except ValueError as error:
            if (home := self._kv_options.cache.kv_dir) is not None and (why := core.home_failure()):
                raise no_home(why, home) from error
            if "llama_context" in str(error):  # the other messages name the file
                raise EdgeKVError(f"llama.cpp could not create a context of {options.get('n_ctx', 512)} tokens for {model_path}; "
                                  "ask for a smaller one") from error
            raise ModelError(f"llama.cpp could not load {model_path}: {error}") from error
        try:
            if adapter and not self._lora_adapter:  # a null pointer, which llama_cpp takes for an adapter
                raise ModelError(f"llama.cpp could not load the adapter {adapter}; lora_path wants one in GGUF that fits the model")
            attachments.raise_failure()
        except EdgeKVError:
            self.close()
            raise

    def eval(self, tokens: Sequence[int]) -> None:
        """As in llama_cpp. Raises CudaUnavailable if the GPU failed, now or in an earlier call, and NativeError if the disk of a KV home
        did: this Llama is then of no use. Raises DoesNotFit if there is no memory for K and V of more tokens; the tokens before stay, and the
        rest can follow when there is memory. A signal that comes meanwhile ends it with what its handler raises, after the present ubatch."""
        try:
            with self._raising():
                super().eval(tokens)
        except BaseException as error:
            self._requires_eval = True  # the newest logits may be those of a token that does not count
            if not isinstance(error, RuntimeError):
                if self._is_recurrent or self._is_hybrid:
                    self.reset()  # states cannot go back to the tokens that count
                raise
            if (found := self._runtime()) is not None:
                found.raise_failure()
            if core.refused():
                raise DoesNotFit(f"there is no memory for K and V of more than these {self.n_tokens:,} tokens; end other programs or "
                                 "conversations, or read a shorter text") from error
            raise

    @as_in(llama_cpp.Llama.embed)
    def embed(self, *arguments: Any, **options: Any) -> Any:
        """As in llama_cpp, and raises as `eval` does where a signal comes."""
        with self._raising():
            return super().embed(*arguments, **options)

    def _raising(self) -> AbstractContextManager[None]:
        found = self._runtime()
        return nullcontext() if found is None else found.raising()

    @as_in(llama_cpp.Llama.generate)
    def generate(self, tokens: Sequence[int], *arguments: Any, **options: Any) -> Generator[int, Sequence[int] | None, None]:
        """As in llama_cpp. New tokens of the prompt are read as a prompt, however few they are: in mode sparse by the kernels of mode exact,
        unless prompts are sparse. A prompt that goes back beyond the window of sliding layers is read from its start."""
        prompt = list(tokens)
        asked = inspect.signature(super().generate).bind(prompt, *arguments, **options).arguments
        if self.n_tokens and asked.get("reset", True) and (why := self._out_of_reach(prompt)):
            log.info("the prompt goes back %s, and is read from its start", why)
            self.reset()
        answer = super().generate(prompt, *arguments, **options)
        found = self._runtime()
        yield from answer if found is None else answers.followed(answer, len(prompt), found)

    def _init_sampler(self, *arguments: Any, **options: Any) -> Any:
        if processors := options.get("logits_processor"):
            def guarded(tokens: Any, logits: Any) -> Any:
                try:
                    for one in processors:
                        logits = one(tokens, logits)
                except BaseException as error:  # the caller is native code: ctypes would print it, and go on
                    self._raised.append(error)
                return logits

            options["logits_processor"] = llama_cpp.LogitsProcessorList([guarded])
        return super()._init_sampler(*arguments, **options)

    @as_in(llama_cpp.Llama.sample)
    def sample(self, *arguments: Any, **options: Any) -> int:
        """As in llama_cpp. Raises what a logits processor raised."""
        token = super().sample(*arguments, **options)
        if self._raised:
            error, self._raised = self._raised[0], []
            raise error
        return token

    @as_in(llama_cpp.Llama.create_completion)
    def create_completion(self, *arguments: Any, **options: Any) -> Any:
        """As in llama_cpp."""
        result = super().create_completion(*arguments, **options)
        return answers.with_report(result, self.kv) if self._report else result

    @as_in(llama_cpp.Llama.create_chat_completion)
    def create_chat_completion(self, *arguments: Any, **options: Any) -> Any:
        """As in llama_cpp."""
        result = super().create_chat_completion(*arguments, **options)
        return answers.with_report(result, self.kv) if self._report else result

    def _out_of_reach(self, prompt: Sequence[int]) -> str | None:
        """Why the cache no longer holds what the prompt's first new token attends; None: it does."""
        found = self._runtime()
        drops = found is not None and found.mode is KvMode.EVICT and self.n_tokens > found.options.keep_tokens
        if not drops and not llama_cpp.llama_model_n_swa(self.model):
            return None
        n = next((i for i, (a, b) in enumerate(zip(self._input_ids, prompt)) if a != b), min(self.n_tokens, len(prompt)))
        if n == len(prompt) < self.n_tokens:
            n -= 1
        if drops and n < self.n_tokens:
            return "behind tokens that mode evict chose by those after it"
        return None if windows_reach(self.model, self.ctx, n) else "beyond the window of sliding layers (swa_full=True avoids that)"

    def __getstate__(self) -> dict[str, Any]:
        found, state = self._runtime(), super().__getstate__()
        kv = self._kv_options if found is None else found.options
        for name in ("type_k", "type_v"):
            if _cache_name(state[name]) is not None:  # not a type that runs stock
                del state[name]
        if state["n_gpu_layers"] == 0 and kv.placement.attention_device == AUTO_DEVICE:
            del state["n_gpu_layers"]  # nobody asked for none
        return {**state, "kv_options": kv, "weights_from_disk": self._weights_from_disk, "report": self._report}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        # __del__ calls this too, also where an option was refused before anything was opened
        if hasattr(self, "_stack"):
            super().close()

    def _runtime(self) -> Runtime | None:
        return attachments.find(ctypes.cast(self.ctx, ctypes.c_void_p).value or 0)

    @property
    def kv(self) -> Runtime:
        """The Runtime of this model's context. Raises EdgeKVError if there is none."""
        found = self._runtime()
        if found is None:
            raise EdgeKVError("this Llama has no attached context: it was closed, or loaded with vocab_only")
        return found


Llama.__init__.__signature__ = signature_of(Llama.__init__, llama_cpp.Llama.__init__)  # type: ignore[attr-defined]

_GPUS = {"split_mode", "main_gpu", "tensor_split"}
"""llama_cpp's options that divide a model among GPUs."""
_NO_GPU = -1
"""llama.cpp's main_gpu for none."""


def _only_gpu(placement: Placement, n_gpu_layers: int) -> int | None:
    """The one GPU that the model may use. Without layers there it is none: llama.cpp would not repack the weights for its kernels and ours, and
    send prompts to the GPU. None: whichever there are."""
    if placement.kind is DeviceKind.CUDA:
        return None if placement.others else placement.index
    return _NO_GPU if placement.kind is DeviceKind.HOST and n_gpu_layers == 0 else None


_OF_MACHINE = ("n_gpu_layers", "n_threads", "n_threads_batch")


def with_head_errors(model: Path, kv: KvOptions, progress: measured_heads.Progress = lambda what, done, total: None, **options: Any) -> KvOptions:
    """These options, with `head_errors` if mode sparse has an error: those that this machine keeps for these model files, or measured
    now, which takes about as long as reading a prompt of 5,000 tokens. If nothing is missing, the options stay as they are.

    options: further ones of `Llama`, such as n_threads. Raises the errors of `Llama`."""
    if kv.mode is not KvMode.SPARSE or not kv.selection.lacks_head_errors or not _native.info()["enabled"]:
        return kv
    file = geometry(model)
    placement = devices.place(kv)
    key = key_of(digest_of_model(model), kv, f"{placement.kind.value} {_native.isa()}", measured_heads.text_digest())
    kept = KeptHeadErrors()
    if (errors := kept.find(key)) is None:
        log.warning("the error of each head of %s is measured once, over %s tokens; the next start knows it", model.name,
                    f"{measured_heads.N_TOKENS:,}")
        n_ctx = min(measured_heads.N_TOKENS, file.n_ctx_train)
        llama = Llama(str(model), kv_options=measured_heads.measuring_options(kv), n_ctx=n_ctx, verbose=False, **options)
        try:
            tokens = llama.tokenize(measured_heads.own_text().encode())[: min(n_ctx, llama.n_ctx())]
            errors = measured_heads.measure(llama.kv, llama.eval, tokens, progress)
        finally:
            llama.close()
        kept.keep(key, errors)
    return kv.with_(head_errors=errors)


def windows_reach(model: llama_cpp.llama_model_p, ctx: llama_cpp.llama_context_p, position: int) -> bool:
    """Whether sequence 0 can be cut back to `position`: the windows of sliding layers, if there are any, still hold the tokens that a token there
    attends."""
    window = llama_cpp.llama_model_n_swa(model)
    first = llama_cpp.llama_memory_seq_pos_min(llama_cpp.llama_get_memory(ctx), 0)
    return not position or not window or first <= max(0, position - window + 1)


def _checked(path: Path, kv: KvOptions, options: dict[str, Any], on_host: bool, from_disk: bool) -> KvOptions:
    """The options, on_host with the bytes for rows of a KV home on disk. Raises ConfigError if a cache type cannot hold the heads, or if the
    context is longer than the table of positions; on_host: DoesNotFit if memory is missing. llama.cpp judges files that are not chat models."""
    try:
        file = open_model(path)
    except ModelError:
        return kv
    fit.check_types(file.geometry, kv.cache)
    n_ctx = options.get("n_ctx", 512) or file.geometry.n_ctx_train
    most = next((tensor.shape[-1] for tensor in file.tensors if tensor.name == "position_embd.weight"), n_ctx)
    if n_ctx > most:
        raise ConfigError(f"{path} has {most:,} positions, and a context of {n_ctx:,} tokens needs more; ask for n_ctx={most} or less")
    if not on_host:
        return kv
    n_threads = options.get("n_threads_batch") or os.cpu_count() or 1
    request = ContextRequest(file, kv, n_ctx, Slots(), available_bytes(), n_threads=n_threads, from_disk=from_disk)
    check_context(request, n_ctx)
    return request.with_hot_rows(n_ctx, kv)


def _cache_name(value: CacheType | str | int | None) -> CacheType | str | None:
    """The name of a cache type. None for numbers of other types: llama_cpp takes these, and the layers run stock."""
    if isinstance(value, int):
        return next((kind for kind in CacheType if kind.ggml_type == value), None)
    return value
