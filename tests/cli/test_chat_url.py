"""`edgekv chat --url`: a server elsewhere, of EdgeKV, of llama.cpp and of others."""

import json
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from support.paper import DONE, PaperServer, say, says

from edgekv.cli.chat.client import AnswerPiece, ChatClient, Usage
from edgekv.cli.chat.endpoint import RemoteServer, base_url
from edgekv.cli.chat.kv_status import KvStatus
from edgekv.cli.chat.render import Renderer
from edgekv.cli.chat.session import ChatAnswer, Conversation
from edgekv.common.errors import EXIT_MODEL, EXIT_OK, EXIT_RUNTIME, EXIT_USAGE, ConfigError, ContextOverflow, EdgeKVError, ModelError
from edgekv.server.server import Server, ServerOptions
from edgekv.server.warming import Warmer

USAGE = {"prompt_tokens": 1000, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 900}}
PROPS = {"default_generation_settings": {"n_ctx": 4096, "params": {}}, "total_slots": 2}
TIERS = [{"tier": "arena", "bytes": 3 << 20, "used_bytes": 1 << 20}, {"tier": "home", "bytes": 90 << 20, "used_bytes": None}, {"tier": 3}, 4]
EDGEKV_PROPS = {**PROPS, "edgekv": {"mode": "sparse", "mode_description": "a sample", "tiers": TIERS,
                                    "store": {"ram_bytes": 1 << 30, "hits": {"by_block": 0.5, "all": [1, 2]}, "odd": None, "on": True}}}


@pytest.fixture
def opened() -> Iterator[Callable[..., PaperServer]]:
    made: list[PaperServer] = []

    def start(**settings: object) -> PaperServer:
        made.append(PaperServer(**settings))
        return made[-1]

    yield start
    for endpoint in made:
        endpoint.close()


def page(value: object) -> tuple[int, bytes]:
    return 200, json.dumps(value).encode()


def connect(endpoint: PaperServer, model: str | None = None, key: str | None = None, **sampling: object) -> RemoteServer:
    return RemoteServer(ChatClient(endpoint.url, key, sampling, elsewhere=True), model)


def ask(remote: RemoteServer, pieces: list[AnswerPiece] | None = None) -> ChatAnswer:
    return say(Conversation(remote._client), "hi", (pieces if pieces is not None else []).append)


@pytest.mark.parametrize(("url", "base"), [
    ("http://a:1", "http://a:1"), ("http://a:1/", "http://a:1"), ("https://a/v1/", "https://a"), ("https://a/api/v1", "https://a/api"),
])
def test_addresses(url, base):
    assert base_url(url) == base


@pytest.mark.parametrize("name", ["http_proxy", "ALL_PROXY"])
def test_no_proxy_stands_before_this_machine(opened, monkeypatch, name):
    """The HTTP library reads the variables where a client is made; here they name a proxy for everything that is not there."""
    monkeypatch.setenv(name, "http://127.0.0.1:1")
    endpoint = opened(pages={"/edgekv/cache": page({"data": []})})
    assert ChatClient(endpoint.url, elsewhere=True).get("/v1/models")[0] == 200
    Warmer(endpoint.url).check()


@pytest.mark.parametrize("url", ["a:8080", "", "http://", "ftp://a", "http://a:99999", "http://[::1", "http://a:0"])
def test_what_is_no_address(url):
    with pytest.raises(ConfigError, match="must be like http://127.0.0.1:8080"):
        base_url(url)


def test_a_server_that_knows_the_standard_alone(opened, capsys):
    """The client sends no fields of llama.cpp's, and measures what such a server does not."""
    endpoint = opened()
    endpoint.script = [says("Hel", "lo", usage=USAGE), says("again")]
    remote = connect(endpoint, temperature=0.5)
    assert remote.summary() == f"paper at {endpoint.url}" and remote.n_ctx is None and remote.gone is None
    answer = ask(remote)
    assert set(endpoint.requests[0]) == {"model", "temperature", "messages", "stream", "stream_options"}
    assert endpoint.requests[0]["model"] == "paper"
    assert answer.text == "Hello" and answer.usage == Usage(1000, 5, 900)
    assert (answer.timings.n_cached, answer.timings.n_prompt, answer.timings.n_predicted) == (900, 100, 5)
    assert answer.timings.prompt_ms > 0 and answer.timings.n_context == 1005
    Renderer(remote, footer=True).footer(answer)
    footer = capsys.readouterr().err
    assert footer.startswith("context 1,005 · prompt 1,000: 900 known · ") and "KV" not in footer
    assert ask(remote).timings is None, "nobody counted"
    with pytest.raises(EdgeKVError, match="does not say what its memory holds"):
        remote.memory_rows()


def test_llamas_server_tells_its_context(opened):
    endpoint = opened(pages={"/props": page(PROPS)})
    endpoint.script = [says("x")]
    remote = connect(endpoint)
    assert remote.n_ctx == 4096 and remote.summary().endswith(", context 4,096")
    ask(remote)
    assert endpoint.requests[0]["return_progress"] and endpoint.requests[0]["timings_per_token"]
    assert remote.status(7) == KvStatus(None, None, None, 4096)


def test_edgekvs_server_tells_its_tiers(opened):
    remote = connect(opened(pages={"/props": page(EDGEKV_PROPS)}))
    assert remote.status(7).mode == "sparse" and remote.summary().endswith(", context 4,096, KV sparse")
    assert [(name, value.strip()) for name, value in remote.memory_rows()] == [
        ("arena", "3.0 MiB  1.0 MiB used"), ("home", "90.0 MiB"), ("store ram", "1.0 GiB"), ("store hits by block", "0.5")]
    assert remote.attention_rows() == [("mode", "sparse: a sample")]


@pytest.mark.parametrize("props", [[], {"edgekv": 3}, {"edgekv": {"mode": 3}}, {"default_generation_settings": 7},
                                   {"default_generation_settings": {"n_ctx": "x"}}])
def test_props_of_another_shape(opened, props):
    remote = connect(opened(pages={"/props": page(props)}))
    assert remote.n_ctx is None and remote.status(1).mode is None and remote.attention_rows() == []


@pytest.mark.parametrize(("settings", "model", "error", "sentence"), [
    ({"key": "secret"}, None, EdgeKVError, r"does not let you in \(HTTP 401\); name its key with --api-key-file FILE"),
    ({"pages": {"/v1/models": (404, b"")}}, None, EdgeKVError, "not an OpenAI-compatible endpoint: it answers HTTP 404"),
    ({"pages": {"/v1/models": (200, b"<html>")}}, None, EdgeKVError, "not an OpenAI-compatible endpoint: it answers something else"),
    ({"pages": {"/v1/models": page({"data": 3})}}, None, EdgeKVError, "not an OpenAI-compatible endpoint"),
    ({"pages": {"/v1/models": (503, b"{}")}}, None, EdgeKVError, "not ready yet; try again"),
    ({"models": ()}, None, ModelError, "has no model$"),
    ({"models": ("a", "b")}, None, ModelError, "several models; put one in the place of MODEL: a, b$"),
    ({"models": ("a", "b")}, "c", ModelError, "has no model c; it has a, b$"),
    ({"models": [f"m{i}" for i in range(20)]}, None, ModelError, "m11 and 8 others$"),
])
def test_servers_that_cannot_be_used(opened, settings, model, error, sentence):
    with pytest.raises(error, match=sentence):
        connect(opened(**settings), model)


def test_a_model_by_its_name(opened):
    endpoint = opened(models=("a", "b"), key="secret")
    endpoint.script = [says("x")]
    ask(connect(endpoint, "b", key="secret"))
    assert endpoint.requests[0]["model"] == "b"


def test_nobody_there(opened):
    endpoint = opened()
    remote = connect(endpoint)
    endpoint.close()
    with pytest.raises(EdgeKVError, match="there is no server at http://127.0.0.1.*`edgekv serve` starts one"):
        connect(endpoint)
    with pytest.raises(EdgeKVError, match="the server does not answer"):
        ask(remote)


@pytest.mark.parametrize(("error", "kind", "sentence"), [
    ({"code": "context_length_exceeded", "message": "4096 at most"}, ContextOverflow, "does not fit into the context .4096 at most."),
    ("just words", EdgeKVError, "refused the request: just words"),
    ({}, EdgeKVError, "refused the request: it gave no reason"),
])
def test_refusals_of_others(opened, error, kind, sentence):
    endpoint = opened()
    endpoint.script = [(400, json.dumps({"error": error}).encode())]
    with pytest.raises(kind, match=sentence):
        ask(connect(endpoint))


@pytest.mark.parametrize(("details", "usage", "shown"), [
    (None, Usage(1000, 5), None),
    ({"cached_tokens": 900}, Usage(1000, 5, 900), "prompt 1,000: 900 known"),
    ({"cached_tokens": 900, "edgekv": {"slot": 0, "ram": 100, "disk": 800, "remote": 0}},
     Usage(1000, 5, 900, (("ram", 100), ("disk", 800))), "prompt 1,000: 100 from ram, 800 from disk"),
    ({"cached_tokens": 900, "edgekv": {"slot": 900, "ram": "x", "new": 3}}, Usage(1000, 5, 900, (("slot", 900),)), "prompt 1,000: 900 from slot"),
    ({"cached_tokens": 900, "edgekv": [1]}, Usage(1000, 5, 900), "prompt 1,000: 900 known"),
])
def test_where_the_prompts_tokens_came_from(opened, capsys, details, usage, shown):
    endpoint = opened()
    ours = {"edgekv": {"cached_tokens": details.pop("edgekv")}} if details and "edgekv" in details else {}  # as the server tells it
    endpoint.script = [says("x", usage={"prompt_tokens": 1000, "completion_tokens": 5, "prompt_tokens_details": details, **ours})]
    remote = connect(endpoint)
    answer = ask(remote)
    assert answer.usage == usage
    Renderer(remote, footer=True).footer(answer)
    footer = capsys.readouterr().err
    assert f" · {shown} · " in footer if shown else "prompt" not in footer
    assert Usage.parse({"prompt_tokens": "many"}) is None


def call(i: int, name: str | None = None, arguments: object = "") -> dict:
    return {"choices": [{"delta": {"tool_calls": [{"index": i, "function": {"arguments": arguments, **({"name": name} if name else {})}}]}}]}


@pytest.mark.parametrize(("events", "text"), [
    ([call(0, "weather", '{"city":'), call(0, None, '"Rome"}'), call(1, "time", {"zone": 1}), call(2, "now", None)],
     '(tool call) weather({"city":"Rome"})\n(tool call) time({"zone": 1})\n(tool call) now()'),
    ([*says("Let me see")[:1], call(0, "f", "{}")], "Let me see\n(tool call) f({})"),
    ([{"choices": [{"delta": {"function_call": {"name": "f", "arguments": "{}"}}}]}], "(tool call) f({})"),
    ([{"choices": [{"delta": {"content": ["a", {"type": "text", "text": "b"}, {"type": "image"}]}}]}], "ab"),
    ([{"choices": [{"delta": {"content": None, "refusal": "I will not"}}], "error": None}], "I will not"),
])
def test_what_an_answer_may_be_made_of(opened, events, text):
    """A tool call is shown with its name and arguments, and stays in the conversation; content may be a list of parts."""
    endpoint = opened()
    endpoint.script = [[*events, *says()]]
    conversation = Conversation(connect(endpoint)._client)
    assert say(conversation, "hi").text == text == conversation.turns[-1]["content"]


def test_thoughts_among_the_parts(opened):
    endpoint, pieces = opened(), []
    endpoint.script = [[{"choices": [{"delta": {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]}}]}, *says("yes")]]
    assert ask(connect(endpoint), pieces).text == "yes" and pieces[0].thought == "hm"


def test_an_answer_that_breaks_off_stays_as_far_as_it_came(opened):
    """The stream ends without a word of the server's that the answer has; a server that only says [DONE] has finished it."""
    endpoint = opened()
    endpoint.script = [says("Hel", "lo")[:2], [*says("Hello")[:1], DONE], []]
    conversation = Conversation(connect(endpoint)._client)
    answer = say(conversation, "hi")
    assert answer.text == "Hello" and "without a finish_reason); what came of it stays" in answer.broken and conversation.turns[-1]["content"] == "Hello"
    assert say(conversation, "hi").broken is None
    with pytest.raises(EdgeKVError, match="stopped in the middle of an answer"):
        say(conversation, "more")
    assert len(conversation.turns) == 4 and conversation.draft.content == "more", "nothing came: the message is kept"


# ---- the command ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def chat(edgekv, tmp_path) -> Callable[..., subprocess.CompletedProcess[str]]:
    return partial(edgekv, "chat", XDG_DATA_HOME=str(tmp_path / "data"))


def test_one_answer_from_elsewhere(opened, chat, tmp_path):
    endpoint = opened(key="secret")
    endpoint.script = [says("Hel", "lo", usage=USAGE)] * 4
    key = tmp_path / "key"
    key.write_text("secret\n")
    # EDGEKV_MODEL and other variables about models of this machine do not hinder
    for arguments, variables in (("--api-key-file", str(key)), {}), (("--footer",), {"EDGEKV_API_KEY": "secret", "EDGEKV_MODEL": "none.gguf"}):
        result = chat("--url", f"{endpoint.url}/v1", "-p", "hi", "--temp", "0", "-n", "9", *arguments, EDGEKV_CTX="512", **variables)
        assert (result.returncode, result.stdout) == (EXIT_OK, "Hello\n"), result.stderr
        assert result.stderr.startswith("context 1,005") == ("--footer" in arguments)
    assert endpoint.requests[0] | {"messages": 0} == {
        "model": "paper", "messages": 0, "max_tokens": 9, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    assert not (tmp_path / "data").exists(), "one question alone is not kept"


def test_an_answer_that_breaks_off(opened, chat, tmp_path):
    """The half of it is on standard output, and with --resume in the conversation; a sentence and the exit code say that it is half."""
    endpoint = opened()
    endpoint.script = [says("Hel", "lo")[:2]] * 2
    kept = tmp_path / "data/edgekv/chats/hi.json"
    kept.parent.mkdir(parents=True)
    kept.write_text(json.dumps([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]))
    for more in ((), ("--resume", "hi")):
        result = chat("--url", endpoint.url, "-p", "hi", *more)
        assert (result.returncode, result.stdout) == (EXIT_RUNTIME, "Hello\n") and result.stderr.count("\n") == 1
        assert result.stderr.startswith("edgekv: the server stopped in the middle of an answer")
    assert json.loads(kept.read_text())[-1]["content"] == "Hello"


@pytest.mark.parametrize(("arguments", "code", "sentence"), [
    (("--ctx", "512"), EXIT_USAGE, "--ctx is for a model in this process, and the one at --url is elsewhere"),
    (("--kv", "exact"), EXIT_USAGE, "--kv is for a model in this process"),
    (("--log-file", "x"), EXIT_USAGE, "--log-file is for a model in this process"),
    (("-t", "2"), EXIT_USAGE, "--threads is for a model in this process"),
    (("nope",), EXIT_MODEL, "has no model nope; it has paper"),
    (("--api-key-file", "nowhere"), EXIT_USAGE, "the key file nowhere cannot be read: No such file"),
    (("--api-key", "a", "--api-key-file", "b"), EXIT_USAGE, "both give a key"),
    (("--resume", "nobody"), EXIT_RUNTIME, "no conversation is kept as nobody"),
])
def test_options_that_do_not_go_with_an_address(opened, chat, arguments, code, sentence):
    result = chat("-p", "hi", "--url", opened().url, *arguments)
    assert result.returncode == code and sentence in result.stderr and not result.stdout, result.stderr


@pytest.mark.parametrize("option", ["--api-key", "--api-key-file"])
def test_a_key_is_for_an_address(chat, option):
    result = chat("-p", "hi", option, "x")
    assert result.returncode == EXIT_USAGE and f"{option} is the key of a server at --url" in result.stderr


def test_the_wrong_key(opened, chat):
    result = chat("-p", "hi", "--url", opened(key="secret").url, EDGEKV_API_KEY="wrong")
    assert result.returncode == EXIT_RUNTIME and "HTTP 401" in result.stderr and "wrong" not in result.stderr


def test_a_real_server(tmp_path, synthetic):
    """EdgeKV's own server tells the context and its measurements."""
    with Server(ServerOptions(Path(synthetic("llama")), n_ctx=512, n_threads=1, api_key="secret", alias="tiny")) as server:
        client = ChatClient(server.url, "secret", {"max_tokens": 4}, elsewhere=True)
        remote = RemoteServer(client)
        assert remote.name == "tiny" and remote.n_ctx == 512 and client.is_llama
        answer = ask(remote)
        assert answer.timings.n_predicted == 4 == answer.usage.n_predicted and answer.usage.n_prompt == answer.timings.n_prompt
        with pytest.raises(EdgeKVError, match="HTTP 401"):
            RemoteServer(ChatClient(server.url, "wrong", elsewhere=True))
