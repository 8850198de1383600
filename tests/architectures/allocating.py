"""Compares what `edgekv plan` says of one model after the other with what llama.cpp logs when it allocates: a process of its own, as measuring.py is."""

import json
import logging
import sys
from pathlib import Path

if __name__ == "__main__":  # support is a package of tests
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from support.headers import MIB, PARTS, allocated

from edgekv.common.errors import EdgeKVError, ModelError
from edgekv.config import KvOptions
from edgekv.models.geometry import open_model
from edgekv.planning.allocations import ContextRequest, Slots, host_parts

N_CTX = 5000
CONTEXTS = [(n_seq, unified, kind) for n_seq, unified in ((1, False), (4, False), (4, True)) for kind in (("f16", 1), ("q8_0", 8))]


def compare(path: Path) -> dict:
    """`refused`: why EdgeKV does not plan a model that llama.cpp takes. Otherwise `contexts`, how many there were; `refusals`, how many of them both
    refuse; `wrong`, in words; `off`: by what share each part was off at most, beyond the log's rounding."""
    found = {"contexts": len(CONTEXTS), "refusals": 0, "wrong": [], "off": dict.fromkeys(PARTS, 0.0)}
    try:
        model = open_model(path)
    except ModelError as error:
        if any(allocated(path, N_CTX, n_seq, unified, number) for n_seq, unified, (_, number) in CONTEXTS):
            return {"refused": str(error).replace(str(path), "the file")}
        return found | {"refusals": len(CONTEXTS)}
    for n_seq, unified, (kind, number) in CONTEXTS:
        what = f"{n_seq} slots{', unified' * unified}, {kind}"
        made = allocated(path, N_CTX, n_seq, unified, number)
        kv = KvOptions(mode="off", attention_device="cpu", type_k=kind, type_v=kind)
        try:
            planned = {part.name: part.bytes / MIB for part in host_parts(ContextRequest(model, kv, N_CTX, Slots(n_seq, unified), 1 << 40), N_CTX, kv)}
        except EdgeKVError as error:
            found["refusals"] += made is None
            found["wrong"] += [f"{what}: {error}"] * (made is not None)
            continue
        if made is None:
            found["wrong"].append(f"{what}: llama.cpp refuses it")
            continue
        for part, (mib, rounding) in made.items():
            apart = max(0.0, abs(planned.get(part, 0.0) - mib) - rounding - 1e-6)
            found["off"][part] = max(found["off"][part], apart / max(mib, rounding, 1e-6))
            if apart > (0.0 if part == "KV home" else 0.03 * mib):
                found["wrong"].append(f"{what}: {part} is {mib:.2f} MiB, and the plan says {planned.get(part, 0.0):.2f}")
    return found


def main() -> None:
    logging.getLogger("edgekv").setLevel(logging.INFO)
    for line in sys.stdin:
        architecture, path = json.loads(line)
        print(json.dumps({"architecture": architecture} | compare(Path(path))), flush=True)


if __name__ == "__main__":
    main()
