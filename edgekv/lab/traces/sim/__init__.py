"""Replays recorded attention against a policy, without a model: how much of it a hot tier that the policy fills would serve, and at what
cost.

    from edgekv.lab.traces.sim import Scenario, simulate
    from edgekv.lab.traces.trace import Trace

    with Trace.open("prose.trace") as trace:
        print(simulate(trace, Scenario(policy="ema+anchor+recent", budget=0.1)).row())

A step t, which decodes one token, with the policies and prefetchers that run live:

1. The policy has seen the steps before t (the oracle t too: observation "ahead"). Its pins and the page being filled are hot, then the
   pages of the highest score up to the budget, which `edgekv.hierarchy.budgets` divides over layers and heads; and what prefetch brought.
2. What that serves is counted (below).
3. The policy observes. `sampled`: what mode sparse does, the weighted mass of the rows that it read, a consistent estimate of the
   mass of every page, hot or not. `full`: the true mass of every page, which only a recording has. `honest`: the pages that the policy chose
   alone, their mass scaled up to the softmax over them, as where it decides what is attended: mode evict, and mode sparse without
   sketches. A trace knows the query heads of a group only together: the scale is that of their sum.
4. Prefetch adds to the hot tier (`edgekv.lab.traces.sim.hot`).

Nothing is missed in the warm-up, and nothing is counted: under honest observation everything is attended. What its last step would have
chosen is hot when the first step begins. The trace's masses stay what they are: under honest observation, what a policy misses does not
change the later layers and tokens, as it would live.

Figures, each by head and over all:

    hit_rate       what is wanted and hot / what is wanted: by access. Wanted are the rows that mode sparse reads, or pages by their true
                   mass (`Scenario.access`)
    hit_rate_mass  true mass on hot pages / true mass on all. Under honest observation hot is what is attended, so that without
                   prefetch this is the coverage: the attention that is kept
    hot            pages, as a share of the visible ones in `Result.row`
    fetched        pages of a head that became hot for a step, those that prefetch brought among them

A policy knows what it chooses before the step, so that it has been fetched by then. The page being filled is written in place.
"""

from edgekv.lab.traces.sim.replay import Replay, simulate
from edgekv.lab.traces.sim.result import Result
from edgekv.lab.traces.sim.scenario import OBSERVATIONS, Access, Scenario

__all__ = ["OBSERVATIONS", "Access", "Replay", "Result", "Scenario", "simulate"]
