"""There is no memory left: a hook or a call fails with a sentence, stock llama.cpp takes the place of our nodes, and the process lives on."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from support.contexts import Context, attached

from edgekv._native import core, paging, testing, token_rows
from edgekv.common.errors import EdgeKVError
from edgekv.config import KvOptions

import llama_cpp


@pytest.fixture(autouse=True)
def memory_again():
    yield
    testing.throw_in(0)


def decoded(context: Context) -> int:
    """The status of one more token: 0 where it was decoded."""
    found = context.status([8], [3], [[0]])
    if found == 0:
        llama_cpp.llama_memory_seq_rm(context.memory, 0, 3, -1)
    return found


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
        for call, given in ((token_rows.set_prompts, [1, 2]), (paging.limit_arena, 0)):
            testing.throw_in(1)
            with pytest.raises(EdgeKVError, match="there is no memory"):
                call(handle, given)
        token_rows.set_prompts(handle, [1, 2])
        context.decode([5], [0], [0])


@pytest.mark.parametrize("wrong", [[-1], [0, llama_cpp.llama_max_parallel_sequences()], [2**31 - 1]])
def test_prompts_of_sequences_that_cannot_be_are_refused(synthetic, wrong):
    with attached(synthetic("llama"), KvOptions(mode="sparse"), n_ctx=256, n_seq=4) as (context, _):
        with pytest.raises(EdgeKVError, match="there is no sequence"):
            token_rows.set_prompts(core.find(context.address), wrong)
        context.decode([5], [0], [0])


SCRIPT = textwrap.dedent("""
    import json, logging, resource, sys
    import numpy as np
    from pathlib import Path

    sys.path.insert(0, sys.argv[2])
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(message)s")
    from support.contexts import attached

    from edgekv.cli.chat.kv_status import mode_text
    from edgekv.config import KvOptions
    N = 60000
    options = KvOptions(mode="sparse", exact_tokens=0, policy="none", sample_budget=100)
    with attached(Path(sys.argv[1]), options, n_ctx=65536, n_seq=1) as (context, run):
        run.tokens.place(0, 0, np.zeros(N, np.uint8))
        context.decode([300], [N], [0])
        said = [mode_text(run)]
        size = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmSize")) << 10
        resource.setrlimit(resource.RLIMIT_AS, (size + (3 << 20), resource.RLIM_INFINITY))
        context.decode([301 + i for i in range(16)], [N + 1 + i for i in range(16)], [0] * 16)
        said.append(mode_text(run))
        reasons = sorted({layer.reason for layer in run.layers})
        hooked = [layer.hooked for layer in run.layers]
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        context.decode([301 + i for i in range(16)], [N + 17 + i for i in range(16)], [0] * 16)
        said.append(mode_text(run))
        print(json.dumps({"said": said, "reasons": reasons, "hooked": hooked, "labels": run.cells.stream().labels[N:N + 33].tolist()}))
""")


def test_what_has_no_memory_says_so(synthetic, tmp_path):
    script = tmp_path / "refused.py"
    script.write_text(SCRIPT)
    model = synthetic("llama", n_ctx_train=65536)
    done = subprocess.run([sys.executable, str(script), str(model), str(Path(__file__).resolve().parent.parent)], capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    n = len(found["hooked"])
    assert found["said"] == ["sparse", f"sparse on 0 of {n} layers, no memory for {n}", "sparse"]
    assert not any(found["hooked"]) and found["reasons"] == ["there is no memory for its nodes; stock llama.cpp attends it until there is"]
    assert done.stderr.count(f"there is no memory for the nodes of {n} of {n} layers") == 1
    assert found["labels"] == [2] + [0] * 16 + [2] * 16, "what stock attends is exact, and labelled so"
