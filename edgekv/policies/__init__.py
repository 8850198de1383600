"""What a page is worth. A policy = one file, one line here, one row in tests/test_policies.py."""

from __future__ import annotations

from edgekv.errors import ConfigError
from edgekv.kernels.ops import Array, Ops
from edgekv.observation import Shape
from edgekv.policies.anchor import Anchor
from edgekv.policies.base import Policy, Settings
from edgekv.policies.composed import Composed
from edgekv.policies.ema import Ema
from edgekv.policies.lru import Lru
from edgekv.policies.none import NoPolicy
from edgekv.policies.random import Random
from edgekv.policies.recent import Recent
from edgekv.registry import Registry

POLICIES: Registry[type[Policy]] = Registry("policy")
POLICIES.add("ema", Ema, "moving average of the attention mass, for each head")
POLICIES.add("anchor", Anchor, "pins the first tokens and the system prompt")
POLICIES.add("recent", Recent, "pins the newest tokens")
POLICIES.add("lru", Lru, "what was attended last")
POLICIES.add("random", Random, "a fixed random order")
POLICIES.add("none", NoPolicy, "no opinion: sketches alone decide")


def kinds(spec: str) -> list[type[Policy]]:
    """The parts of a policy's name, joined by "+". Raises ConfigError."""
    names = [name.strip() for name in spec.split("+")]
    if len(set(names)) < len(names):
        raise ConfigError(f"the policy {spec!r} names a part twice; name each once")
    return [POLICIES.get(name) for name in names]


def make(spec: str, shape: Shape, settings: Settings | None = None, ops: Ops | None = None, scores: Array | None = None) -> Composed:
    """The policy named by `spec`, one or several names joined by "+": their scores add, their pins unite. ops: where scores and
    mass live, None: in host memory; scores: zeros, the array to keep the scores in, None: one of its own. Raises ConfigError."""
    settings, ops = settings or Settings(), ops or Ops()
    parts = kinds(spec)
    alone = sum(part.scoring for part in parts) == 1
    members = [part(shape, settings, ops, scores if alone else None) for part in parts]
    return Composed(shape, settings, ops, members, None if alone else scores)
