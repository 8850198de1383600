"""Rows of a model with an index leave with its keys, which lie in a cache of their own: of every kind of memory that has both."""

import numpy as np
import pytest
from architectures.making import Maker, NotMadeError, compile_maker
from support.contexts import attached
from support.held_rows import BLOCK, all_rows, hold_blocks, leave, rows

from edgekv._native.token_rows import HeldTokens
from edgekv.config import KvOptions

N = 4096
KINDS = ("qwen4exp", "deepseek32", "dots3note", "minimax-m3")
"""Their memories: a state beside the rows, rows alone, windows, blocks of keys."""


@pytest.fixture(scope="module")
def maker(upstream, tmp_path_factory) -> Maker:
    try:
        return compile_maker(tmp_path_factory.mktemp("maker"), upstream)
    except NotMadeError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("parks", [True, False], ids=["parked", "asked for"])
@pytest.mark.parametrize("kind", KINDS)
def test_keys_of_an_index_stay_with_the_rows(maker, tmp_path, monkeypatch, kind, parks):
    """Whichever cache loses its tokens first."""
    monkeypatch.setattr(HeldTokens, "parks", parks)
    maker.write(kind, tmp_path / "model.gguf")
    with attached(tmp_path / "model.gguf", KvOptions(mode="exact"), n_ctx=2 * N, n_seq=1, unified=False) as (context, run):
        tokens = np.random.default_rng(7).integers(5, 100, N).tolist()
        for at in range(0, N, 512):
            context.decode(tokens[at : at + 512], list(range(at, at + 512)), [0] * 512)
        held, seen = hold_blocks(run, N), dict[HeldTokens, tuple[bytes, bool]]()
        try:
            before = all_rows(run, held, n=N)

            def needed(one: HeldTokens) -> None:
                seen[one] = rows(run, one, BLOCK), one.parked
                one.release()

            for one in held:
                one.needed = lambda *_, one=one: needed(one)
            leave(context)
            assert [seen[one] for one in held] == [(one, parks) for one in before]
        finally:
            for one in held:
                one.release()
