"""Replays recorded attention against a policy, without a model: how much of it the policy would have covered, and at what cost.

    from edgekv.sim import Setting, simulate
    from edgekv.trace import Trace

    with Trace.open("prose.trace") as trace:
        print(simulate(trace, Setting(policy="ema+anchor+recent", budget=0.1)).row())

A step t, which decodes one token, with the policies and prefetchers that run live:

1. The policy has seen the steps before t (the oracle t too: observation "ahead"). Selection takes its pins and the page being
   filled, then the pages of the highest value up to the budget: by the policy's scores, or with a sketch by (1 - blend) * estimate
   + blend * score (`edgekv.kernels.select`). `edgekv.budgets` divides the budget over layers and heads, and stops at a coverage
   target.
2. What that covers is measured on the true mass, and what was hot is counted (below).
3. The policy observes. `full`: the true mass of every page, which only a recording has. `honest`: the attended pages alone, their
   mass scaled up to the softmax over them, as a live system sees it; with `feed` also the sketch's estimate for the others, the
   attended mass then scaled by the estimated coverage, as native selection does. A trace knows the query heads of a group only
   together: the scale is that of their sum, and the largest of the estimates over a group is taken to be their mean.
4. The hot tier takes in what was attended and what prefetch adds (`edgekv.sim.hot`).

In the warm-up everything is attended and observed, for every policy alike; nothing is counted, and what its last step would have
attended is hot when the first step begins. The trace's masses stay what full attention gives: what a policy misses does not
change the later layers and tokens, as it would live.

Figures, each by head and over all:

    coverage       true mass on attended pages / true mass on all: what attention kept
    hit_rate       wanted pages that are hot / wanted pages: by access, where a head wants the 8 pages with most true mass
                   (`Setting.access`)
    hit_rate_mass  true mass on hot pages / true mass on all
    arena_hits     attended pages that were hot when the step before ended / attended pages: what selection found in fast memory
    fetched        pages of a head that became hot for a step, those that prefetch brought among them
    attended, hot  pages, as a share of the visible ones in `Result.row`

Hot is what stands in fast memory when the step reads it. A policy without a sketch knows what it will attend before the step, so
it has been fetched by then: hot is the attended set (with prefetch and pool, these pages too), and without them hit_rate_mass is
the coverage. With a sketch the query chooses, and hot is what the step before left.
"""

from edgekv.sim.replay import Replay, simulate
from edgekv.sim.result import Result
from edgekv.sim.setting import OBSERVATIONS, Access, Setting

__all__ = ["OBSERVATIONS", "Access", "Replay", "Result", "Setting", "simulate"]
