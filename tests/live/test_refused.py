"""Stock llama.cpp attends where there is no memory for our nodes: the report, the log and the chat's footer say so, until memory is free
again."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

SCRIPT = textwrap.dedent("""
    import json, logging, resource, sys
    from pathlib import Path

    sys.path.insert(0, sys.argv[2])
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(message)s")
    from support.contexts import attached

    from edgekv.cli.chat.kv_status import mode_text
    from edgekv.config import KvOptions
    N = 60000
    options = KvOptions(mode="sparse", exact_tokens=0, policy="none", kv_budget=0, resolution=100)
    with attached(Path(sys.argv[1]), options, n_ctx=65536, n_seq=1) as (context, run):
        run.tokens.place(0, 0, N, 0)
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
    assert not any(found["hooked"]) and found["reasons"] == ["there is no memory for what attends it; stock llama.cpp does until there is"]
    assert done.stderr.count(f"there is no memory for what attends {n} of {n} layers") == 1
    assert found["labels"] == [2] + [0] * 16 + [2] * 16, "what stock attends is exact, and labelled so"
