"""Takes a running server's figures and publishes them: once a second, and more often while a client watches."""

from __future__ import annotations

import base64
import json
import logging
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from edgekv._native import http_server as native
from edgekv.common.units import counted
from edgekv.server import metrics, page, shown
from edgekv.server.conversations import Conversations
from edgekv.server.errands import Errands
from edgekv.server.figures import Figures, collect
from edgekv.server.history import History
from edgekv.server.page_map import MapMaker
from edgekv.server.shown import DecodeSpeed, Served, Shown

if TYPE_CHECKING:
    from edgekv.runtime.runtime import Runtime
    from edgekv.server.prefixes import Prefixes

log = logging.getLogger("edgekv.requests")
"""One line for each request that ends: a warning where many tokens were read again, else for information. `edgekv serve` shows all, others only warnings."""

JSON = "application/json; charset=utf-8"

WATCHED_MS = 3000
"""A request for figures counts as watching for this long."""
LIVE_S = 0.2
"""The least time between two sets of figures while a client watches, and from the beginning of work to its first ones: a token that comes before does not
wait for them."""
QUIET_S = 1.0
"""The least time without a watching client: the curves still need points."""
SHARE = 1 / 125
"""Taking figures may use at most this share of the time."""
AGAIN_S = 0.02
"""Requests this close together share one set of figures."""


class Publisher:
    """Publishes for one server. Call `begin` and `end` on the thread that starts and stops it, everything else on the decoding thread.
    plan: called when work begins and ends."""

    def __init__(self, served: Served, runtime: Callable[[], Runtime | None], prefixes: Callable[[], Prefixes | None],
                 plan: Callable[[], DecodeSpeed | None]):
        self.shown = Shown(served)
        """The latest figures."""
        self.errands = Errands()
        self.seconds = 0.0
        """Seconds spent on figures so far."""
        self._runtime, self._prefixes, self._plan = runtime, prefixes, plan
        self._history = History()
        self._maps = MapMaker()
        self._drawn: dict[int, tuple[int, int]] = {}  # by slot: steps and the clock of its cells at the drawing of its map
        self._growing = False
        self._conversations = Conversations()
        self._found = native.PrefixCounts()
        self._speed: DecodeSpeed | None = None
        self._n_steps = self._n_steps_taken = 0  # so far, and at the latest figures
        self._taken = 0.0  # time.perf_counter()
        self._idle, self._began = True, 0.0  # whether nothing was left to do, and when work began after that, as `_taken`
        self._cost = 0.0

    def begin(self, told: Iterable[native.Request] = ()) -> None:
        """Publish the known figures, and take more from now on. told: of requests so far."""
        self.shown = Shown(self.shown.served)
        self._history, self._maps, self._drawn, self._conversations = History(), MapMaker(), {}, Conversations()
        self._found = native.PrefixCounts()
        native.publish("/edgekv", "text/html; charset=utf-8", page.document(self.shown.served.has_chat_page))
        for slot in range(self.shown.served.n_slots):
            native.publish(_map_path(slot), JSON, "null")
        self._publish_history()
        self._publish(self.shown)
        native.program.refresh = self.refresh
        for request in told:
            self._told(request)
        native.program.request = self._told
        if (runtime := self._runtime()) is not None:
            self.follow(runtime)

    def follow(self, runtime: Runtime) -> None:
        """Take figures while this Runtime's context decodes."""
        runtime.after_step = self.after_step

    def end(self) -> None:
        """Withdraw all figures. Call it after the server has ended."""
        native.withdraw()

    # ---- on the thread that decodes ------------------------------------------------------------------------------------------

    def after_step(self) -> None:
        """Called after each step of the Runtime; nearly always does nothing."""
        self.errands.run()
        self._n_steps += 1
        now = time.perf_counter()
        if self._idle:
            self._idle, self._began = False, now
        if now - self._began < LIVE_S or now - self._taken < max(LIVE_S, self._cost / SHARE):
            return
        watched = 0 <= native.asked_ms("/edgekv/state") < WATCHED_MS
        runtime = self._runtime()
        if runtime is not None:
            runtime.follow(watched)  # a run of the policy can be longer than a watcher wants to wait
        if watched or now - self._taken >= max(QUIET_S, self._cost / SHARE):
            self._take(busy=True)

    def _told(self, request: native.Request) -> None:
        if request.ended:
            log.log(logging.WARNING if request.n_lost else logging.INFO, "%s %s", time.strftime("%H:%M:%S"), _line(request))
        else:
            self._found = self._found.plus(request)
        self._conversations.told(request, native.reading_s(0, request.n_found), time.time())
        if (kept := self._prefixes()) is not None:
            kept.slot_tokens.told(request)

    def refresh(self, idle: bool) -> None:
        """Bring the figures up to date between two batches: for a request, or (idle) when nothing is left to do. A request during a batch gets the
        latest figures instead."""
        self.errands.run()
        self._idle = self._idle or idle
        if self._n_steps != self._n_steps_taken or idle and self.shown.busy or time.perf_counter() - self._taken > AGAIN_S:
            self._take(busy=self.shown.busy and not idle)

    def take(self) -> None:
        """Take and publish the figures of now."""
        self._take(busy=self.shown.busy)

    def _take(self, busy: bool) -> None:
        began = time.perf_counter()
        runtime = self._runtime()
        figures = None if runtime is None else collect(runtime, self.shown.served.n_slots)
        if figures is not None:
            self._remember(figures, busy)
        if runtime is not None and figures is not None:
            self._draw(runtime, figures, busy)  # first, so that no map is older than the state beside it
        kept = self._prefixes()
        self.shown = Shown(self.shown.served, figures, busy, None if kept is None else kept.figures(), traffic(self._found),
                           tuple(self._conversations.of(figures)) if figures else (), self._conversations.seconds_saved, self._speed)
        self._publish(self.shown)
        self._n_steps_taken = self._n_steps
        self._taken = time.perf_counter()
        self._cost = self._taken - began
        self.seconds += self._cost

    def _remember(self, figures: Figures, busy: bool) -> None:
        if self._history.add(figures, began=busy and not self._growing, ended=not busy):
            self._publish_history()
        if not (busy and self._growing):
            self._speed = self._plan()
        self._growing = busy

    # ---- documents -----------------------------------------------------------------------------------------------------------

    def _publish(self, now: Shown) -> None:
        native.publish("/edgekv/state", JSON, json.dumps(shown.state(now)))
        native.publish("props", JSON, json.dumps(shown.props(now)))
        native.publish("slots", JSON, json.dumps(shown.slots(now)))
        native.publish("metrics", "text/plain", metrics.text(now))

    def _publish_history(self) -> None:
        native.publish("/edgekv/history", JSON, json.dumps(shown.history(self._history)))

    def _draw(self, runtime: Runtime, figures: Figures, busy: bool) -> None:
        """Redraw the watched maps. When idle, redraw every outdated map: a request cannot trigger one."""
        if not runtime.cells.known:
            return
        drawn: dict[int, str] = {}
        for slot, sequence in enumerate(figures.sequences):
            asked = 0 <= native.asked_ms(_map_path(slot)) < WATCHED_MS
            now = self._n_steps, runtime.cells.stream(sequence.stream).now
            if not (asked if busy else self._drawn.get(slot) != now):
                continue
            if sequence.stream not in drawn:
                drawn[sequence.stream] = self._map_text(runtime, sequence.stream, figures.taken)
            native.publish(_map_path(slot), JSON, drawn[sequence.stream])
            self._drawn[slot] = now

    def _map_text(self, runtime: Runtime, stream: int, taken: float) -> str:
        drawn = self._maps.draw(runtime, stream)
        return json.dumps({
            "taken": round(taken, 3), "n_tokens": drawn.n_tokens, "spans": drawn.spans, "texts": drawn.texts,
            "layers": drawn.layers, "n_columns": drawn.n_columns, "pages_per_column": drawn.pages_per_column,
            "heads_per_line": drawn.heads_per_line, "n_pages_used": drawn.n_pages_used, "page_tokens": runtime.page_tokens,
            "fields": base64.b64encode(drawn.fields.tobytes()).decode()})


def traffic(found: native.PrefixCounts) -> dict[str, Any]:
    """Requests of the server in this process and their waits; `found`: what its prompts found in the prefix cache."""
    pace, (queue, first_token, gaps) = native.pacing(), native.waits()
    return {"n_running": pace.n_running, "n_waiting": max(0, pace.n_requests - pace.n_running), "n_refused": pace.n_refused, "worst_gap": pace.worst_gap_s,
            "queue": queue, "first_token": first_token, "gaps": gaps, "prefixes": found}


def _map_path(slot: int) -> str:
    return f"/edgekv/map/{slot}"


def _line(request: native.Request) -> str:
    """`slot 0: prompt 3,203 tokens, 3,185 reused (ram), 0.4 s; answer 120 tokens, 2.9 s, 41.2 tok/s`"""
    tiers = f", {request.n_found:,} reused ({', '.join(request.by_tier)})" if request.n_found else ""
    said = f"slot {request.slot}: prompt {counted(request.n_prompt, 'token')}{tiers}, {request.read_s:.1f} s"
    if request.n_lost and request.missed is not None:
        reason, position = request.missed
        said += f", {request.n_lost:,} read again ({reason.value} at token {position:,})"
    if not request.n_answer:
        return said
    pace = f", {(request.n_answer - 1) / request.answer_s:.1f} tok/s" if request.answer_s > 0 else ""
    return f"{said}; answer {counted(request.n_answer, 'token')}, {request.answer_s:.1f} s{pace}"
