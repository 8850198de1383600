"""Runs in the installed package, as a script: reads a prompt, decodes tokens, and keeps what the tests compare.

    decode_process.py --model FILE --mode off|exact|sparse --device cuda --prompt 4096 --steps 256 --out FILE.npz [--tokens FILE.npz] ...

Without --tokens each next token is the most likely one; with it, the tokens kept in that file are read, whatever this mode
thinks. Kept: `tokens` [step] that were decoded, `best` [step] the most likely next one, `gap` [step] its distance from the
second, and with --logits `logits` float32 [step, n_vocab]. """

import argparse
import sys
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser()
    for name in ("model", "out", "tokens"):
        parser.add_argument(f"--{name}", type=Path)
    for name in ("mode", "device"):
        parser.add_argument(f"--{name}", required=True)
    for name, default in (("prompt", 600), ("steps", 64), ("vram", None), ("seed", 0), ("check-every", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--type", default="f16")
    parser.add_argument("--text", action="store_true", help="a prompt of prose, not of random characters")
    parser.add_argument("--noflash", action="store_true")
    parser.add_argument("--logits", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    given = parser.parse_args()

    import numpy as np
    from opening import check, open_model  # beside this file

    from edgekv.common.errors import EdgeKVError
    from edgekv.measure.decoder import Decoder

    try:
        llama = open_model(given.model, given.device, given.mode, given.vram, given.prompt + given.steps + 64, type_k=given.type,
                           type_v=given.type, flash_attn=not given.noflash, verbose=given.verbose)
    except EdgeKVError as error:
        print(f"refused: {error}")
        return error.exit_code
    if given.text:
        from edgekv.bench.text import standard_text

        prompt = standard_text().tokens(llama, given.prompt)
    else:
        prompt = np.random.default_rng(given.seed).integers(260, min(350, llama.n_vocab()), given.prompt).tolist()
    decoder = Decoder(llama)
    for first in range(0, len(prompt), 2048):
        decoder.decode(prompt[first : first + 2048])
    forced = np.load(given.tokens)["tokens"] if given.tokens else None
    tokens, best, gap, kept = [], [], [], []
    logits = decoder.logits()
    print("== decode", flush=True)
    print("== decode", file=sys.stderr, flush=True)
    for step in range(given.steps):
        token = int(forced[step]) if forced is not None else int(logits.argmax())
        decoder.decode([token])
        logits = decoder.logits()
        top = np.partition(logits, -2)[-2:]
        tokens.append(token)
        best.append(int(logits.argmax()))
        gap.append(float(top.max() - top.min()))
        if given.logits:
            kept.append(logits)
        if given.check_every and (step + 1) % given.check_every == 0:
            check(llama.kv)
    runtime = llama.kv
    hooked = [layer.hooked for layer in runtime.layers]
    memory = runtime.memory()
    print(f"hooked {sum(hooked)} of {len(hooked)} layers; {runtime.stats.n_ubatches_hooked} steps; memory {memory}")
    np.savez(given.out, tokens=tokens, best=best, gap=gap, hooked=hooked, n_hooked=runtime.stats.n_ubatches_hooked,
             **({"logits": np.stack(kept)} if kept else {}))
    if given.mode != "off":
        check(runtime)
    decoder.close()
    llama.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
