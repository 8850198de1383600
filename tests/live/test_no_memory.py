"""A hook or a call finds no memory: the ubatch fails with a sentence, and the process lives on."""

from __future__ import annotations

import pytest
from support.contexts import Context, attached

from edgekv._native import core, testing, token_rows
from edgekv.config import KvOptions
from edgekv.errors import EdgeKVError

import llama_cpp


@pytest.fixture(autouse=True)
def memory_again():
    yield
    testing.throw_in(0)


def decoded(context: Context) -> int:
    """The status of one more token: 0 where it was decoded."""
    try:
        context.decode([8], [3], [0])
    except AssertionError as error:
        if "llama_decode returned" not in str(error):
            raise
        return 1
    llama_cpp.llama_memory_seq_rm(context.memory, 0, 3, -1)
    return 0


@pytest.mark.parametrize("mode", ["exact", "sparse"])
def test_a_hook_that_finds_none_fails_its_ubatch(synthetic, mode):
    """Each hook of a token fails in turn; the last turns come after all of them."""
    path, n_failed, n_served = synthetic("llama", n_layer=2), 0, 0
    for n in (*range(1, 9), 12, 24, 60):
        with attached(path, KvOptions(mode=mode), n_ctx=256, n_seq=1) as (context, _):
            context.decode([5, 6, 7], [0, 1, 2], [0, 0, 0])
            testing.throw_in(n)
            status = decoded(context)
            testing.throw_in(0)
            n_served, n_failed = n_served + (status == 0), n_failed + (status != 0)
            assert (decoded(context) == 0) == (status == 0), "for good"
    assert n_failed >= 6 and n_served >= 1


def test_a_call_that_finds_none_says_so(synthetic):
    with attached(synthetic("llama"), KvOptions(mode="exact"), n_ctx=256, n_seq=4) as (context, _):
        handle = core.find(context.address)
        testing.throw_in(1)
        with pytest.raises(EdgeKVError, match="no memory"):
            token_rows.set_prompts(handle, [1, 2])
        token_rows.set_prompts(handle, [1, 2])
        context.decode([5], [0], [0])


@pytest.mark.parametrize("wrong", [[-1], [0, 1 << 20], [2**31 - 1]])
def test_prompts_of_sequences_that_cannot_be_are_refused(synthetic, wrong):
    with attached(synthetic("llama"), KvOptions(mode="sparse"), n_ctx=256, n_seq=4) as (context, _):
        with pytest.raises(EdgeKVError, match="there is no sequence"):
            token_rows.set_prompts(core.find(context.address), wrong)
        context.decode([5], [0], [0])
