"""The server loads kept rows where that is quicker and computes them otherwise, by the rates that it has seen."""

import logging
import time
from pathlib import Path

from support.calls import watch
from support.prefix_server import EXACT, apart, ask, keep, n_read, serve

from edgekv.prefix_cache.coming import BlockReader
from edgekv.prefix_cache.settings import StoreSettings


def test_a_place_that_crawls_is_not_waited_for_twice(tiny, tmp_path, monkeypatch, caplog):
    store = StoreSettings(ram_bytes=64 << 20, folder=tmp_path)
    computed = [answer["tokens"] for answer in keep(tiny, EXACT, store, apart(1), apart(2))]
    reads: list[Path] = []
    watch(monkeypatch, BlockReader, "read", lambda block, *_: (reads.append(block.path), time.sleep(0.5)))
    caplog.set_level(logging.INFO, "edgekv")
    with serve(tiny, store=store) as server:
        ask(server, apart(4))
        first = ask(server, apart(1))  # the rate is not known yet
        n_reads = len(reads)
        assert n_reads >= 3 and n_read(first) <= 2 and "are computed: by measured speeds" not in caplog.text
        second = ask(server, apart(2))
        assert len(reads) == n_reads and n_read(second) >= 699
        assert "700 kept tokens of a prompt are computed: by measured speeds" in caplog.text and "from disk takes longer" in caplog.text
        assert n_read(ask(server, apart(1))) <= 2  # RAM does not crawl
    assert [first["tokens"], second["tokens"]] == computed
    monkeypatch.setattr("edgekv.server.prefixes.native.reading_s", lambda first, n: n * 1.0)
    with serve(tiny, store=store) as server:
        assert all(n_read(ask(server, apart(seed))) <= 2 for seed in (1, 2)), "the place is as slow, and prompts take longer still"
