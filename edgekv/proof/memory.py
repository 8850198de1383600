"""The card's memory as the driver counts it, after the model, the context with EdgeKV attached, a first prompt and a change to mode sparse, against
what `edgekv plan` says for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from edgekv._native import device_calls
from edgekv.common.enums import DeviceKind, KvMode
from edgekv.common.errors import EdgeKVError
from edgekv.common.units import size
from edgekv.config import KvOptions
from edgekv.llama import Llama
from edgekv.measure.contexts import weights_alone
from edgekv.models import geometry
from edgekv.opening import ALL_LAYERS
from edgekv.planning.device_fit import DevicePlan, device_plan, margin_bytes
from edgekv.planning.devices import room_of
from edgekv.planning.fit import rounded
from edgekv.proof.models import model_of
from edgekv.proof.steps import Outcome, Part, Told

N_CTX = 32_768
N_PROMPT = 2048


class Meter(Struct, frozen=True):
    """What was allocated on the card since `before`. Other programs count too."""

    before: device_calls.DeviceInfo

    @property
    def used(self) -> int:
        return self.before.free_bytes - device_calls.info(self.before.kind, self.before.index).free_bytes

    def told(self, stage: str, planned: int) -> Told:
        """More than the plan by less than the plan's own margin is the driver's: its context, kernels and graphs."""
        used, spare = self.used, margin_bytes(self.before.total_bytes, self.before.has_display) if self.before.kind is DeviceKind.CUDA else 0
        more = f", of which the {size(spare)} that the plan leaves free cover" if planned < used <= planned + spare else ""
        return stage, Outcome.RIGHT if used <= planned + spare else Outcome.WRONG, (
            f"{size(used)} are allocated, planned are {size(planned)}" + (f": {size(used - planned)} more{more}" if used > planned else ""))


def run(part: Part) -> Iterator[Told]:
    with model_of(part) as path:
        try:
            yield from _stages(part, path)
        except EdgeKVError as error:
            yield "memory", Outcome.WRONG, str(error)


def _stages(part: Part, path: Path) -> Iterator[Told]:
    kind, model = DeviceKind(part.kind), geometry(path)
    meter = Meter(device_calls.info(kind, part.index))
    n_ctx = 512 if part.emulated else rounded(min(model.n_ctx_train, N_CTX))

    def plan(kv: KvOptions) -> DevicePlan:
        return device_plan(model, n_ctx, kv, room_of(meter.before), all_logits=True)

    exact = KvOptions(attention_device=part.kind, mode=KvMode.EXACT)
    planned = plan(exact)
    with weights_alone(path, None if part.emulated else part.index):
        yield meter.told("model", planned.weights)
    llama = Llama(str(path), kv_options=exact, n_ctx=n_ctx, n_gpu_layers=0 if part.emulated else ALL_LAYERS, verbose=False)
    try:
        yield meter.told("context, attached", _all(planned))
        llama.eval([1 + i % 200 for i in range(min(N_PROMPT, n_ctx // 2))])
        yield meter.told("first prompt", _all(planned))
        sparse = llama.kv.options.with_(mode=KvMode.SPARSE)
        llama.kv.configure(sparse)
        llama.eval([1])
        yield meter.told("sparse", max(_all(planned), _all(plan(sparse))))
    finally:
        llama.close()


def _all(plan: DevicePlan) -> int:
    return plan.weights + plan.compute + plan.others + plan.sketches + plan.tables + plan.scratch + plan.staging + plan.ring + plan.arena
