"""The targets of the GPU benchmark, as arithmetic on measured rows. A row is what gpu_table.py measures; times in ms,
rates in bytes per second. Rows of an emulated link are judged apart from those of the real one."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MET, MISSED, UNKNOWN = "met", "missed", "not measured"

STOCK, HOST = "stock", "stock, KV in host memory"
EXACT, SPARSE = "exact", "sparse"

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Verdict:
    """The verdict on `value` against `bound`: it is met where it is not above the bound, or for `at_least` not below it."""

    target: str
    where: str
    value: float | None
    bound: float
    at_least: bool = False

    @property
    def answer(self) -> str:
        if self.value is None:
            return UNKNOWN
        return MET if (self.value >= self.bound if self.at_least else self.value <= self.bound) else MISSED


def judge(rows: Sequence[Row], link_bytes_per_s: float | None) -> list[Verdict]:
    """Every target on every row that it speaks of, and on no row of a rehearsal. `link_bytes_per_s` is the measured rate of one large copy
    to the device."""
    real = [row for row in rows if row["device"] == "cuda" and not row.get("link") and row.get("decode_ms_p50")]
    verdicts: list[Verdict] = []
    for model in dict.fromkeys(row["model"] for row in real):
        mine = [row for row in real if row["model"] == model]
        stock = {row["depth"]: row for row in mine if row["column"] == STOCK}
        host = {row["depth"]: row for row in mine if row["column"] == HOST}
        for row in mine:
            if row["column"] == EXACT:
                verdicts += _exact(row, stock.get(row["depth"]), link_bytes_per_s)
            elif row["column"] == SPARSE:
                verdicts += _sparse(row, stock.get(row["depth"]), host.get(row["depth"]))
            if row["column"] in (EXACT, SPARSE):
                verdicts.append(Verdict("policy below 2 % of the step", _where(row), row.get("overhead_fraction"), 0.02))
        verdicts += _flat(mine)
    return verdicts


def _exact(row: Row, stock: Row | None, link: float | None) -> Iterator[Verdict]:
    cold = row.get("link_bytes_per_step")
    if stock is None or cold is None or not link:
        yield Verdict("exact: compared with all in VRAM", _where(row), None, 1.15)
        return
    copy_ms, compute_ms = 1000 * cold / link, stock["decode_ms_p50"]
    if copy_ms <= compute_ms:
        yield Verdict("exact within 1.15x of all in VRAM, its cold bytes fitting under the computing", _where(row),
                      row["decode_ms_p50"] / compute_ms, 1.15)
    else:
        yield Verdict("exact at 95 % of max(copy, compute)", _where(row), copy_ms / row["decode_ms_p50"], 0.95, at_least=True)


def _sparse(row: Row, stock: Row | None, host: Row | None) -> Iterator[Verdict]:
    bound = {32768: 1.5, 131072: 3.0}.get(row["depth"])
    if bound:
        yield Verdict(f"sparse {bound:g}x as fast as all in VRAM", _where(row), _ratio(stock, row), bound, at_least=True)
    if row["depth"] >= 32768:
        yield Verdict("sparse 10x as fast as KV in host memory", _where(row), _ratio(host, row), 10.0, at_least=True)


def _flat(rows: Iterable[Row]) -> Iterator[Verdict]:
    """One verdict for each budget: the slowest depth over the fastest, from 8K to 128K."""
    of: dict[Any, dict[int, float]] = {}
    for row in rows:
        if row["column"] == SPARSE and 8192 <= row["depth"] <= 131072:
            of.setdefault(row.get("budget_bytes"), {})[row["depth"]] = row["decode_ms_p50"]
    for budget, times in of.items():
        whole = {8192, 131072} <= set(times)
        spread = max(times.values()) / min(times.values()) - 1 if whole else None
        yield Verdict("sparse flat within 10 % from 8K to 128K", size(budget), spread, 0.10)


def _ratio(slow: Row | None, fast: Row) -> float | None:
    return slow["decode_ms_p50"] / fast["decode_ms_p50"] if slow else None


def _where(row: Row) -> str:
    budget = row.get("budget_bytes")
    return f"{row['model']}, {row['depth'] // 1024}K" + (f", {size(budget)}" if budget else "")


def size(n_bytes: int | None) -> str:
    if n_bytes is None:
        return "auto"
    return f"{n_bytes / (1 << 30):g} GiB" if n_bytes >= 1 << 30 else f"{n_bytes / (1 << 20):g} MiB"
