"""The parts of a report that come from traces: curves over the budget, heads, reads, roles."""

from collections.abc import Sequence

import numpy as np

from edgekv.lab.heads.roles import ROLES, UNKNOWN, Profile
from edgekv.lab.report import maps
from edgekv.lab.report.charts import Line, Panel
from edgekv.lab.report.sections import COLOURS, NO_TRACE, Row, Section, facts, of_trace, percent, where
from edgekv.lab.report.study import HIGHLIGHTS, MAP_BUDGET, ORACLE, ORACLE_POOLED, Study


def budget_curves(studies: Sequence[Study], given: Sequence[Row]) -> Section:
    """The section of curves over the budget. given: rows of `edgekv lab sim`."""
    section = Section("budget", "Hit rate by mass over the budget")
    rows: list[Row] = [row for study in studies for row in study.curves()]
    rows += [{"text": "rows of edgekv lab sim", **row, "name": _sim_name(row)} for row in given
             if isinstance(row["budget"], float) and row["budget"] <= 1]
    if not rows:
        section.missing = f"{NO_TRACE}, or rows of edgekv lab sim -o json"
        return section
    means = _means(rows)
    budgets = sorted({row["budget"] for row in rows})
    texts = list(dict.fromkeys(str(row["text"]) for row in rows))
    ceilings = (ORACLE, ORACLE_POOLED)
    named = {*HIGHLIGHTS, *ceilings} if studies else set(list(means)[:len(HIGHLIGHTS)])
    lines = [Line(name, list(values), list(values.values()), faint=name not in named, ceiling=name in ceilings,
                  colour=COLOURS.get(name)) for name, values in means.items()]
    title = f"mean over {', '.join(texts)}" if len(texts) > 1 else texts[0]
    section.curves([Panel(title, lines, "attention mass on hot pages", "missed")], "pages of the visible ones, per head on average",
                   "Grey: the other policies of the table, as far as they reach; dashed: the oracle, which sees the step. The scale is "
                   "that of what is missing to 100 %.", height=4.6)
    can_run_live = [name for name in means if "oracle" not in name and "all seen" not in name and ", full" not in name]
    best = {budget: max((means[name][budget], name) for name in can_run_live if budget in means[name])
            for budget in budgets if any(budget in means[name] for name in can_run_live)}
    winners: dict[str, list[str]] = {}
    for budget, (value, name) in best.items():
        winners.setdefault(name, []).append(f"{percent(value)} % at {100 * budget:g} %")
    said = "; ".join(f"{name} with {', '.join(figures)}" for name, figures in winners.items())
    measured = where([facts(study) for study in studies] or given)
    section.text = (f"The most attention for a budget, of what can run live: {said}. Rows that say nothing else are of honest observation: "
                    f"the policy decides what is attended, and what it covers is what is kept. Sampled: it sees what mode sparse reads of "
                    f"all pages, and decides what is in fast memory{': ' if measured else ''}{measured}.")
    order = sorted(means, key=lambda name: -means[name].get(MAP_BUDGET, max(means[name].values())))
    section.table(("policy", *(f"{100 * budget:g} %" for budget in budgets)),
                  [(name, *(percent(means[name].get(budget)) for budget in budgets)) for name in order],
                  "Attention mass on hot pages, %, the best at 10 % first.")
    return section


def _sim_name(row: Row) -> str:
    prefetch = row.get("prefetch")
    parts = (row["policy"], row.get("split"), row.get("observe"), prefetch if prefetch != "none" else None)
    return ", ".join(str(part) for part in parts if part)


def _means(rows: Sequence[Row]) -> dict[str, dict[float, float]]:
    """The hit rate by mass as a mean over texts, by name and budget, budgets ascending."""
    found: dict[str, dict[float, list[float]]] = {}
    for row in rows:
        found.setdefault(row["name"], {}).setdefault(row["budget"], []).append(row["hit_rate_mass"])
    return {name: {budget: float(np.mean(values)) for budget, values in sorted(by.items())} for name, by in found.items()}


def hits_by_head(study: Study | None) -> Section:
    section = Section("heads", "Hit rate by mass of each head")
    if study is None:
        section.missing = NO_TRACE
        return section
    found = study.hit_maps()
    section.picture(maps.hit_maps(found, study.header.layers), "White dot: the worst head.")
    said = ", ".join(f"{percent(np.nanmin(values), 0)} % under {name}" for name, values in found.items())
    section.text = (f"In the worst head, with {100 * MAP_BUDGET:g} % of the pages hot, the share of the attention on hot pages is {said}: "
                    f"{of_trace(study)}.")
    section.table(("configuration", "mean %", "worst head %", "worst tenth of the heads, up to %"), [
        (name, percent(np.nanmean(values)), percent(np.nanmin(values)), percent(np.nanquantile(values, 0.1)))
        for name, values in found.items()])
    return section


def reads(study: Study | None) -> Section:
    section = Section("reads", "What sampling reads")
    if study is None:
        section.missing = NO_TRACE
        return section
    read, hits = study.reads(), study.hits_over_time()
    header = study.header
    steps = np.arange(study.n_steps) + header.depth
    section.curves(
        [Panel("a head and token", [Line("rows", *_smooth(steps, read.rows)), Line("pages with one", *_smooth(steps, read.pages))],
               "read in mode sparse", "plain"),
         Panel(f"with {100 * MAP_BUDGET:g} % of the pages hot", [
             Line(name, *_smooth(steps, values), ceiling=name == ORACLE_POOLED, colour=COLOURS.get(name)) for name, values in hits.items()],
             "attention mass on hot pages")],
        "decode step", "Means over all heads and 16 steps.", percent_x=False)
    rows, pages, n_tokens = read.rows.mean(), read.pages.mean(), header.depth + study.n_steps / 2
    section.text = (f"At a resolution of {header.resolution:,g} a head reads {rows:,.0f} rows of {n_tokens:,.0f} for a token "
                    f"({percent(rows / n_tokens)} %), on {pages:,.0f} of {n_tokens / header.page_tokens:,.0f} pages. {of_trace(study)}.")
    section.table((f"hot: {100 * MAP_BUDGET:g} % of the pages", "attention mass on them %", "lowest of a step %"),
                  [(name, percent(values.mean()), percent(values.min())) for name, values in hits.items()])
    return section


def _smooth(steps: np.ndarray, values: np.ndarray, n: int = 16) -> tuple[np.ndarray, np.ndarray]:
    n = max(1, min(n, len(values) // 4))
    return steps[n - 1 :], np.convolve(values, np.ones(n) / n, "valid")


def head_roles(study: Study | None, profile: Profile | None) -> Section:
    section = Section("roles", "Head roles")
    if study is None or profile is None:
        section.missing = NO_TRACE
        return section
    section.picture(maps.role_map(profile, layers=study.header.layers),
                    "Below the map: attention mass on the first page, between, and on the four newest pages.")
    roles = profile.roles()
    counts = {**{role.value: int((roles == i).sum()) for i, role in enumerate(ROLES)}, "unknown": int((roles == UNKNOWN).sum())}
    said = ", ".join(f"{n} {name}" for name, n in counts.items() if n)
    words = "; ".join(f"{role.value}: {role.description}" for role in ROLES)
    section.text = f"Of the KV heads there are {said}, by observed attention alone ({words}). {of_trace(study)}."
    return section
