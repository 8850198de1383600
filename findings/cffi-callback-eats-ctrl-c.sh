#!/usr/bin/env bash
# Ctrl-C that arrives while C code runs is raised inside the next cffi callback, printed there, and lost: the program goes on.
# Versions: cffi 2.0.0 and 1.17.1, CPython 3.11, Linux x86-64
# Behaviour: CPython runs a signal's handler at the next bytecode, which is the callback's first. cffi prints KeyboardInterrupt like any exception
#     ("From cffi
#     callback"), gives C the default result, and the call returns as if nothing had been; the caller's `except KeyboardInterrupt` is never reached.
#     onerror= gets (type, value, traceback) and can keep it, so that the caller raises it after the C call. The same for a TimeoutError of
#     signal.alarm.
# Seen (2026-11-28, either version):
#     lost without onerror: True as expected
#     kept by onerror: True as expected
# Exit code 1: the behaviour is another one now.
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
cd "$work"
cat > check.py <<'EOF'
import ctypes.util, signal, sys
import cffi
ffi = cffi.FFI()
ffi.cdef("void qsort(void *, size_t, size_t, int (*)(const void *, const void *)); int raise(int);")
c = ffi.dlopen(ctypes.util.find_library("c"))
signal.signal(signal.SIGINT, signal.default_int_handler)
def sort(onerror=None):
    calls = []
    @ffi.callback("int(const void *, const void *)", onerror=onerror)
    def compare(a, b):
        calls.append(1)
        if len(calls) == 1: c.raise_(signal.SIGINT) if hasattr(c, "raise_") else getattr(c, "raise")(signal.SIGINT)
        return 0
    numbers = ffi.new("int[64]")
    try: c.qsort(numbers, 64, 4, compare)
    except KeyboardInterrupt: return "raised", len(calls)
    return "went on", len(calls)
kept = []
lost, n = sort()
again, _ = sort(lambda kind, value, trace: kept.append(kind))
seen = {"lost without onerror": lost == "went on" and n > 1, "kept by onerror": again == "went on" and kept == [KeyboardInterrupt]}
for what, found in seen.items(): print(f"{what}: {found} {'as expected' if found else 'OTHERWISE'}")
sys.exit(not all(seen.values()))
EOF
for version in 2.0.0 1.17.1; do
    python3 -m venv "venv-$version"
    "venv-$version/bin/pip" install -q --no-cache-dir "cffi==$version"
    echo "cffi $version"; "venv-$version/bin/python" check.py 2>errors.txt || { tail -n 3 errors.txt; exit 1; }
done
