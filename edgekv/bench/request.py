"""The request of `edgekv bench`: llama-bench's tests, at depths, in modes."""

from pathlib import Path

from msgspec import Struct

from edgekv.bench.modes import check_turns, find_mode
from edgekv.bench.text import Text
from edgekv.common.enums import FULL, STOCK, CacheType, KvMode
from edgekv.common.errors import ConfigError
from edgekv.config import KvOptions
from edgekv.measure.filling import Fill

_SPELLED = {"kv_dir": "--kv-dir", "mode": "--modes", "kv_budget": "--kv-budget"}


class BenchTest(Struct, frozen=True):
    """Reads a prompt of `n_prompt` tokens, or decodes `n_gen` tokens one by one, or does both in this order, after `depth` tokens."""

    n_prompt: int
    n_gen: int
    depth: int

    @property
    def name(self) -> str:
        parts = [f"{what}{n}" for what, n in (("pp", self.n_prompt), ("tg", self.n_gen)) if n]
        return "+".join(parts) + (f" @ d{self.depth}" if self.depth else "")

    @property
    def n_tokens(self) -> int:
        return self.n_prompt + self.n_gen

    @property
    def margin(self) -> int:
        """Cells that the test needs beyond its depth."""
        return self.n_tokens + 1

    @property
    def n_empty(self) -> int:
        """Tokens of its prompt that are also read into an empty cache: all of a test pp at a depth."""
        return self.n_prompt if self.depth and not self.n_gen else 0

    @property
    def decodes(self) -> bool:
        """Whether it is a test tg."""
        return bool(self.n_gen and not self.n_prompt)


class BenchRequest(Struct, frozen=True):
    """Measures every model on every text, with every pair of cache types, batch, ubatch and number of threads, in each test, at each depth,
    in each mode. Raises ConfigError for an impossible request."""

    models: tuple[Path, ...]
    texts: tuple[Text, ...]
    n_prompt: tuple[int, ...] = (512,)
    n_gen: tuple[int, ...] = (128,)
    n_pg: tuple[tuple[int, int], ...] = ()
    depths: tuple[int, ...] = (0,)
    modes: tuple[str, ...] = (STOCK, FULL, KvMode.SPARSE.value)
    budgets: tuple[int | None, ...] = ()
    """Bytes for rows of a `home` that are read lately. A mode that keeps some is measured with each of them; empty: the mode's own size."""
    threads: tuple[int, ...] = (1,)
    batches: tuple[int, ...] = (2048,)
    ubatches: tuple[int, ...] = (512,)
    cache_types: tuple[tuple[CacheType, CacheType], ...] = ((CacheType.F16, CacheType.F16),)
    kv_bytes: tuple[int, ...] = ()
    """Besides these, caches with types by layer of at most so many bytes a token."""
    page_size: int | None = None
    """None: as EDGEKV_PAGE_SIZE says, else the default."""
    n_warmup: int | None = None
    """Tokens that every mode decodes with full attention before a pass; None: only mode sparse, one for every eight tokens that it will
    generate, at most 16."""
    n_rounds: int = 5
    fill: Fill = Fill.TEXT
    peer: Path | None = None
    """Another llama-bench."""
    kv_dir: Path | None = None
    """A folder on a disk for K and V, in modes sparse and exact: stock keeps them in memory, so it is not measured then."""

    def __post_init__(self) -> None:
        if self.kv_dir is not None:
            self._check_kv_dir(self.kv_dir)
        check_turns(self.modes)
        for name, counts in (("number of threads", self.threads), ("batch", self.batches), ("ubatch", self.ubatches)):
            if min(counts) < 1:
                raise ConfigError(f"a {name} must be 1 or more")
        if not self.tests(0):
            raise ConfigError("there is no test: name tokens of a prompt with -p, tokens to generate with -n, or both with -pg")
        if self.kv_dir is None and (self.budgets or any(find_mode(name).changes.get("kv_budget") for name in self.modes)):
            raise ConfigError("--kv-budget is memory for rows of a KV home on a disk, and K and V lie in memory; leave it out, or name a folder with --kv-dir")
        if self.budgets and not any(with_rows(mode) for mode in self.modes):
            raise ConfigError("--kv-budget is for rows that mode sparse reads, and none of the modes is sparse; add sparse to --modes")

    def _check_kv_dir(self, kv_dir: Path) -> None:
        for name in self.modes:
            changes = find_mode(name).changes
            named = {"kv_dir", "kv_budget"} if changes.get("kv_budget") else {"kv_dir"}
            KvOptions(**changes, kv_dir=kv_dir).check_effect(named, lambda option: _SPELLED.get(option, option))

    def tests(self, depth: int) -> list[BenchTest]:
        """The tests in llama-bench's order, each once."""
        named = [*((n, 0) for n in self.n_prompt), *((0, n) for n in self.n_gen), *self.n_pg]
        return [BenchTest(*n, depth) for n in dict.fromkeys(named) if any(n)]


def with_rows(mode: str) -> bool:
    """Whether a mode keeps rows of a home on disk in memory and does not set how many."""
    changes = find_mode(mode).changes
    return changes["mode"] is KvMode.SPARSE and "kv_budget" not in changes
