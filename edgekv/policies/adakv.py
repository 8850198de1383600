"""SnapKV with one budget for the heads of a layer."""

from edgekv.common.enums import Split
from edgekv.policies.snapkv import SnapKv


class AdaKv(SnapKv):
    """Ada-KV, "Optimizing KV Cache Eviction by Adaptive Budget Allocation" (arXiv:2407.11550): SnapKV's scores; the heads of a layer share
    its budget by them, with a floor for each head (`edgekv.tiering.budgets`)."""

    split = Split.LAYER
