"""Mode sparse while things change: options, events, two thousand tokens, instruction sets."""

import os
import subprocess
import sys

import numpy as np
import psutil
import pytest
from support.decoding import kld
from support.events import SAMPLED, check, follow_events
from support.sparse import ALL, exact_and_its_spread, logits_of, open_model

from edgekv._native import core
from edgekv.common.errors import ConfigError


def test_everything_may_change_while_it_runs(synthetic):
    llama = open_model(synthetic("llama"), n_ctx=2048)
    options = llama.kv.options.with_(**SAMPLED)
    logits_of(llama, (1,) * 20, options)
    for changes in ({"sample_budget": 1e4}, {"mode": "off"}, {"mode": "sparse"},
                    {"policy": "lru", "prefetch": "rope"}, {"mode": "exact"}, {"exact_tokens": 900},
                    {"mode": "sparse", "error_every": 3, "keep_rows": True}, {"exact_tokens": 0, "recent_tokens": 0},
                    {"policy": "random", "prefetch": "previous"}, {"policy": "none"}):
        options = options.with_(**changes)
        llama.kv.configure(options)
        assert llama.kv.mode == options.mode and llama.kv.options == options
        for token in range(12):
            llama.eval([260 + token])
        check(llama.kv)
    exact, bound = exact_and_its_spread(llama, (1, 2, 1))
    assert kld(exact, logits_of(llama, (1, 2, 1), options.with_(**ALL))).max() < bound
    with pytest.raises(ConfigError, match="this context has pages of 16 tokens"):
        llama.kv.configure(options.with_(page_size=32))


@pytest.mark.parametrize(("unified", "page_tokens"), [(False, 16), (True, 48)])
def test_sketches_follow_every_event(synthetic, unified: bool, page_tokens: int):
    """Cells are removed, copied, shifted, saved and restored: sketches are always as if built anew."""
    compared, _ = follow_events(synthetic("llama"), 100 if unified else 30, unified, page_tokens)
    assert compared > 300


def test_two_thousand_tokens_without_drift(synthetic):
    llama = open_model(synthetic("llama"), n_ctx=3072, logits_all=False)
    options = llama.kv.options.with_(**SAMPLED | {"exact_tokens": 256})
    logits_of_nothing = np.random.default_rng(0).integers(260, 350, 800).tolist()
    llama.kv.configure(options)
    llama.eval(logits_of_nothing)
    process, sizes = psutil.Process(), []
    for i in range(2000):
        llama.eval([260 + i % 90])
        if i % 250 == 249:
            check(llama.kv)
            sizes.append((process.memory_info().rss, llama.kv.memory().extra_bytes))
    assert sizes[-1][0] - sizes[2][0] < 8 << 20, "the process grows"
    assert sizes[-1][1] - sizes[2][1] < 1 << 20, "the buffers grow"
    seen = llama.kv.selection()
    assert 0.05 < seen.attended < 0.25 and seen.n_selections == 2000 * 4


def test_every_instruction_set_gives_the_same_answers(synthetic, tmp_path):
    """With everything read: other rounding draws another sample."""
    script = ("import sys, numpy as np, edgekv; llama = edgekv.Llama(sys.argv[1], kv='sparse', n_ctx=1024, verbose=False, logits_all=True); "
              "llama.kv.configure(llama.kv.options.with_(sample_budget=1e9, exact_tokens=0)); "
              "rng = np.random.default_rng(0); llama.eval(rng.integers(260, 350, 600).tolist()); "
              "[llama.eval([int(t)]) for t in rng.integers(260, 350, 12)]; np.save(sys.argv[2], llama.scores[600:612])")
    logits = {}
    for isa in core.isa_available():
        path = tmp_path / f"{isa}.npy"
        subprocess.run([sys.executable, "-c", script, str(synthetic("llama", dtype="f32")), str(path)], env=os.environ | {"EDGEKV_ISA": isa}, check=True)
        logits[isa] = np.load(path)
        assert kld(logits["portable"], logits[isa]).max() < 1e-3
