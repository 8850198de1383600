"""Requests to /v1/responses and /v1/messages as their own clients send them, and answers as these read them."""

import anthropic
import openai
import pytest
from support.clients import CHAT
from support.dialects import MESSAGES, RESPONSES, refusal
from support.serve_process import Served
from support.stub import THINKING
from support.stub_server import stub_server

ANSWERS = {  # by the last letter of the prompt, which requests choose with chat_template_kwargs, or with how an answer begins
    "t": [b"It is", b" simple.", b"</th", b"ink>\n\n", b"The file", b" is there.\n", b'<tool_call>\n{"name": "look", "arguments": {"path": "a.txt"}}\n',
          b"</tool", b"_call>"],
    "p": [b"</thi", b"nk>\n\n", b"All is", b" STOP well."],
    "X": [b" and", b" so on"],
}
PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
USER = {"role": "user", "content": "Do it."}


def key(letter: str) -> dict:
    return {"chat_template_kwargs": {"key": letter}}


served = stub_server(ANSWERS, template=THINKING)


def counted(served: Served, path: str, body: dict) -> int:
    """Tokens of the request's prompt."""
    reply = served.ask(path + ("/count_tokens" if path == MESSAGES else "/input_tokens"), body)
    assert reply.status == 200, reply.text
    return reply.body["input_tokens"]


def test_openai_streams_a_response(gpt: openai.OpenAI):
    tools = [{"type": "function", "name": "look", "parameters": PARAMETERS}]
    with gpt.responses.stream(model="x", input="Do it.", tools=tools, temperature=0, extra_body=key("t")) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call"]
    assert final.output[0].content[0].text == "tIt is simple." and final.output_text.strip() == "The file is there."
    assert final.output[2].arguments == '{"path": "a.txt"}' and final.output[2].name == "look"
    places = {event.item.type: event.output_index for event in events if event.type == "response.output_item.done"}
    assert places == {"reasoning": 0, "message": 1, "function_call": 2}
    assert final.status == "completed" and final.tools[0].name == "look" and final.tool_choice == "auto" and final.error is None


def test_a_response_goes_on(gpt: openai.OpenAI):
    tools = [{"type": "function", "name": "look", "parameters": PARAMETERS}]
    first = gpt.responses.create(model="x", input=[USER], tools=tools, extra_body=key("t"))
    call = first.output[2]
    items = [USER, *first.output, {"type": "function_call_output", "call_id": call.call_id, "output": [{"type": "output_text", "text": "It is there."}]}]
    second = gpt.responses.create(model="x", input=items, tools=tools, extra_body=key("p"))
    assert second.output_text == "All is STOP well." and second.usage.input_tokens > first.usage.input_tokens


@pytest.mark.parametrize(("items", "messages"), [
    ([{"role": "assistant", "content": "Yes."}], [{"role": "assistant", "content": "Yes."}]),
    ([{"role": "assistant", "content": [{"type": "output_text", "text": "Yes."}]}], [{"role": "assistant", "content": "Yes."}]),
    ([{"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}], [{"role": "assistant", "content": "No."}]),
    ([{"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "Hm."}]}, {"role": "assistant", "content": "Yes."}],
     [{"role": "assistant", "reasoning_content": "Hm.", "content": "Yes."}]),
    ([{"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "x"}, {"role": "assistant", "content": "Yes."}],
     [{"role": "assistant", "content": "Yes."}]),
    ([{"type": "custom_tool_call", "call_id": "c", "name": "run", "input": "ls"}, {"type": "custom_tool_call_output", "call_id": "c", "output": "a.txt"}],
     [{"role": "assistant", "content": "", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "run", "arguments": '{"input": "ls"}'}}]},
      {"role": "tool", "tool_call_id": "c", "content": "a.txt"}]),
], ids=["no type", "output_text", "refusal", "summary", "encrypted", "custom call"])
def test_items_of_a_conversation_are_in_the_prompt(served: Served, items: list, messages: list):
    assert counted(served, RESPONSES, {"input": [USER, *items, USER]}) == counted(served, CHAT, {"messages": [USER, *messages, USER]})


@pytest.mark.parametrize(("more", "why"), [
    ({"input": [{"type": "item_reference", "id": "x"}]}, "send the item itself"), ({"input": [{"type": "image_generation_call"}]}, "'image_generation_call'"),
    ({"include": ["message.output_text.logprobs"]}, "'message.output_text.logprobs'"), ({"top_logprobs": 2}, "'top_logprobs' is not supported"),
])
def test_what_a_response_cannot_have_is_refused(served: Served, more: dict, why: str):
    assert why in refusal(served.ask(RESPONSES, {"input": "?", **more}))


def test_tools_of_other_servers_are_named(served: Served):
    tools = [{"type": "web_search"}, {"type": "function", "name": "look", "parameters": {}}]
    reply = served.ask(RESPONSES, {"input": "?", "max_output_tokens": 1, "tools": tools})
    assert reply.status == 200 and reply.headers["x-edgekv-ignored"] == "tools.web_search"


def test_anthropic_streams_a_message(claude: anthropic.Anthropic):
    tools = [{"name": "look", "input_schema": PARAMETERS}]
    with claude.messages.stream(model="x", max_tokens=100, messages=[USER], tools=tools, extra_body=key("t")) as stream:
        raw = [event for event in stream if event.type.startswith(("message", "content_block"))]
        final = stream.get_final_message()
    assert [block.type for block in final.content] == ["thinking", "text", "tool_use"]
    assert final.content[0].thinking == "tIt is simple." and final.content[1].text.strip() == "The file is there."
    assert final.content[2].input == {"path": "a.txt"} and final.stop_reason == "tool_use"
    edges = [(event.type, event.index) for event in raw if event.type in ("content_block_start", "content_block_stop")]
    assert edges == [(f"content_block_{edge}", index) for index in range(3) for edge in ("start", "stop")], "no block begins within another"


def test_a_stop_sequence_is_the_reason(claude: anthropic.Anthropic):
    asked = {"model": "x", "max_tokens": 100, "messages": [USER], "extra_body": key("p")}
    whole = claude.messages.create(**asked, stop_sequences=["STOP"])
    with claude.messages.stream(**asked, stop_sequences=["STOP"]) as stream:
        for final in (whole, stream.get_final_message()):
            assert (final.content[-1].text, final.stop_reason, final.stop_sequence) == ("All is ", "stop_sequence", "STOP")
    plain = claude.messages.create(**asked)
    assert (plain.stop_reason, plain.stop_sequence) == ("end_turn", None)


def test_an_answer_goes_on_behind_its_beginning(claude: anthropic.Anthropic):
    asked = {"model": "x", "max_tokens": 100, "messages": [USER, {"role": "assistant", "content": "It begins with X"}],
             "extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}
    assert "".join(block.text for block in claude.messages.create(**asked).content) == " and so on"
    with claude.messages.stream(**asked) as stream:
        assert stream.get_final_text() == " and so on"


@pytest.mark.parametrize(("block", "text"), [
    ({"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "Words."}}, "T\nWords."),
    ({"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "Words."}]}}, "Words."),
    ({"type": "search_result", "title": "T", "source": "S", "content": [{"type": "text", "text": "Words."}]}, "T\nS\nWords."),
], ids=["text", "content", "search_result"])
def test_documents_are_in_the_prompt(served: Served, block: dict, text: str):
    plain = {"type": "text", "text": text}
    for wrapped in (lambda one: [one], lambda one: [{"type": "tool_result", "tool_use_id": "t", "content": [one]}]):
        same = [counted(served, MESSAGES, {"messages": [{"role": "user", "content": wrapped(one)}]}) for one in (block, plain)]
        assert same[0] == same[1]


@pytest.mark.parametrize(("more", "why"), [
    ({"messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "base64", "data": "x"}}]}]}, "of the kind 'base64'"),
    ({"messages": [{"role": "user", "content": [{"type": "container_upload", "file_id": "x"}]}]}, "'container_upload' is not supported"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "sound"}]}]}]}, "'sound' is not supported"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "file", "file_id": "x"}}]}]}, "an image of the kind 'file'"),
    ({"system": [{"type": "image"}]}, "'image' in 'system'"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "the tool 'web_search' of the type 'web_search_20250305'"),
], ids=lambda value: str(value)[:50])
def test_what_a_message_cannot_have_is_refused(served: Served, more: dict, why: str):
    reply = served.ask(MESSAGES, {"messages": [USER], "max_tokens": 5, **more})
    assert why in refusal(reply) and reply.body["type"] == "error" and reply.body["error"]["type"] == "invalid_request_error"


def test_thinking_that_is_disabled(served: Served):
    with_thought, without = (counted(served, MESSAGES, {"messages": [USER], "thinking": {"type": kind}}) for kind in ("adaptive", "disabled"))
    assert without == counted(served, MESSAGES, {"messages": [USER], "chat_template_kwargs": {"enable_thinking": False}}) != with_thought
