"""Servers under the load of several clients: what is counted, and what is said of servers that cannot be measured."""

import json
import re
import signal
import subprocess
from contextlib import closing, nullcontext

import pytest
from click.testing import CliRunner
from support.clients import until
from support.local_server import exposed
from support.paper import DONE, PaperServer
from support.serve_process import EDGEKV

from edgekv.bench.clients import Answered, Endpoint, Load, LoadPart, prompts_for
from edgekv.bench.serve import ServeBench, run
from edgekv.cli.bench_serve import sentence
from edgekv.cli.main import cli
from edgekv.common.errors import EXIT_USAGE, ConfigError, EdgeKVError
from edgekv.config import KvOptions
from edgekv.server.server import Server, ServerOptions

TEXT = " ".join(f"word{i % 40}" for i in range(4000))


def test_what_a_part_counts():
    """Two clients; both answer from 2.0 to 4.0."""
    one, two = Answered(0.0, [1.0, 2.0, 3.0, 4.0]), Answered(0.5, [2.0, 2.5, 3.5, 4.5, 6.5])
    part = LoadPart((one, two))
    assert part.seconds == 6.5
    assert part.tokens_per_second == (2 + 2) / 2.0
    assert part.first_tokens.tolist() == [1.0, 1.5]
    assert sorted(part.gaps.tolist()) == [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0]
    assert LoadPart((Answered(0.0, [1.0]), Answered(0.0, [2.0]))).tokens_per_second is None


@pytest.mark.parametrize(("arrivals", "speed", "says"), [
    ([[1.0, 2.0], [1.0, 2.0]], 2.0, "With 2 clients at 40 tokens exact decodes 1.0x as fast as llama.cpp, and new prompts are answered 1.0x as fast"),
    ([[1.0, 2.0], [3.0, 4.0]], None, ("2 clients at 40 tokens: an answer ended before another one began, so that there is no speed of all together; ask for "
                                     "more tokens (-n)"))])
def test_answers_that_never_run_together_have_no_speed(monkeypatch, arrivals, speed, says):
    """It was "nanx", and NaN in the JSON, which is none."""
    monkeypatch.setattr("edgekv.bench.serve._endpoints", lambda bench: nullcontext(dict.fromkeys(("off-flash", "exact"), Fake(arrivals))))
    (*_, rows) = run(ServeBench(None, Load(2, 40, 2), ("off-flash", "exact"), n_turns=1), TEXT)
    assert {row["tokens_per_second"] for row in rows} == {speed} and sentence(rows) == says
    assert "NaN" not in json.dumps(rows)


class Fake:
    """An endpoint whose tokens come at known times."""

    def __init__(self, arrivals: list[list[float]]):
        self.part = LoadPart(tuple(Answered(0.0, times) for times in arrivals))

    def cut(self, text: str, n: int) -> str:
        return text

    def together(self, prompts: list[str], n_answer: int, name: str) -> LoadPart:
        return self.part


def test_every_client_and_turn_has_a_prompt_of_its_own():
    load = Load(n_clients=3, n_prompt=100)
    prompts = [prompt for turn in range(4) for prompt in prompts_for(TEXT, load, turn)]
    assert len({prompt[:10] for prompt in prompts}) == 12 and min(map(len, prompts)) > 500


def test_an_endpoint_that_runs(synthetic):
    options = ServerOptions(synthetic("llama"), kv=KvOptions(mode="exact"), n_ctx=512, n_threads=1, n_slots=2, api_key="secret")
    with Server(options) as server:
        endpoint = Endpoint(server.url + "/v1", "secret")
        cut = endpoint.cut(TEXT, 50)
        assert TEXT.startswith(cut) and 20 < len(cut) < 400
        *_, rows = run(ServeBench(None, Load(2, 50, 6), n_turns=2, url=server.url, key="secret"), TEXT)
        assert [(row["server"], row["part"], row["turns"]) for row in rows] == [("endpoint", "read", 2), ("endpoint", "decode", 2)]
        # the seconds of a part are the mean of both turns', the longest wait is one turn's
        assert all(0 < row["ttft_p50_s"] <= row["ttft_max_s"] <= 2 * row["seconds"] and row["seconds_vs_stock"] is None for row in rows)
        with pytest.raises(EdgeKVError, match="HTTP 401"):
            Endpoint(server.url).ask("x", 2, "m")
    with pytest.raises(EdgeKVError, match="cannot be reached: .*; `edgekv serve` starts one, --url names another"):
        endpoint.ask("x", 2, "m")


def test_an_answer_that_breaks_off_is_no_answer():
    """A server's process ends, and its connections close: the stream ends as after a whole answer, but for a finish_reason or [DONE]."""
    one = {"choices": [{"text": "a", "finish_reason": None}]}
    with closing(PaperServer()) as paper:
        paper.script = [[one, {"choices": [{"text": "b", "finish_reason": "length"}]}], [one, DONE], [one]]
        endpoint = Endpoint(paper.url)
        assert [len(endpoint.ask("x", 2, "m").arrivals) for _ in range(2)] == [2, 1]
        with pytest.raises(EdgeKVError, match="broke off in the middle of an answer"):
            endpoint.ask("x", 2, "m")


def test_servers_take_turns_and_the_table_ends_with_a_sentence(synthetic):
    arguments = ["bench", "serve", str(synthetic("llama")), "--servers", "off-flash,exact", "-c", "2", "-p", "40", "-n", "4", "-r", "1", "-t", "1"]
    result = CliRunner().invoke(cli, [*arguments, "-o", "json"])
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    assert [(row["server"], row["part"]) for row in rows] == [(server, part) for server in ("off-flash", "exact") for part in ("read", "decode")]
    assert all(row["seconds_vs_stock"] > 0 for row in rows) and rows[0]["seconds_vs_stock"] == 1.0
    last = CliRunner().invoke(cli, [*arguments, "-c", "1"]).stdout.splitlines()[-1]  # two may miss each other
    assert re.match(r"With 1 client at 40 tokens exact decodes [\d.]+x as fast as llama.cpp, and new prompts are answered [\d.]+x as fast", last), last


def test_what_cannot_be_measured(synthetic):
    with pytest.raises(ConfigError, match="not an address of a server"):
        Endpoint("localhost")
    with pytest.raises(EdgeKVError, match="off-flash did not start"):
        next(run(ServeBench(synthetic("bert"), Load(1, 10, 2), ("off-flash",)), TEXT))
    for wrong in (["m.gguf"], ["--servers", "fast"], ["-c", "0"], ["-p", "0"], ["-n", "1"], ["-r", "0"]):
        assert CliRunner().invoke(cli, ["bench", "serve", "--url", "http://x", *wrong]).exit_code == EXIT_USAGE, wrong


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_who_ends_it_gets_what_was_measured(synthetic, sent, code):
    with Server(ServerOptions(synthetic("llama"), kv=KvOptions(mode="exact"), n_ctx=512, n_threads=1, n_slots=2)) as server:
        program = [*EDGEKV, "bench", "serve", "--url", server.url, "-c", "1", "-p", "30", "-n", "4", "-r", "100000", "-o", "json"]
        bench = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        until(lambda: exposed(server).get(("edgekv_time_to_first_token_seconds_count", ()), 0) > 2)  # of the second turn, so the first is over
        bench.send_signal(sent)
        said, errors = bench.communicate(timeout=60)
    assert bench.returncode == code and "Traceback" not in errors, errors
    assert [row["part"] for row in json.loads(said)] == ["read", "decode"] and json.loads(said)[0]["turns"] >= 1
    assert re.search(r"^1 client at 30 tokens gets [\d,.]+ tokens/s; the first comes after [\d.]+ s, by the median$", errors, re.M)
