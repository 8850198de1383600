"""SIGKILL around saves, loads, moves between tiers and slots that change hands: `python tests/killed.py [--times N] [--seed S] [--model FILE]`.

Each time `edgekv serve` with a small RAM and a folder answers a conversation, and has written it; it is killed in the middle of an act, and another takes
its place. What was written comes back from the folder, no file is damaged, no temporary file stays, and each answer is that of a server that keeps nothing.
"""

import argparse
import contextlib
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from http.client import HTTPException
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
sys.path[:] = [str(ROOT / "tests"), *(entry for entry in sys.path if Path(entry or ".").resolve() != ROOT)]

from prometheus_client.parser import text_string_to_metric_families  # noqa: E402
from support.clients import post, until  # noqa: E402
from support.serve_process import Served, serving  # noqa: E402

from edgekv.models import synth  # noqa: E402
from edgekv.prefix_cache.blocks import BLOCK_TOKENS  # noqa: E402
from edgekv.prefix_cache.files import scan  # noqa: E402
from edgekv.prefix_cache.listing import fault_of  # noqa: E402

N_PROMPT, N_ANSWER, N_SLOTS = 3000, 16, 2
LOAD_S, WRITE_S, AFTER_S = 0.3, 0.02, 2.0
"""Seconds that a load and the write of a block take at most, and those after which nothing is written any more."""

ACTS = {"save": "a new conversation is read and saved", "load": "the written one comes back after a restart",
        "move": "RAM has room for one, so others push it out", "takeover": "three conversations take two slots from each other"}


class Round:
    """One server after the other on a folder; answers are compared with those that `plain` gave."""

    def __init__(self, model: Path, home: Path, random: Random, plain: Served):
        self._model, self._home, self._random, self._plain = model, home, random, plain
        self._folder = home / "prefixes"
        self._expected: dict[tuple[int, ...], tuple[str, str]] = {}

    def play(self, act: str) -> dict:
        """What was killed and what came back. Raises AssertionError."""
        written, others = self._new(), [self._new() for _ in range({"save": 1, "load": 0}.get(act, 2))]
        with self._server() as server:
            before = self._n_blocks()
            self._same(server, written)
            until(lambda: self._n_blocks() >= before + len(written) // BLOCK_TOKENS)
            if act != "load":
                row = self._kill_during(server, act, [written] * (act == "takeover") + others)
        if act == "load":
            with self._server() as server:
                row = self._kill_during(server, act, [written])
        temporaries = len(list(self._folder.rglob(".tmp-*")))
        damaged = [one.path.name for one in scan(self._folder) if fault_of(one)]
        assert not damaged, f"damaged files after the kill: {damaged}"
        with self._server() as server:
            assert not list(self._folder.rglob(".tmp-*")), "a temporary file stays"
            found = self._same(server, written)
            assert found["disk"] >= len(written) // BLOCK_TOKENS * BLOCK_TOKENS, f"written tokens are lost: {found}"
            partly = sum(self._same(server, one)["disk"] for one in others)
            refused = [sample for family in text_string_to_metric_families(server.ask("/metrics").text) for sample in family.samples
                       if sample.name == "edgekv_store_refused_total" and sample.value]
            assert not refused, f"blocks were refused: {refused}"
        return row | {"temporary files": temporaries, "back": found["disk"], "of others": f"{partly} of {sum(map(len, others))}"}

    def _kill_during(self, server: Served, act: str, prompts: Sequence[list[int]]) -> dict:
        """Kill it when so many blocks are written, or the last answer has come, and a moment later."""
        n_before, done = self._n_blocks(), []
        most = 0 if act == "load" else self._random.randint(1, 2 * N_PROMPT // BLOCK_TOKENS) // (2 if act == "save" else 1)
        moment = self._random.uniform(0, LOAD_S if act == "load" else WRITE_S)

        def work() -> None:
            for number, one in enumerate(prompts * (2 if act == "takeover" else 1)):
                with contextlib.suppress(OSError, HTTPException):  # killed
                    done.append(_ask(server, one, **({"id_slot": number % N_SLOTS} if act == "takeover" else {})))

        client = threading.Thread(target=work)
        client.start()
        end = time.monotonic() + AFTER_S
        while self._n_blocks() < n_before + most and time.monotonic() < end:
            end = time.monotonic() + AFTER_S if client.is_alive() else end
            time.sleep(0.002)
        time.sleep(moment)
        server.process.kill()
        server.process.wait()
        client.join()
        return {"act": act, "answers": len(done), "new blocks": self._n_blocks() - n_before}

    def _server(self) -> AbstractContextManager[Served]:
        return serving(self._home, str(self._model), "--ctx", "4096", "--kv", "exact", "--parallel", str(N_SLOTS), "--cache-ram", "28MiB",
                       "--cache-dir", str(self._folder))

    def _new(self) -> list[int]:
        return [1, *(self._random.randrange(260, 320) for _ in range(N_PROMPT - 1))]

    def _expect(self, prompt: list[int]) -> tuple[str, str]:
        """The answers of a server that keeps nothing: to the prompt read whole, and to its last token read alone behind the others in their slot. Kernels
        of a prompt may round in another way than those of one token do."""
        if tuple(prompt) not in self._expected:
            whole, _ = _ask(self._plain, prompt, cache_prompt=False)  # which leaves nothing to go on from
            _, (alone, found) = _ask(self._plain, prompt), _ask(self._plain, prompt)
            assert found["slot"] == len(prompt), f"the slot that answered does not have the prompt: {found}"
            self._expected[tuple(prompt)] = whole, alone
        return self._expected[tuple(prompt)]

    def _same(self, server: Served, prompt: list[int]) -> dict:
        answer, found = _ask(server, prompt)
        assert answer == self._expect(prompt)[sum(found.values()) == len(prompt)], f"another answer, with {found}"
        return found

    def _n_blocks(self) -> int:
        return len(list(self._folder.rglob("*.kv")))


def _ask(server: Served, prompt: list[int], **more) -> tuple[str, dict]:
    """An answer, and where the prompt's tokens came from."""
    body = post(server.url, "/v1/completions", {"prompt": prompt, "max_tokens": N_ANSWER, "temperature": 0, "ignore_eos": True} | more)
    return body["choices"][0]["text"], body["usage"]["edgekv"]["cached_tokens"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tests/killed.py", description="SIGKILL around saves, loads, moves and slots that change hands.")
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", type=Path, help="instead of a tiny one whose tokens have 8 KiB of K and V")
    given = parser.parse_args()
    failed = 0
    with TemporaryDirectory() as name:
        home = Path(name)
        model = given.model or synth.write("llama", home / "tiny.gguf", n_layer=2, n_head=8, n_head_kv=8, head_dim=128)
        with serving(home, str(model), "--ctx", "4096", "--kv", "exact", "--cache-ram", "0") as plain:
            for number in range(given.times):
                act = list(ACTS)[number % len(ACTS)]
                try:
                    row = Round(model, home, Random(f"{given.seed} {number}"), plain).play(act)
                    print(number + 1, *(f"{key}: {value}" for key, value in row.items()), sep="; ", flush=True)
                except AssertionError as error:
                    failed += 1
                    print(f"{number + 1}; act: {act}; FAILED: {error}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
