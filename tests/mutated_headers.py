"""Mutated headers of tiny models in `edgekv models show` and `edgekv plan`: `python tests/mutated_headers.py [--count N] [--seed S]`.

Each file is described, or refused in one sentence with exit code 3. llama.cpp may end its own process over it; ours ends by no signal and no exception,
computes for less than MOST_S, and has less than MOST_BYTES of memory.
"""

import argparse
import contextlib
import io
import json
import os
import resource
import select
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

MOST_S, MOST_BYTES = 10.0, 1 << 30
KINDS = ("llama", "gemma2", "gpt-oss", "lfm2", "mamba", "deepseek2", "deepseek32")
NUMBERS = (0, 1, 2, 7, 31, 255, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1, (1 << 64) - 1)
"""What a count or a size may become."""

_HANGS_S = 120.0


def mutate(header: bytes, random: Random) -> bytes:
    """Bits flipped, numbers replaced, bytes lost or doubled, or the end cut off."""
    mutated = bytearray(header)
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        at, kind = random.randrange(8, max(9, len(mutated))), random.random()
        if kind < 0.4:
            mutated[at : at + 1] = (bytes(mutated[at : at + 1])[0] ^ 1 << random.randrange(8)).to_bytes(1, "little")
        elif kind < 0.8:
            width = random.choice((4, 8))
            mutated[at : at + width] = (random.choice(NUMBERS) % (1 << 8 * width)).to_bytes(width, "little")
        elif kind < 0.95:
            n = random.choice((1, 4, 8, 32))
            mutated[at : at + n] = mutated[at : at + n] * random.choice((0, 2))
        else:
            del mutated[at + 1 :]
    return bytes(mutated)


def mutants(folder: Path, count: int, seed: int) -> Iterator[Path]:
    """One file after the other, in the same place."""
    from edgekv.models import synth
    from edgekv.models.reader import open_gguf

    whole = []
    for kind in KINDS:
        path = synth.write(kind, folder / f"{kind}.gguf")
        n_header = min(tensor.end - tensor.n_bytes for tensor in open_gguf(path).tensor_infos)
        whole.append((path.read_bytes()[:n_header], path.read_bytes()[n_header:]))
    for number in range(count):
        random = Random(f"{seed} {number}")
        header, weights = random.choice(whole)
        path = folder / f"mutant-{number}.gguf"
        path.write_bytes(mutate(header, random) + weights)
        yield path
        path.unlink()


class Subject:
    """A process that runs both commands on each file that it is told; another takes its place where it ends."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._process = self._start()

    def try_on(self, path: Path) -> dict:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{path}\n")
        self._process.stdin.flush()
        if select.select([self._process.stdout], [], [], _HANGS_S)[0] and (line := self._process.stdout.readline()):
            return json.loads(line)
        self._process.kill()
        code, self._process = self._process.wait(), self._start()
        return {"fault": "hangs" if code == -9 else f"ends with {code}"}

    def _start(self) -> subprocess.Popen:
        return subprocess.Popen([sys.executable, __file__, "--subject"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                env={**os.environ, "XDG_CACHE_HOME": str(self._folder / "cache"), "GGML_NO_BACKTRACE": "1"})

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def run(count: int, seed: int) -> tuple[Counter, list[str]]:
    """How many files were described, refused, or ended llama.cpp's process; and our faults, with the numbers of the files."""
    outcomes: Counter = Counter()
    with tempfile.TemporaryDirectory() as name, contextlib.closing(Subject(Path(name))) as subject:
        found = [subject.try_on(path) for path in mutants(Path(name), count, seed)]
    outcomes.update(one.get("outcome", "fault") for one in found)
    return outcomes, [f"{number}: {one['fault']}" for number, one in enumerate(found) if "fault" in one]


# ---- in the process -------------------------------------------------------------------------------------------------------------


def _both(path: str) -> dict:
    outcomes = []
    for command in (["models", "show", path, "--json"], ["plan", path, "--json", "--attention-device", "cpu"]):
        began = time.process_time()
        outcomes.append(_one(command))
        if (seconds := time.process_time() - began) > MOST_S:
            outcomes.append(f"fault: computes for {seconds:.1f} s")
        if (peak := resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024) > MOST_BYTES:
            outcomes.append(f"fault: takes {peak / 2**20:.0f} MiB")
    fault = next((one for one in outcomes if one.startswith("fault")), None)
    return {"fault": fault} if fault else {"outcome": outcomes[0]}


def _one(command: list[str]) -> str:
    from edgekv.cli.main import cli
    from edgekv.common.errors import EXIT_DOES_NOT_FIT, EXIT_OK, EdgeKVError, ModelError

    with contextlib.redirect_stdout(io.StringIO()):
        try:
            code = cli.main(command, prog_name="edgekv", standalone_mode=False) or EXIT_OK
            return "described" if code in (EXIT_OK, EXIT_DOES_NOT_FIT) else f"fault: {command[0]} ends with {code}"
        except ModelError as error:
            if "\n" in str(error) or not str(error).isprintable():
                return f"fault: {command[0]} says {error!s}"
            return "ends llama.cpp" if "the process that opens the header" in str(error) else "refused"
        except EdgeKVError as error:
            return f"fault: {command[0]} ends with {error.exit_code}: {error}"
        except Exception as error:
            return f"fault: {command[0]} raises {error!r}"


def _subject() -> None:
    from edgekv.common.errors import EdgeKVError
    from edgekv.measure import planned

    def not_measured(*_: object) -> None:
        raise EdgeKVError("not measured")

    planned.measured_rates = not_measured  # a file's shape would be timed for seconds
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        print(json.dumps(_both(line.rstrip("\n"))), file=answers, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tests/mutated_headers.py", description="Mutated headers in `models show` and `plan`.")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--subject", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.subject:
        _subject()
        return 0
    outcomes, faults = run(given.count, given.seed)
    print("\n".join(faults))
    print(", ".join(f"{name}: {n}" for name, n in outcomes.most_common()))
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
