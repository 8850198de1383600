"""SnapKV with fewer pages for each further layer."""

from edgekv.common.enums import Split
from edgekv.policies.snapkv import SnapKv


class PyramidKv(SnapKv):
    """PyramidKV, "Dynamic KV Cache Compression based on Pyramidal Information Funneling" (arXiv:2406.02069): SnapKV's scores; the budget
    falls evenly from the first layer to the last (`edgekv.tiering.budgets`)."""

    split = Split.PYRAMID
