"""Corrects this machine's kept rates by the speed of a loaded model."""

import logging

from msgspec.structs import replace

from edgekv.common.enums import KvMode
from edgekv.config import KvOptions
from edgekv.models.geometry import ModelFile
from edgekv.planning.host import AttentionRates, KeptRates, KernelRates, StepRates, WeightRates, attention_shape, kept_for, measured_weights
from edgekv.planning.roofline import HostRoofline

log = logging.getLogger("edgekv")

FAR = 1.5
"""A token this many times as fast as the kept rates say corrects them; ordinary errors of estimates are smaller."""


def correct(kept: KeptRates, model: ModelFile, kv: KvOptions, mode: KvMode, depth: int, seconds: float) -> float | None:
    """Correct the kept rates by a token that took `seconds` after `depth` tokens. If it was at least FAR times as fast as they say, other
    programs were busy when they were measured, and they are raised by that factor. Returns the factor; None: no correction, or no rates."""
    rates = kept_for(model, kv, kept)
    if rates is None:
        return None
    times = HostRoofline(model, kv, rates).decode_seconds(mode, depth) / seconds
    if times < FAR:
        return None
    kept.keep("read", rates.read * times)
    kept.keep("step", StepRates(rates.step.token / times, rates.step.layer / times))
    kept.keep(f"attention {attention_shape(model.geometry, kv).name}", _faster(rates.attention, times))
    for kind, matrices in measured_weights(model).items():
        of = rates.weights[kind]
        kept.keep(f"weights {kind} {matrices.name}", WeightRates(*(getattr(of, name) * times for name in of.__struct_fields__)))
    log.info("a token takes %.2g s and not %.2g s: the rates that `edgekv plan` keeps of this machine were too low, and are corrected",
             seconds, seconds * times)
    return times


def _faster(rates: AttentionRates, times: float) -> AttentionRates:
    """Rates in seconds, divided by `times`."""
    kernels = {name: KernelRates(*(getattr(of, each) / times for each in of.__struct_fields__))
               for name, of in (("exact", rates.exact), ("flash", rates.flash), ("plain", rates.plain))}
    return replace(rates, **kernels, row=rates.row / times, scan=rates.scan / times)
