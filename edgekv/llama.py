"""`Llama`: llama_cpp.Llama with KV options. Same methods, same results."""

from __future__ import annotations

import ctypes
import inspect
import logging
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import edgekv
from edgekv import messages  # noqa: F401  # first: it puts llama_cpp on our libraries
from edgekv.common.errors import DoesNotFit, EdgeKVError, ModelError
from edgekv.llama_keywords import LlamaKeywords, as_in, check_names, check_numbers, in_python, signature_of

import llama_cpp

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from edgekv.common.enums import CacheType, KvMode
    from edgekv.config import KvOptions
    from edgekv.runtime.runtime import Runtime

log = logging.getLogger("edgekv")


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
            self._open(model_path, weights_from_disk, dict(options), kv=kv, kv_options=kv_options, type_k=type_k, type_v=type_v, flash_attn=flash_attn)
        except EdgeKVError as error:
            if not edgekv.owns_process:  # whose options are those of the command line
                error.args = (in_python(str(error)), *error.args[1:])
            raise

    def _open(self, model_path: str, weights_from_disk: bool, options: dict[str, Any], **kv: Any) -> None:
        from edgekv import opening  # a program that opens no model does without
        from edgekv._native import core
        from edgekv.runtime import attachments

        self._weights_from_disk, adapter = weights_from_disk, options.get("lora_path")
        if adapter and not os.path.isfile(adapter):
            raise ModelError(f"there is no adapter {adapter}; lora_path wants a GGUF file")
        asked = opening.asked(Path(model_path), options, **kv)
        if not options.get("vocab_only"):
            shared = {name: options[name] for name in opening.OF_MACHINE if name in options}
            asked.kv = with_head_errors(Path(model_path), asked.kv, weights_from_disk=weights_from_disk, **shared)
            asked.kv = opening.checked(Path(model_path), asked, options, weights_from_disk)
        self._kv_options = asked.kv
        try:
            with core.raising(), attachments.defaults(self._kv_options):
                super().__init__(str(model_path), flash_attn=kv["flash_attn"], **asked.types, **options)
        except EdgeKVError:
            raise
        except ValueError as error:
            if (home := self._kv_options.cache.kv_dir) is not None and (why := core.home_failure()):
                from edgekv.planning.home import no_home

                raise no_home(why, home) from error
            if "llama_context" in str(error):  # the other messages name the file
                raise EdgeKVError(f"llama.cpp could not create a context of {options.get('n_ctx', 512)} tokens for {model_path}; "
                                  "ask for a smaller one") from error
            from edgekv.models.reader import open_gguf

            open_gguf(Path(model_path))  # knows more of what is wrong with a file
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
            from edgekv._native import core

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
        from edgekv.runtime import answers

        found = self._runtime()
        if self.n_tokens and asked.get("reset", True):
            if why := self._out_of_reach(prompt):
                log.info("the prompt goes back %s, and is read from its start", why)
                self.reset()
            elif prompt and found is not None and (self._requires_eval or self._input_ids.tolist() != prompt):
                self._go_back(answers.first_to_read(len(prompt), self.n_batch, self.context_params.n_ubatch), found)
        answer = super().generate(prompt, *arguments, **options)
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
        return self._with_report(super().create_completion(*arguments, **options))

    @as_in(llama_cpp.Llama.create_chat_completion)
    def create_chat_completion(self, *arguments: Any, **options: Any) -> Any:
        """As in llama_cpp."""
        return self._with_report(super().create_chat_completion(*arguments, **options))

    def _with_report(self, result: Any) -> Any:
        if not self._report:
            return result
        from edgekv.runtime import answers

        return answers.with_report(result, self.kv)

    def _out_of_reach(self, prompt: Sequence[int]) -> str | None:
        """Why the cache no longer holds what the prompt's first new token attends; None: it does."""
        from edgekv.common.enums import KvMode

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

    def _go_back(self, first: int, found: Runtime) -> None:
        """Read the prompt's tokens from this one on again, where states and windows can go back: the same prompt then has the same logits."""
        from edgekv.common.enums import KvMode

        if found.mode is not KvMode.OFF and not self._is_recurrent and not self._is_hybrid and windows_reach(self.model, self.ctx, first):
            self.n_tokens = min(self.n_tokens, first)

    def __getstate__(self) -> dict[str, Any]:
        from edgekv.config import AUTO_DEVICE
        from edgekv.opening import cache_name

        found, state = self._runtime(), super().__getstate__()
        kv = self._kv_options if found is None else found.options
        for name in ("type_k", "type_v"):
            if cache_name(state[name]) is not None:  # not a type that runs stock
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
        from edgekv.runtime import attachments

        return attachments.find(ctypes.cast(self.ctx, ctypes.c_void_p).value or 0)

    @property
    def kv(self) -> Runtime:
        """The Runtime of this model's context. Raises EdgeKVError if there is none."""
        found = self._runtime()
        if found is None:
            raise EdgeKVError("this Llama has no attached context: it was closed, or loaded with vocab_only")
        return found


Llama.__init__.__signature__ = signature_of(Llama.__init__, llama_cpp.Llama.__init__)  # type: ignore[attr-defined]

def with_head_errors(model: Path, kv: KvOptions, progress: Callable[[str, int, int], None] = lambda what, done, total: None, **options: Any) -> KvOptions:
    """These options, with `head_errors` if mode sparse has an error: those that this machine keeps for these model files, or measured
    now, which takes about as long as reading a prompt of 5,000 tokens. If nothing is missing, the options stay as they are.

    options: further ones of `Llama`, such as n_threads. Raises the errors of `Llama`."""
    if not kv.selection.lacks_head_errors:
        return kv
    from edgekv import _native
    from edgekv.common.enums import KvMode
    from edgekv.config import HeadErrors
    from edgekv.models.geometry import geometry
    from edgekv.planning import devices
    from edgekv.planning.kept import Kept, key_of
    from edgekv.prefix_cache.digests import digest_of_model
    from edgekv.runtime import measured_heads

    if kv.mode is not KvMode.SPARSE or not _native.info()["enabled"]:
        return kv
    file = geometry(model)
    placement = devices.place(kv)
    key = key_of(digest_of_model(model), measured_heads.settings(kv), f"{placement.kind.value} {_native.isa()}", f"text {measured_heads.text_digest()}")
    kept = Kept("head-errors.json", "the measured errors of heads")
    if (errors := kept.find(key, HeadErrors)) is None:
        log.warning("the error of each head of %s is measured once, over %s tokens; the next start knows it", model.name,
                    f"{measured_heads.N_TOKENS:,}")
        n_ctx = min(measured_heads.N_TOKENS, file.n_ctx_train)
        llama = Llama(str(model), kv_options=measured_heads.measuring_options(kv), n_ctx=n_ctx, verbose=False, **options)
        try:
            tokens = llama.tokenize(measured_heads.own_text().encode())[: min(n_ctx, llama.n_ctx())]
            errors = measured_heads.measure(llama.kv, llama.eval, tokens, progress)
        finally:
            llama.close()
        kept.keep(key, errors, indent=None)
    return kv.with_(head_errors=errors)


def windows_reach(model: llama_cpp.llama_model_p, ctx: llama_cpp.llama_context_p, position: int) -> bool:
    """Whether sequence 0 can be cut back to `position`: the windows of sliding layers, if there are any, still hold the tokens that a token there
    attends."""
    window = llama_cpp.llama_model_n_swa(model)
    first = llama_cpp.llama_memory_seq_pos_min(llama_cpp.llama_get_memory(ctx), 0)
    return not position or not window or first <= max(0, position - window + 1)
