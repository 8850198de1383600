"""What a request asks for happens, is refused by name, or stands in a header of the reply."""

from pathlib import Path

import pytest
from support import dialects
from support.clients import CHAT, Reply
from support.dialects import COMPLETIONS, MESSAGES, RESPONSES
from support.serve_process import Served
from support.stub_server import stub_server, stubbed

from edgekv import _native
from edgekv._native import http_server
from edgekv.server.fields import page

TURN = [{"role": "user", "content": "?"}]
PLAIN: dict[str, dict] = {CHAT: {"messages": TURN}, COMPLETIONS: {"prompt": "?"}, RESPONSES: {"input": "?"}, MESSAGES: {"messages": TURN, "max_tokens": 9}}
PAGE = Path(__file__).parents[2] / "edgekv" / "server" / "FIELDS.md"

served = stub_server("All is well. ")


def refusal(reply: Reply) -> str:
    assert reply.body["error"]["type"] == "invalid_request_error"
    return dialects.refusal(reply)


def test_the_page_is_that_of_the_table() -> None:
    _native.prepare()
    assert PAGE.read_text() == page(http_server.fields())


@pytest.mark.parametrize(("path", "name", "value", "allowed"), [
    (CHAT, "temperature", -1, "a number from 0"),
    (CHAT, "top_p", 2, "a number from 0 to 1"),
    (CHAT, "stop", 5, "a text or a list of texts"),
    (CHAT, "grammar", 5, "a text"),
    (CHAT, "tool_choice", 5, "a text or an object"),
    (CHAT, "messages", [], "a list of objects not empty"),
    (CHAT, "max_tokens", 10**18, "an integer from -1 to 2147483647"),
    (CHAT, "max_tokens", 1e18, "an integer from -1 to 2147483647"),
    (CHAT, "max_tokens", 1.5, "an integer from -1 to 2147483647"),
    (CHAT, "stream", "yes", "a boolean"),
    (CHAT, "response_format", "json", "an object"),
    (CHAT, "stream_options", {"include_usage": 1}, "a boolean"),
    (COMPLETIONS, "n", 0, "an integer from 1 to 128"),
    (RESPONSES, "max_output_tokens", "9", "an integer from -1 to 2147483647"),
    (RESPONSES, "input", 5, "a text or a list of objects"),
    (MESSAGES, "stop_sequences", "x", "a list of texts"),
    (MESSAGES, "thinking", {"type": "on"}, "one of enabled, disabled, adaptive"),
    (MESSAGES + "/count_tokens", "system", 5, "a text or a list of objects"),
], ids=str)
def test_a_wrong_kind_or_range_is_refused(served: Served, path: str, name: str, value: object, allowed: str):
    sentence = refusal(served.ask(path, {**PLAIN[path.removesuffix("/count_tokens")], name: value}))
    inner = f".{next(iter(value))}" if isinstance(value, dict) else ""
    assert sentence.startswith(f"the field '{name}{inner}' is ") and sentence.endswith(f"; it must be {allowed}")


@pytest.mark.parametrize(("path", "name", "value", "why"), [
    (CHAT, "functions", [{"name": "f"}], "the field 'functions' is not supported; use 'tools'"), (CHAT, "function_call", {"name": "f"}, "use 'tool_choice'"),
    (CHAT, "audio", {"voice": "x"}, "'audio' is not supported; answers are text"), (CHAT, "web_search_options", {"a": 1}, "is not supported"),
    (CHAT, "modalities", ["text", "audio"], "'modalities' asks for audio; answers are text"),
    (CHAT, "tools", [{"type": "web_search"}], "Unsupported tool type"),
    (CHAT, "response_format", {"type": "xml"}, "response_format type must be one of"), (COMPLETIONS, "suffix", "end", "'suffix' is not supported"),
    (COMPLETIONS, "best_of", 4, "'best_of' is not supported above 'n'"), (RESPONSES, "conversation", "c1", "'conversation' is not supported; send the whole"),
    (RESPONSES, "previous_response_id", "x", "'previous_response_id' is not supported; send the whole conversation"),
    (RESPONSES, "background", True, "'background' is not supported; ask with 'stream'"),
    (MESSAGES, "mcp_servers", [{"url": "x"}], "'mcp_servers' is not supported"),
    (COMPLETIONS, "prompt", None, "the field 'prompt' is missing"), (MESSAGES, "messages", None, "the field 'messages' is missing"),
], ids=str)
def test_what_is_known_and_not_served_is_named(served: Served, path: str, name: str, value: object, why: str):
    assert why in refusal(served.ask(path, {**PLAIN[path], name: value}))


@pytest.mark.parametrize(("name", "value", "why"), [
    ("edgekv_pinned", "all", "must list numbers of 'messages', from 0 on"),
    ("id_slot", 99, "the server has the slots 0 to 0"), ("samplers", ["nope"], "'samplers' names \"nope\""), ("samplers", "?", "'samplers' is \"?\""),
])
def test_a_value_that_the_server_does_not_have_is_refused(served: Served, name: str, value: object, why: str):
    assert why in refusal(served.ask(CHAT, {**PLAIN[CHAT], name: value}))


DEFAULTS: dict[str, dict] = {  # what clients write out that asks for nothing: OpenAI's and Anthropic's documents, and those of other servers of these APIs
    CHAT: {"audio": None, "frequency_penalty": 0, "function_call": "none", "functions": [], "logit_bias": {}, "logprobs": False, "max_tokens": None,
           "metadata": {}, "modalities": ["text"], "n": 1, "parallel_tool_calls": True, "prediction": None, "presence_penalty": 0,
           "response_format": {"type": "text"}, "seed": -1, "service_tier": "auto", "stop": None, "store": False, "stream": False, "stream_options": None,
           "temperature": 1, "tool_choice": "none", "tools": [], "top_logprobs": 0, "top_p": 1, "user": "", "verbosity": "medium",
           "web_search_options": None, "top_k": -1, "min_p": 0, "add_generation_prompt": True, "continue_final_message": False, "grammar": "",
           "dry_penalty_last_n": -1, "dry_sequence_breakers": [], "repeat_last_n": -1, "max_completion_tokens": -1, "lora": [], "samplers": []},
    COMPLETIONS: {"best_of": 1, "echo": False, "frequency_penalty": 0, "logit_bias": None, "logprobs": None, "max_tokens": 16, "n": 1, "suffix": "",
                  "presence_penalty": 0, "seed": None, "stop": [], "user": "", "dry_penalty_last_n": -1, "dry_sequence_breakers": [], "repeat_last_n": -1},
    RESPONSES: {"background": False, "conversation": None, "include": [], "instructions": None, "max_output_tokens": None, "max_tool_calls": None,
                "metadata": {}, "parallel_tool_calls": True, "previous_response_id": None, "prompt": None, "reasoning": {"effort": None, "summary": None},
                "service_tier": "auto", "store": True, "text": {"format": {"type": "text"}, "verbosity": "medium"}, "tool_choice": "auto", "tools": [],
                "top_logprobs": 0, "truncation": "disabled", "user": "", "repeat_last_n": -1},
    MESSAGES: {"container": None, "metadata": {"user_id": None}, "service_tier": "auto", "stop_sequences": [], "stream": False, "system": "", "temperature": 1,
               "thinking": {"type": "disabled"}, "tool_choice": {"type": "auto"}, "tools": [], "top_k": 0, "top_p": 1, "mcp_servers": []},
}


@pytest.mark.parametrize("path", PLAIN)
def test_defaults_that_clients_write_out_are_taken(served: Served, path: str):
    for name, value in [*DEFAULTS[path].items(), *((name, None) for name in DEFAULTS[path])]:
        reply = served.ask(path, {**PLAIN[path], name: value})
        assert reply.status == 200, f"{name}: {reply.text}"


@pytest.mark.parametrize("stop", [None, [], [""], ""], ids=repr)
@pytest.mark.parametrize("path", [*PLAIN, "/completion"])
def test_no_stop_word_ends_no_answer(served: Served, path: str, stop: object):
    words = {"stop_sequences": stop or None if stop == "" else stop} if path == MESSAGES else {"stop": stop}
    reply = served.ask(path, {**PLAIN.get(path, PLAIN[COMPLETIONS]), **words, "temperature": 0})
    assert reply.status == 200 and '"All is well. "' in reply.text, reply.text
    assert path != MESSAGES or (reply.body["stop_reason"], reply.body["stop_sequence"]) == ("end_turn", None)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES, "/completion"])
def test_the_defaults_that_the_server_tells_are_taken(served: Served, path: str):
    told = served.ask("/props").body["default_generation_settings"]["params"]
    assert len(told) > 30 and told.pop("chat_format")  # told as a name, and no field of a client's
    for name, value in told.items():
        reply = served.ask(path, {**PLAIN.get(path, PLAIN[COMPLETIONS]), name: value})
        assert reply.status == 200, f"{name}: {reply.text}"


def test_penalties_reach_as_far_as_a_slot(served: Served):
    """Upstream makes room for as many tokens as it is told, and knows no -1."""
    asked = {**PLAIN[COMPLETIONS], "max_tokens": 4, "dry_multiplier": 1, "repeat_penalty": 1.1, "verbose": True}
    for reach, held in ((-1, n_ctx := served.ask("/props").body["default_generation_settings"]["n_ctx"]), (2147483647, n_ctx), (7, 7), (0, 0)):
        settings = served.ask(COMPLETIONS, {**asked, "repeat_last_n": reach, "dry_penalty_last_n": reach}).body["__verbose"]["generation_settings"]
        assert (settings["repeat_last_n"], settings["dry_penalty_last_n"]) == (held, held)


@pytest.mark.parametrize("path", PLAIN)
def test_what_has_no_effect_is_said(served: Served, path: str):
    asked = {**PLAIN[path], "guided_json": {}, "min_tokens": 5, "a,b\n": 1, "seed": None}
    for body in (asked, {**asked, "stream": True}):
        reply = served.ask(path, body)
        assert reply.status == 200 and reply.headers["x-edgekv-ignored"] == "guided_json, min_tokens, a?b?"
    assert "x-edgekv-ignored" not in served.ask(path, PLAIN[path]).headers


def test_a_known_field_without_effect_is_said_where_it_asks_for_something(served: Served):
    assert served.ask(CHAT, {**PLAIN[CHAT], "store": True, "user": "", "prediction": None}).headers["x-edgekv-ignored"] == "store"
    assert served.ask(RESPONSES, {**PLAIN[RESPONSES], "text": {"verbosity": "low"}}).headers["x-edgekv-ignored"] == "text.verbosity"


def test_many_names_make_a_short_header(served: Served):
    told = served.ask(CHAT, {**PLAIN[CHAT], **{f"name{n}{'x' * 500}": 1 for n in range(100)}}).headers["x-edgekv-ignored"]
    assert len(told) < 2500 and told.endswith(", ...")


def test_strict_fields(tmp_path: Path):
    with stubbed(tmp_path, "All is well. ", "--strict-fields") as served:
        for path, plain in PLAIN.items():
            assert "there is no field 'guided_json' here" in refusal(served.ask(path, {**plain, "guided_json": {}}))
            assert served.ask(path, {**plain, "metadata": {"a": "b"}} if path != COMPLETIONS else plain).status == 200
