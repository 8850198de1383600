"""A Runtime belongs to one llama_context, as `edgekv.runtime.attachments` says: after each ubatch it runs the policy and calls the observers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from edgekv._native import core, device_calls, native_arrays, paging, token_rows, weight_kernels
from edgekv.common.enums import KvMode
from edgekv.common.errors import ConfigError, EdgeKVError, NativeError
from edgekv.common.reports import AnswerReport, LayerReport, MemoryReport, SelectionReport, TierReport
from edgekv.config import KvOptions, choice
from edgekv.runtime import context, effective
from edgekv.runtime.cells import Cells
from edgekv.runtime.observers import Observers
from edgekv.runtime.sampling import sparse_with
from edgekv.runtime.tokens import Tokens
from edgekv.tiering.stats import Stats

if TYPE_CHECKING:
    from edgekv.arrays.ops import Ops
    from edgekv.pages.residency import Residency
    from edgekv.runtime.wiring import Tiering

log = logging.getLogger("edgekv")


class Runtime:
    """The KV cache of one context: its mode, layers, cells, memory and hierarchy, and the observers called after each ubatch."""

    def __init__(self, handle: core.Handle, options: KvOptions):
        self._handle: core.Handle | None = handle
        self._options = options
        self.page_tokens: int = core.get_params(handle)[1]
        # the layers of the observation are fixed when the context is attached
        self._hooked = tuple(layer.il for layer in core.layers(handle) if layer.index >= 0)
        on_device = device_calls.plane(handle) is not None and self._ops.on_device
        self._observation = native_arrays.RunReader(handle, self._ops.view if on_device else None)
        self._n_heads = self._observation.read().mass_sum.shape[1]
        self.cells = Cells(self._native_handle)
        self.tokens = Tokens(self._native_handle, self.cells)
        self.observers = Observers(self._hooked, self._observation.read, lambda array: self._ops.download(array), self._watch)  # noqa: PLW0108
        self.stats = Stats()
        self.last: AnswerReport | None = None
        """The newest answer of `Llama.generate`; None: there is none yet."""
        self._after_step: Callable[[], None] | None = None
        self._follows = False
        self._pins: list[tuple[int, int, int]] = []  # sequence, first and last position
        self._n_refused = 0
        self._tiering: Tiering | None = None
        self._alone = False  # no run ends
        self._bounded = options.mode is KvMode.EVICT  # its cache is smaller than the context, whatever the mode is later
        self._overdue = False  # mode evict is in force and has dropped nothing yet
        context.check_evict(self._native_handle(), options, self.cells)
        self._check_errors(options)
        weight_kernels.prepare(handle, self.mode)
        context.set_resolutions(handle, options, self._n_heads)
        self._rows_bytes: int | None = core.memory(handle).arena_bytes  # with K and V in a file
        self._start_policy()
        self._follow_mode()

    def _native_handle(self) -> core.Handle:
        if self._handle is None:
            raise EdgeKVError("this context has been freed; its cells and counters are gone")
        return self._handle

    @cached_property
    def _ops(self) -> Ops:
        return context.operations(self._native_handle())

    def __repr__(self) -> str:
        return f"<edgekv.Runtime: {'closed' if self._handle is None else context.described(self._handle)}>"

    @property
    def closed(self) -> bool:
        return self._handle is None

    @property
    def address(self) -> int:
        """Address of the llama_context."""
        return core.llama_address(self._native_handle())

    @property
    def mode(self) -> KvMode:
        """How the next token attends. Set it on the decoding thread, in an observer, or on any thread while nothing decodes. Raises ConfigError
        while another thread computes a ubatch, DoesNotFit if there is no memory. On a device another mode has sketches and arena of its own."""
        return core.get_params(self._native_handle())[0]

    @mode.setter
    def mode(self, mode: KvMode | str) -> None:
        options = self._options.with_(mode=choice(KvMode, mode, "KV mode"))
        with self._taking(options):
            core.set_mode(self._native_handle(), options.mode)
        self._options = options
        if self._tiering is not None:
            self._tiering.set_mode(options)
        self._start_policy()
        self._follow_mode()

    @contextmanager
    def _taking(self, options: KvOptions) -> Iterator[None]:
        """Inside the block the context takes these options. Another mode leaves the arena of a device other memory: the policy ends
        before, and starts again where the block fails."""
        handle, now = self._native_handle(), self.options
        context.check_evict(handle, options, self.cells)
        self._check_errors(options)
        self._label_earlier(options)
        if options.mode is not now.mode and self._tiering is not None and self._tiering.on_device:
            core.set_mode(handle, now.mode)  # changes nothing, and is refused where another thread decodes
            self._end_policy()
        try:
            weight_kernels.prepare(handle, options.mode)
            yield
        except BaseException:
            self._start_policy()
            raise

    def _start_policy(self) -> None:
        """Start the policy of the options, where they have one and it does not run."""
        options = effective.effective(self.options)
        if self._tiering is None and context.has_tiers(self._native_handle(), options):
            from edgekv.runtime import wiring  # with the policies, which most contexts do without

            self._tiering = wiring.tiering(self._native_handle(), options, self.stats, self._ops)
            for seq_id, first, last in self._pins:
                self._pin(first, last, seq_id)

    def _end_policy(self) -> None:
        if self._tiering is not None:
            self._tiering.close()
            self._tiering = None

    def give_back(self, n_bytes: int) -> int:
        """Free at least `n_bytes` of the arena's GPU memory, or all of it if it has less, for a draft model, a projector or another
        program. Pages stay at home and the policy starts again. Returns the bytes that were freed; 0 on the processor. Call it only while
        nothing decodes."""
        handle = self._native_handle()
        plane = device_calls.plane(handle)
        if plane is None or n_bytes <= 0:
            return 0
        before = core.memory(handle).arena_bytes
        self._end_policy()
        paging.limit_arena(handle, max(0, plane.n_slots_max - -(-n_bytes // plane.slot_bytes)))
        self._start_policy()
        return before - core.memory(handle).arena_bytes

    @property
    def observe(self) -> bool:
        """Attention mass is kept. Any thread may set it; it takes effect with the next ubatch."""
        return core.get_params(self._native_handle())[2]

    @observe.setter
    def observe(self, observe: bool) -> None:
        core.set_observe(self._native_handle(), observe, self._options.placement.observe_prompt)

    @property
    def layers(self) -> list[LayerReport]:
        return core.layers(self._native_handle())

    @property
    def options(self) -> KvOptions:
        """The options in force; the cache types are those asked for when the context was made."""
        mode, _, observe = core.get_params(self._native_handle())
        return self._options.with_(mode=mode, observe=observe)

    def configure(self, options: KvOptions) -> None:
        """Change all options but the page size and the cache types, from the next ubatch on. The policy starts again if `begins_with`
        changes. Call it where `mode` may be set; it raises the same errors, and ConfigError for another page size."""
        handle, before = self._native_handle(), self._options
        if options.cache.page_size != self.page_tokens:
            raise ConfigError(f"this context has pages of {self.page_tokens} tokens; make a new context for pages of "
                              f"{options.cache.page_size}")
        chosen = effective.effective(options)
        with self._taking(chosen):
            paging.set_selection(handle, options)
            context.set_resolutions(handle, options, self._n_heads)
            core.set_mode(handle, chosen.mode)
        core.set_observe(handle, options.placement.observe, options.placement.observe_prompt)
        self._options = options
        if context.begins_with(options) != context.begins_with(before):
            self._end_policy()
        if self._tiering is not None:
            self._tiering.set_mode(chosen)
            self._tiering.resize(options)
        self._start_policy()
        self._follow_mode()

    def _label_earlier(self, options: KvOptions) -> None:
        """Label the tokens that other settings sampled: they differ from what these would sample. A device's steps label nothing, so there all
        tokens that mode sparse leaves behind count as sampled."""
        unlabelled = self.tokens.on_device and self.mode is KvMode.SPARSE
        leaves = unlabelled and options.mode is not KvMode.SPARSE
        if self._hooked and (leaves or sparse_with(options) != sparse_with(self._options)):
            core.set_mode(self._native_handle(), self.mode)  # changes nothing, and is refused where another thread decodes
            self.tokens.settings_change(unlabelled)

    def _check_errors(self, options: KvOptions) -> None:
        """Raise ConfigError if the resolutions for the wanted error are unknown."""
        if options.mode is KvMode.SPARSE and options.selection.lacks_head_errors:
            raise ConfigError("the errors of this model's heads were not measured, so no sample budget follows from an error; open the model by "
                              "edgekv.Llama with an error, or use options of edgekv.with_head_errors")

    @contextmanager
    def reading_prompt(self, seq_id: int = 0) -> Iterator[None]:
        """Inside the block the tokens of a sequence are read as a prompt, however small their batches."""
        token_rows.set_prompts(self._native_handle(), [seq_id])
        try:
            yield
        finally:
            token_rows.set_prompts(self._native_handle(), [])

    def memory(self) -> MemoryReport:
        return core.memory(self._native_handle())

    @property
    def n_positions(self) -> int:
        """One past the newest position in stream 0: the length of a single sequence, dropped tokens included. 0 if there are no cells that
        EdgeKV knows."""
        return 0 if not self.cells.known else int(self.cells.stream().positions.max(initial=-1)) + 1

    @property
    def n_context(self) -> int:
        """Most tokens of a sequence."""
        return core.limits(self._native_handle()).n_ctx_seq

    @property
    def n_tokens(self) -> int:
        """Tokens computed so far; `stats` has them at the end of a run of the policy only."""
        seen = self._observation.read()
        return self.stats.n_tokens + (0 if seen.ends_run else seen.n_tokens)

    def residency(self) -> Residency | None:
        """The place of each page: a read-only view, for the decoding thread; None if the mode has no tiers."""
        return None if self._tiering is None else self._tiering.hierarchy.table.residency

    def mass(self) -> np.ndarray:
        """Attention mass of the policy's run so far: float32 [hooked layer, kv_head, page], summed over the query heads of the group and the
        tokens; zero where nothing is observed. In host memory this is a view that lives until the next ubatch; on a device this waits for the
        present one."""
        return self._ops.download(self._observation.read().mass_sum)

    def selection(self, sequence: int | None = None) -> SelectionReport:
        """What mode sparse read so far, and its own estimate of its outputs' error. sequence: None: all. Of one of several sequences that share
        a cache only the selections, what they saw and their coverage are known; a device does not count sequences apart: the report of one of
        several is empty."""
        return context.selection_report(self._native_handle(), len(self._hooked), self._n_heads, sequence)

    def tiers(self) -> TierReport:
        """The places of pages; empty if the mode has no tiers."""
        return TierReport() if self._tiering is None else self._tiering.tiers()

    def layer_selection(self) -> np.ndarray:
        """Mode sparse's reads so far: `edgekv._native.paging.SELECTED` [hooked layer, kv_head], a copy."""
        return paging.selected(self._native_handle(), len(self._hooked), self._n_heads)

    def last_rows(self, layer: int, head: int, token: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """The rows that a query token of the last step read in one KV head of a hooked layer, with the option `keep_rows`: int32 [n] cells of
        stream 0, ascending, and float32 [n] their weights, 1 where a token was read for certain. Empty if everything was attended. Raises
        ConfigError for a layer, head or token that does not exist."""
        return paging.last_rows(self._native_handle(), layer, head, token)

    @property
    def pins(self) -> list[tuple[int, int]]:
        """(first, last) position of each pinned span."""
        return [(first, last) for _, first, last in self._pins]

    def pin(self, first_token: int, last_token: int, seq_id: int = 0, ahead: bool = False) -> int:
        """Pin positions first_token to last_token of a sequence, in whole pages. Until they are unpinned, the tokens at these positions are
        always attended, also where others take their place. The pages that hold them now stay in the arena, in mode evict in the cache, until
        emptied; returns their number. ahead: the tokens may all come later. Call it only while nothing decodes. Raises ConfigError if the
        mode attends everything or the sequence has no such tokens."""
        if self._tiering is None and self.mode is not KvMode.SPARSE:
            raise ConfigError(f"mode {self.mode.value} attends everything, so there is nothing to pin; use mode sparse")
        n = self._pin(first_token, last_token, seq_id)
        if not n and not ahead:
            raise ConfigError(f"there are no tokens at positions {first_token} to {last_token}")
        pins = [*self._pins, (seq_id, first_token, last_token)]
        paging.set_pins(self._native_handle(), pins)
        self._pins = pins
        return n

    def unpin_all(self) -> None:
        """Remove every pin."""
        self._pins.clear()
        paging.set_pins(self._native_handle(), [])
        if self._tiering is not None:
            self._tiering.hierarchy.unpin(0, self._tiering.shape.n_pages - 1)

    def _pin(self, first_token: int, last_token: int, seq_id: int) -> int:
        """The number of pages that hold these tokens; they keep their slots, and in mode evict stay."""
        stream = self.cells.stream_of(seq_id)
        cells = self.cells.stream(stream)
        inside = cells.in_sequence(seq_id) & (cells.positions >= first_token) & (cells.positions <= last_token)
        pages = np.unique(np.flatnonzero(inside) // self.page_tokens)
        if (tiering := self._tiering) is None:
            return len(pages)
        return sum(tiering.hierarchy.pin(int(page), int(page)) for page in pages + stream * tiering.shape.pages_per_stream)

    def raise_failure(self) -> None:
        """Raise CudaUnavailable if the context's GPU has failed, NativeError if the disk of its home has: it decodes no more."""
        problem = core.device_problem(self._native_handle())
        if problem is not None and (type(problem) is NativeError or device_calls.plane(self._native_handle()) is not None):
            raise problem

    def detach(self) -> None:
        """Leave the context to the stock path. Call it only while nothing decodes."""
        core.detach(self._native_handle())

    def step(self) -> None:
        """Follow a ubatch, on the decoding thread: step the hierarchy and count at the end of a run, then call the observers."""
        began = time.perf_counter()
        seen = self._observation.read()
        self._tell_refused(seen.n_refused)
        if seen.ends_run:
            if self._tiering is not None:
                self._tiering.hierarchy.step(self._tiering.observation(seen))
                if self._overdue:
                    self._set_run_every(overdue=False)
            self._record(seen)
        self.observers.tell(seen)
        self.stats.python_seconds += time.perf_counter() - began
        if self._after_step is not None:
            self._after_step()

    def _tell_refused(self, n_layers: int) -> None:
        if n_layers > self._n_refused:
            log.warning("there is no memory for the nodes of %d of %d layers: stock llama.cpp attends their whole cache until there is",
                        n_layers, len(self._hooked))
        self._n_refused = n_layers

    @property
    def after_step(self) -> Callable[[], None] | None:
        """Called on the decoding thread after each step: at the end of each run of the policy, or of each ubatch (`follow`)."""
        return self._after_step

    @after_step.setter
    def after_step(self, call: Callable[[], None] | None) -> None:
        self._after_step = call
        if self.mode is KvMode.OFF:
            self._set_run_every()

    @contextmanager
    def raising(self) -> Iterator[None]:
        """What a callback raises inside the block, on the decoding thread, ends the decode and is raised at the block's end; elsewhere it is logged."""
        with core.raising(self._native_handle()):
            yield

    def follow(self, closely: bool) -> None:
        """closely: step after each ubatch, not only at the end of a run of the policy. Call it on the decoding thread only."""
        if closely != self._follows:
            self._follows = closely
            self._watch(bool(self.observers))

    def _follow_mode(self) -> None:
        """The mode or the options are new. Raises DoesNotFit."""
        placed = self._options.placement
        if self._options.cache.kv_dir is not None and self.mode is KvMode.SPARSE and placed.kv_budget is not None:
            self._rows_bytes = context.keep_rows(self._native_handle(), placed.kv_budget, self._rows_bytes)
        self._set_run_every()

    def _set_run_every(self, overdue: bool = True) -> None:
        """overdue: the options are new, so that mode evict acts after the next ubatch already."""
        if self._handle is not None:
            mode = self.mode
            self._overdue = overdue and mode is KvMode.EVICT
            each = self._overdue or self._tiering is None and mode is not KvMode.SPARSE
            every = 1 if each else self._options.placement.plan_every // context.runs_per_plan(self._options)
            if self._alone and not (seen := self._observation.read()).ends_run:
                self._record(seen)
            # mode off needs no run, and so no callback, but for room in a context that was made for mode evict
            self._alone = mode is KvMode.OFF and self._after_step is None and not self._bounded
            core.set_run_every(self._handle, 0 if self._alone else every)

    def _watch(self, on: bool) -> None:
        if self._handle is not None:
            core.set_watched(self._handle, on or self._follows)

    def _record(self, seen: native_arrays.RunSums) -> None:
        stats = self.stats
        stats.n_ubatches += seen.n_ubatches
        stats.n_tokens += seen.n_tokens
        stats.n_ubatches_hooked += seen.n_ubatches_hooked
        stats.n_tokens_hooked += seen.n_tokens_hooked

    def end(self) -> None:
        """Close: the context is gone, and nothing may be asked of it any more."""
        if self._tiering is not None:
            self._tiering.close()
        self._handle = None
        self._after_step = None
        self.observers.clear()
