"""Policies: what a page is worth. A policy = one file, its import and its line here.

A policy's name joins its parts by "+"; a part may have settings: "ema(alpha=0.02)+anchor+recent".
"""

import re
from collections.abc import Mapping
from dataclasses import fields

from edgekv.arrays.ops import Array, Ops
from edgekv.common.errors import ConfigError
from edgekv.common.registry import Registry
from edgekv.config.assignments import assigned, split_at
from edgekv.pages.shape import PageShape
from edgekv.policies.adakv import AdaKv
from edgekv.policies.anchor import Anchor
from edgekv.policies.base import Policy, Settings
from edgekv.policies.by_stream import ByStream
from edgekv.policies.composed import Composed
from edgekv.policies.ema import Ema
from edgekv.policies.ema_any import EmaAny
from edgekv.policies.h2o import H2O
from edgekv.policies.hierarchical import Hierarchical
from edgekv.policies.lfu import Lfu
from edgekv.policies.lru import Lru
from edgekv.policies.morphkv import MorphKv
from edgekv.policies.nacl import Nacl
from edgekv.policies.none import NoPolicy
from edgekv.policies.oracle import Oracle
from edgekv.policies.pyramidkv import PyramidKv
from edgekv.policies.random import Random
from edgekv.policies.recent import Recent
from edgekv.policies.snapkv import SnapKv
from edgekv.policies.streaming import Streaming, Streaming288
from edgekv.policies.tova import Tova

POLICIES: Registry[type[Policy]] = Registry("policy")
POLICIES.add("ema", Ema, "moving average of the attention mass, for each head", "EdgeKV")
POLICIES.add("ema-any", EmaAny, "one moving average for each layer, of the head that attends a page most", "EdgeKV")
POLICIES.add("anchor", Anchor, "pins the first tokens", "StreamingLLM, arXiv:2309.17453")
POLICIES.add("recent", Recent, "pins the newest tokens", "StreamingLLM, arXiv:2309.17453")
POLICIES.add("lru", Lru, "the pages accessed last", "classic")
POLICIES.add("lfu", Lfu, "the pages accessed most often", "classic")
POLICIES.add("streaming", Streaming, "the first tokens and the newest", "StreamingLLM, arXiv:2309.17453")
POLICIES.add("streaming-288", Streaming288, "the first 32 tokens and the newest 256, whatever the budget",
             "StreamingLLM, arXiv:2309.17453")
POLICIES.add("h2o", H2O, "most attention accumulated, and half of the budget for the newest tokens", "H2O, arXiv:2306.14048")
POLICIES.add("tova", Tova, "the pages that the newest token attends, the same for all heads of a layer", "TOVA, arXiv:2401.06104")
POLICIES.add("snapkv", SnapKv, "the pages that the end of the prompt attended, and all newer ones", "SnapKV, arXiv:2404.14469")
POLICIES.add("pyramidkv", PyramidKv, "snapkv with fewer pages for each further layer", "PyramidKV, arXiv:2406.02069")
POLICIES.add("adakv", AdaKv, "snapkv with a budget that the heads of a layer share", "Ada-KV, arXiv:2407.11550")
POLICIES.add("nacl", Nacl, "the pages that the end of the prompt attended, and some drawn at random", "NaCl, arXiv:2408.03675")
POLICIES.add("hierarchical", Hierarchical, "four levels by how often a page was among the best of a window",
             "popularity levels in a 40-token window")
POLICIES.add("morphkv", MorphKv, "the pages that the newest tokens together attend", "MorphKV, arXiv:2503.00979")
POLICIES.add("oracle", Oracle, "the pages that the token itself attends: the ceiling, in the simulator only", "classic")
POLICIES.add("random", Random, "a fixed random order: the least to beat", "classic")
POLICIES.add("none", NoPolicy, "no opinion: all pages are worth the same", "EdgeKV")

_PART = re.compile(r"(?P<name>[^()]*?)\s*(?:\((?P<changes>[^()]*)\))?")


def kinds(spec: str) -> list[type[Policy]]:
    """The classes of the parts that `spec` names. Raises ConfigError."""
    return [kind for kind, _ in _parts(spec, {})]


def setting_kinds(*policies: type[Policy]) -> dict[str, type]:
    """The type of each setting of these policies, by name; without arguments of all registered ones."""
    found = policies or [POLICIES.get(name) for name in POLICIES]
    return {one.name: type(one.default) for policy in found for one in fields(policy.settings_of)}


def check_live(spec: str) -> None:
    """Raise ConfigError if a live context cannot run the policy, or there is none of that name."""
    if any(kind.clairvoyant for kind in kinds(spec)):
        raise ConfigError(f"the policy {spec!r} needs to see a token's attention before the token, so only `edgekv lab sim` can run it; "
                          "choose another")


def make(spec: str, shape: PageShape, settings: Mapping[str, int | float] | None = None, ops: Ops | None = None,
         scores: Array | None = None, by_stream: bool = False) -> Composed | ByStream:
    """The policy that `spec` names; by_stream: one for each stream of the shape (`ByStream`). Raises ConfigError, CudaUnavailable.

    settings: by name, for each part that has them and does not set them in `spec`; ops: where scores and mass live, None: host memory;
    scores: an array of zeros to keep the scores in, None: a new one.
    """
    ops = ops or Ops()
    if by_stream:
        return ByStream(shape, ops, lambda one, its: make(spec, one, settings, ops, its), scores)
    parts = _parts(spec, settings or {})
    n_scoring = sum(kind.scoring for kind, _ in parts)
    if n_scoring > 1 or not all(kind.kernels_only for kind, _ in parts):
        ops.need_xp(f"the policy {spec}")
    alone = n_scoring == 1
    members = [kind(shape, its, ops, scores if alone else None) for kind, its in parts]
    return Composed(shape, ops, members, None if alone else scores)


def _parts(spec: str, settings: Mapping[str, int | float]) -> list[tuple[type[Policy], Settings]]:
    """Kind and settings of each part. Raises ConfigError."""
    parts = {}
    for text in split_at("+", spec):  # a plus in brackets belongs to a number
        match = _PART.fullmatch(text.strip())
        if match is None:
            raise ConfigError(f"the policy {spec!r} has brackets in the wrong place; write NAME(SETTING=VALUE,...)+NAME")
        name = match["name"]
        if name in parts:
            raise ConfigError(f"the policy {spec!r} names a part twice; name each once")
        kind = POLICIES.get(name)
        known = setting_kinds(kind)
        own = {} if match["changes"] is None else assigned(match["changes"].split(","), known, f"the policy {spec!r}")
        parts[name] = kind, kind.settings_of(**{key: value for key, value in settings.items() if key in known} | own)
    return list(parts.values())
