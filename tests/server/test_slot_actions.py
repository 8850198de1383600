"""A slot's actions in every mode: conversations take turns, are saved, restored and erased, lose their middle and outgrow their context.
The answers are those of mode off under the same actions."""

import contextlib
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.arithmetic import of_stock
from support.clients import Stream, post, send, until

from edgekv import _native
from edgekv.config import KvOptions
from edgekv.prefix_cache.settings import StoreSettings
from edgekv.server.server import Server, ServerOptions

MODES = {
    "off": {"mode": "off"},
    "exact": {"mode": "exact"},
    "sparse": {"mode": "sparse", "exact_tokens": 0, "sample_budget": 1e9},  # a sample that holds every row
}
N_SLOTS = 2


class Clients:
    """Four conversations on two slots. Every answer repeats one token, whatever the model prefers; `found` has the best token's
    log-probability at each step."""

    def __init__(self, server: Server, seed: int):
        self.server, self.rng = server, np.random.default_rng(seed)
        self.held: list[list[int]] = [[1] for _ in range(4)]
        self.found: list[float] = []
        self.n_reused: list[int] = []

    def post(self, path: str, body: dict) -> dict:
        return post(self.server.url, path, body)

    def ask(self, who: int, prompt: list[int], **more: object) -> None:
        body = {"prompt": prompt, "n_predict": 5, "temperature": 0, "return_tokens": True, "ignore_eos": True, "id_slot": who % N_SLOTS,
                "logit_bias": [[301, 1e4]], "n_probs": 1, **more}
        answer = self.post("/completion", body)
        assert set(answer["tokens"]) == {301}, "the bias did not choose the token"
        self.found += [step["top_logprobs"][0]["logprob"] for step in answer["completion_probabilities"]]
        self.n_reused.append(answer["timings"]["cache_n"])
        self.held[who] = [*prompt, *answer["tokens"][:-1]]

    def grow(self, who: int) -> None:
        self.ask(who, [*self.held[who], *self.rng.integers(260, 320, int(self.rng.integers(20, 60))).tolist()])

    def lose_the_middle(self, who: int) -> None:
        held = self.held[who]
        if len(held) > 120:  # the tokens behind move to their new places
            self.ask(who, held[:40] + held[70:], n_cache_reuse=16)

    def save_and_restore(self, who: int) -> None:
        slot = who % N_SLOTS
        self.post(f"/slots/{slot}?action=save", {"filename": "one.bin"})
        self.post(f"/slots/{slot}?action=erase", {})
        self.post(f"/slots/{slot}?action=restore", {"filename": "one.bin"})
        self.grow(who)

    def outgrow(self, who: int) -> None:
        self.ask(who, self.held[who][:300], n_predict=250, n_keep=20)
        self.held[who] = self.held[who][:100]


def play(model: Path, mode: str, folder: Path, seed: int, store: StoreSettings | None = None, flash_attn: str = "on",
         cache: str = "--kv-unified") -> Clients:
    options = ServerOptions(model, kv=KvOptions(**MODES[mode]), n_ctx=512, n_threads=1, n_slots=N_SLOTS, store=store, extra=(
        "--slot-save-path", str(folder), "--context-shift", "--cache-reuse", "16", "--flash-attn", flash_attn, cache))
    with Server(options) as server:
        clients = Clients(server, seed)
        for _ in range(24):
            who = int(clients.rng.integers(4))
            if len(clients.held[who]) > 380:
                clients.held[who] = clients.held[who][:60]
            act = clients.rng.choice([clients.grow] * 5 + [clients.lose_the_middle, clients.save_and_restore, clients.outgrow])
            act(who)
        return clients


def check_alike(one: Clients, other: Clients, apart: float) -> None:
    assert one.n_reused == other.n_reused, "prompts reused different numbers of tokens"
    assert sum(one.n_reused) > 500, "too few tokens were reused for a comparison"
    np.testing.assert_allclose(other.found, one.found, rtol=0, atol=apart, err_msg="log-probabilities")


def stock_apart(plain: Clients, flash: Clients) -> float:
    """The distance of stock's own two kernels: without flash attention it sums in single precision, as our kernels do."""
    return float(np.abs(np.subtract(plain.found, flash.found)).max())


@pytest.mark.parametrize(("seed", "cache"), [(0, "--kv-unified"), (1, "--no-kv-unified")])
def test_every_mode_answers_as_mode_off_does(synthetic, tmp_path, seed: int, cache: str):
    model = synthetic("llama", n_head=6, dtype="f32")
    off = play(model, "off", tmp_path, seed, flash_attn="off", cache=cache)
    bound = of_stock(_native.isa(), stock_apart(off, play(model, "off", tmp_path, seed, cache=cache)))
    for mode in ("exact", "sparse"):
        check_alike(off, play(model, mode, tmp_path, seed, cache=cache), bound)


def test_modes_agree_with_a_store_too(synthetic, tmp_path):
    """A server with a store finds more, and rows computed for their own place take the place of moved ones."""
    model = synthetic("llama", n_head=6, dtype="f32")
    exact = play(model, "exact", tmp_path, 3, StoreSettings())
    check_alike(exact, play(model, "sparse", tmp_path, 3, StoreSettings()), apart=1e-3)
    check_alike(exact, play(model, "off", tmp_path, 3, StoreSettings()), apart=0.15)


@pytest.mark.parametrize(("n_slots", "path", "body"), [
    (1, "/slots/0?action=erase", {}), (2, "/slots/1?action=erase", {}), (2, "/completion", {"id_slot": 0}), (2, "/completion", {"n_cmpl": 2}),
], ids=["an action", "an action beside an answer", "who wants the other slot", "who wants both"])
def test_who_waits_behind_one_that_takes_no_slot_gets_its_turn(synthetic, tmp_path, n_slots: int, path: str, body: dict):
    """A slot becomes free, which upstream tells to one that waits, here the first."""
    with Server(ServerOptions(synthetic("llama"), n_ctx=2048 * n_slots, n_threads=1, n_slots=n_slots,
                              extra=("--slot-save-path", str(tmp_path), "--no-kv-unified", "--context-shift"))) as server, contextlib.ExitStack() as stack:
        def waiting() -> int:
            return sum(sample.value for family in text_string_to_metric_families(send(server.url, "/metrics").text) for sample in family.samples
                       if sample.name == "llamacpp:requests_deferred")

        def later(path: str, body: dict) -> Future[dict]:
            n = waiting()
            answer = pool.submit(post, server.url, path, {"prompt": [1, 300 + n], "n_predict": 2} | body)
            until(lambda: waiting() == n + 1)
            return answer

        pool = stack.enter_context(ThreadPoolExecutor(3))
        endless = [stack.enter_context(contextlib.closing(Stream(server.url, {"prompt": [1, 300], "n_predict": -1, "ignore_eos": True, "id_slot": slot},
                                                                 "/completion"))) for slot in range(n_slots)]
        assert all(one.event() for one in endless)
        first, *answers = [later(path, body), later("/completion", {}), later("/completion", {})]
        endless[-1].close()
        assert [answer.result(60)["stop"] for answer in answers] == [True, True]
        endless[0].close()
        assert first.result(60)
