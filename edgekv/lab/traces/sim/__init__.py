"""Replays recorded attention against a policy, without a model: the share that a hot tier filled by the policy would serve, and the
cost.

    from edgekv.lab.traces.sim import Scenario, simulate
    from edgekv.lab.traces.trace import Trace

    with Trace.open("prose.trace") as trace:
        print(simulate(trace, Scenario(policy="ema+anchor+recent", budget=0.1)).row())

A step t decodes one token, with the same policies and prefetchers as live:

1. The policy has seen the steps before t (the oracle also t: observation "ahead"). Hot are its pins, the page being filled, the pages of
   highest score up to the budget, which `edgekv.tiering.budgets` divides over layers and heads, and prefetched pages.
2. The figures (below) count the part that these pages serve.
3. The policy observes. `sampled`: mode sparse's observation, the weighted mass of the rows that it read, a consistent estimate of the
   mass of every page, hot or not. `full`: the true mass of every page, which only a recording has. `honest`: only the policy's chosen
   pages, their mass scaled up to the softmax over them, as when the policy decides what is attended. A trace knows a group's query heads
   only together, so the scale is that of their sum.
4. Prefetch adds to the hot tier (`edgekv.lab.traces.sim.replay.HotTier`).

In the warm-up nothing is missed or counted: even under honest observation everything is attended. The choice of its last step is hot
when the first measured step begins. The trace's masses never change: under honest observation, a policy's misses do not
affect later layers and tokens, as they would live.

Figures, each by head and over all:

    hit_rate       wanted and hot / wanted: the rows that mode sparse reads
    hit_rate_mass  true mass on hot pages / true mass on all pages. Under honest observation the hot pages are the attended ones, so
                   without prefetch this is the coverage: the kept attention
    hot            hot pages, in `Result.row` as a share of the visible ones
    fetched        pages of a head that became hot for a step, including prefetched ones

A policy chooses before the step, so its pages have been fetched by then. The page being filled is written in place.
"""

from edgekv.lab.traces.sim.replay import Replay, simulate
from edgekv.lab.traces.sim.result import Result
from edgekv.lab.traces.sim.scenario import OBSERVATIONS, Scenario

__all__ = ["OBSERVATIONS", "Replay", "Result", "Scenario", "simulate"]
