"""A server takes sampled answers of a server that samples alike; all others read them again."""

from __future__ import annotations

import numpy as np
import pytest
from support.kept import SPARSE, ask, conversation, serve, sources

from edgekv.live.cells import EARLIER, SAMPLED
from edgekv.store.settings import StoreSettings

N_WHOLE = 512
"""Tokens of the prompt's whole blocks; prompts are read exactly."""


OTHERS = {"resolution": {"resolution": 20.0}, "sinks": {"sink_tokens": 32}, "newest": {"recent_tokens": 32}, "whole": {"exact_tokens": 320},
          "policy": {"policy": "ema"}, "sketch": {"sketch": "none", "resolution": 2000.0}}


@pytest.mark.parametrize("name", OTHERS)
def test_what_was_sampled_with_other_settings_is_not_taken(tiny, tmp_path, name):
    where, prompt = StoreSettings(folder=tmp_path), conversation(3, 600)
    with serve(tiny, SPARSE, where) as server:
        longer = [*prompt, *ask(server, prompt, 30)["tokens"][:-1]]
        server.prefixes.flush()
    with serve(tiny, SPARSE | OTHERS[name], where) as server:
        assert sources(server, longer)["disk"] == N_WHOLE
    with serve(tiny, SPARSE | {"error_every": 0}, where) as server:  # which changes what is reported
        assert sources(server, longer)["disk"] == len(longer)


def test_sparse_prompts_have_a_resolution_too(tiny, tmp_path):
    where, prompt = StoreSettings(folder=tmp_path), conversation(4, 2600)
    sparse = SPARSE | {"prompts": "sparse", "prompt_resolution": 20.0}

    def found(kv: dict) -> int:
        with serve(tiny, kv, where, n_ctx=4096) as server:
            n = sources(server, prompt)["disk"]
            server.prefixes.flush()
            return n

    assert found(sparse) == 0
    n_finer = found(sparse | {"prompt_resolution": 30.0})
    assert n_finer < len(prompt)
    assert found(sparse) == len(prompt)
    assert found(SPARSE) == n_finer < 2304  # what attended all that it saw


def test_what_was_sampled_before_the_settings_changed_is_not_kept(tiny, tmp_path):
    """The settings can change while the server runs; cells do not tell with which settings they were sampled."""
    where, prompt = StoreSettings(folder=tmp_path), conversation(5, 600)
    with serve(tiny, SPARSE, where, n_slots=1) as server:
        runtime = server.runtime
        longer = [*prompt, *ask(server, prompt, 300)["tokens"][:-1]]
        sampled = runtime.cells.stream().labels & SAMPLED != 0
        assert sampled.sum() >= 250
        runtime.configure(runtime.options.with_(error_every=16))
        assert not (runtime.cells.stream().labels & EARLIER).any()
        runtime.configure(runtime.options.with_(resolution=2000.0))
        assert np.array_equal(runtime.cells.stream().labels & EARLIER != 0, sampled)
        ask(server, longer, 4)
        server.prefixes.flush()
    with serve(tiny, SPARSE | {"resolution": 2000.0}, where) as server:
        assert sources(server, longer)["disk"] == len(prompt)
