"""One line for each request that ends."""

import logging
import time

from edgekv._native.http_server import Request
from edgekv.common.units import counted

log = logging.getLogger("edgekv.requests")
"""A line is a warning where many tokens were read again, else for information: `edgekv serve` shows all, others only warnings."""


def ended(request: Request) -> None:
    """Write its line."""
    log.log(logging.WARNING if request.n_lost else logging.INFO, "%s %s", time.strftime("%H:%M:%S"), line(request))


def line(request: Request) -> str:
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
