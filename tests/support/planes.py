"""A model on the emulated device, and the steps that compare it with the host."""

import ctypes
import gc
from pathlib import Path

import numpy as np

from edgekv import Llama
from edgekv._native import core, device_calls, testing
from edgekv.common.enums import DeviceKind
from edgekv.config import KvOptions

N_PROMPT = 150
STEPS = (1, 1, 2, 5, 16, 1)
LONG_STEPS = (17, 64, 1)
"""Up to 64 tokens run on the plane too, in groups; a longer ubatch is a prompt."""
ALL = dict(mode="sparse", sample_budget=1e9, exact_tokens=0)
"""Every row is read for certain: the attention of random weights is even."""
SAMPLED = dict(mode="sparse", sample_budget=100, exact_tokens=0, recent_tokens=16)


def open_model(path, device: str = "emulated", *, n_ctx: int = 256, **options) -> Llama:
    """On the host windows are left to stock nodes too, as on a device: both planes then have the same."""
    llama = Llama(str(path), kv_options=KvOptions(attention_device=device, **options), n_ctx=n_ctx, n_threads=1, n_threads_batch=1, n_ubatch=N_PROMPT,
                  verbose=False, logits_all=True)
    testing.leave_whole_layers(llama.kv._native_handle())
    return llama


def plane_of(llama: Llama) -> device_calls.Plane:
    found = device_calls.plane(llama.kv._native_handle())
    assert found is not None, core.device_problem(llama.kv._native_handle())
    return found


def device_bytes() -> tuple[int, int]:
    """Free and all memory of the emulated device, without contexts that an earlier test's exception still holds."""
    gc.collect()
    info = device_calls.info(DeviceKind.EMULATED)
    return info.free_bytes, info.total_bytes


def logits_of(llama: Llama, steps=STEPS, n_prompt: int = N_PROMPT, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    llama.reset()
    llama._ctx.kv_cache_clear()
    tokens = rng.integers(260, 350, n_prompt + sum(steps)).tolist()  # the tokens are the same, however steps divide them
    llama.eval(tokens[:n_prompt])
    first = llama.n_tokens
    for n in steps:
        llama.eval(tokens[llama.n_tokens : llama.n_tokens + n])
    return np.array(llama.scores[first : llama.n_tokens])


SINGLE = 1e-3**2 / 2
"""KLD of two planes with F32 weights. Sums in another order move a logit, of standard deviation 2.3, by about 1e-4; where that makes the
rounding of a stored key or value flip, 2^-11 of one channel, by less than 1e-3. And shifts of logits by at most e make a divergence of
at most e^2 / 2 (Hoeffding)."""
SLACK = 32
"""Times the largest error of NumPy in single precision, which sums in another order: other orders and functions are 1 to 5 times as far
from double precision (48 models), a query in 8 bits 2,000 times."""


def link_bytes() -> int:
    """Bytes of host memory that the emulated device has read: by copies, and by kernels in place."""
    path = next(Path(line.split(maxsplit=5)[5].strip()) for line in Path("/proc/self/maps").read_text().splitlines() if "libedgekv-emulated" in line)
    count = ctypes.CDLL(str(path)).edgekv_emulated_link_bytes
    count.restype = ctypes.c_uint64
    return count()


def cache_bytes(llama: Llama) -> int:
    """Bytes of all pages that hold a token."""
    tiers = llama.kv.tiers()
    return (tiers.n_resident + tiers.n_home + tiers.n_filling + tiers.n_moving) * tiers.slot_bytes
