#!/usr/bin/env bash
# CuPy without a driver imports, compiles kernels into objects, and raises when its empty memory pool is freed.
# Versions: cupy-cuda12x 14.2.0
# Behaviour: import, is_available() (False), RawKernel(...), get_default_pinned_memory_pool().free_all_blocks() work;
#     get_default_memory_pool().free_all_blocks() and used_bytes() raise CUDARuntimeError.
# Seen (2026-11-27, Linux x86-64, CPython 3.11, CPU only):
#     14.2.0 ['CUDARuntimeError', 'CUDARuntimeError', 'CUDARuntimeError', 'None', "'RawKernel'"] as expected
# Exit code 1: the behaviour is another one now. Exit code 1 too where there is a GPU.
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
cd "$work"; python3 -m venv venv
venv/bin/pip install -q cupy-cuda12x==14.2.0
cat > check.py <<'EOF'
import sys
import cupy
def outcome(call):
    try: return repr(call())
    except Exception as error: return type(error).__name__
if cupy.cuda.is_available(): sys.exit("this machine has a GPU: nothing to see here")
pool, pinned = cupy.get_default_memory_pool(), cupy.get_default_pinned_memory_pool()
found = [outcome(c) for c in (cupy.cuda.runtime.getDeviceCount, pool.used_bytes, pool.free_all_blocks, pinned.free_all_blocks, lambda: type(cupy.RawKernel('extern "C" __global__ void f() {}', "f")).__name__)]
expected = ["CUDARuntimeError"] * 3 + ["None", "'RawKernel'"]
print(cupy.__version__, found, "as expected" if found == expected else f"CHANGED, was {expected}"); sys.exit(found != expected)
EOF
venv/bin/python check.py
