"""Prefetchers: which pages will be wanted next. A prefetcher = one file, one line here, one line in tests/tiering/test_prefetch.py."""

from edgekv.arrays.ops import Ops
from edgekv.common.registry import Registry
from edgekv.pages.shape import PageShape
from edgekv.tiering.prefetch.prefetcher import Prefetcher, Rope
from edgekv.tiering.prefetch.previous import Previous
from edgekv.tiering.prefetch.random_pages import RandomPages
from edgekv.tiering.prefetch.rope import RopeDistance

PREFETCHERS: Registry[type[Prefetcher]] = Registry("prefetch")
PREFETCHERS.add("none", Prefetcher, "pages move on their scores alone", "EdgeKV")
PREFETCHERS.add("previous", Previous, "the pages attended last", "EdgeKV")
PREFETCHERS.add("rope", RopeDistance, "a prior by distance, from the model's rotary embedding",
                "from RoFormer, arXiv:2104.09864")
PREFETCHERS.add("random", RandomPages, "any pages: the least to beat", "classic")


def make(name: str, shape: PageShape, rope: Rope | None = None, ops: Ops | None = None) -> Prefetcher:
    """The prefetcher of that name. rope: None: the model has no rotary embedding; ops: where mass lives, None: host memory. Raises
    ConfigError."""
    return PREFETCHERS.get(name)(shape, rope, ops or Ops())
