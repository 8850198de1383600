"""What a page is worth. A policy = one file, one line here, one row in tests/test_policies.py."""

from __future__ import annotations

from edgekv.errors import ConfigError
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


def make(spec: str, shape: Shape, settings: Settings | None = None) -> Composed:
    """The policy named by `spec`, one or several names joined by "+": their scores add, their pins unite. Raises ConfigError."""
    settings = settings or Settings()
    return Composed(shape, settings, [kind(shape, settings) for kind in kinds(spec)])
