"""Every message of a chat is in the prompt, in the reply's header, or in a 400 that names it: small templates that refuse, each in its way."""

import base64
import io
import json
import re
import wave
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.clients import CHAT, Stream
from support.dialects import MESSAGES, RESPONSES
from support.serve_process import Served
from support.stub import CHATML, cut
from support.stub_server import stubbed

TEMPLATE = "/apply-template"
TOOLS = [{"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {
    "at": {"type": "string"}}}}}]
PIXEL = "data:image/png;base64,iVBORw0KGgo="

CALLS = ("{% for c in m.tool_calls or [] %}{{ '<tool_call>' + c.id + ' ' + c.function.name + ' ' }}"
         "{% for k, v in c.function.arguments|items %}{{ k + '=' + v|string }}{% endfor %}{{ '</tool_call>' }}{% endfor %}")
TOOL_LIST = "{% if tools %}{{ '[tools]' + (tools|tojson) + '[/tools]' }}{% endif %}"
END = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"

STRICT = (TOOL_LIST + "{% set ns = namespace(n=0, calls=0) %}{% for m in messages %}"
          "{% if m.role == 'system' and not loop.first %}{{ raise_exception('system first') }}{% endif %}"
          "{% if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}"
          "{% if (m.role == 'user') != (ns.n % 2 == 0) %}{{ raise_exception('alternate') }}{% endif %}{% set ns.n = ns.n + 1 %}{% endif %}"
          "{% for c in m.tool_calls or [] %}{% if c.id|length != 9 %}{{ raise_exception('nine') }}{% endif %}{% set ns.calls = ns.calls + 1 %}{% endfor %}"
          "{% if m.role == 'tool' %}{% if ns.calls == 0 or m.tool_call_id|length != 9 %}{{ raise_exception('no call') }}{% endif %}{% endif %}"
          "{{ '<|im_start|>' + m.role + '\n' + (m.content or '')|trim }}" + CALLS + "{{ '<|im_end|>\n' }}{% endfor %}" + END)
"""Raises, as Mistral's and Qwen3.5's do."""

FORGETFUL = ("{% if messages[0].role == 'system' %}{{ '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}{% endif %}{% for m in messages %}"
             "{% if m.role != 'system' %}{{ '<|im_start|>' + m.role + '\n' + (m.content if m.content is string else '') + '<|im_end|>\n' }}{% endif %}"
             "{% endfor %}" + END)
"""Leaves out, without a word: late system messages, calls, lists of parts. As SmolLM3's and MiniMax-M2's do."""

CAREFUL = (TOOL_LIST + "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
           "{% if m.tool_calls|length > 1 %}{{ raise_exception('one call at once') }}{% endif %}"
           "{% if m.role == 'user' and not loop.first and messages[loop.index0 - 1].tool_calls %}{{ raise_exception('a result first') }}{% endif %}"
           "{% if m.tool_calls %}" + CALLS + "{% elif m.role == 'tool' %}{{ m.content|tojson }}{% else %}{{ m.content }}{% endif %}{{ '<|im_end|>\n' }}"
           "{% endfor %}" + END)
"""One call a message, no text beside it, results as JSON: as Llama 3.1's and gpt-oss's do."""

IN_PARTS = ("{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.content is string %}{{ m.content }}{% else %}"
            "{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}" + END)
"""Puts nothing between the parts of a message."""

ONE_SIDED = ("{% for m in messages %}{% if 'forbidden' in m.content %}{{ raise_exception('a word') }}{% endif %}"
             "{% if m.role == 'user' %}{{ '<|im_start|>user\n' + m.content + '<|im_end|>\n' }}{% endif %}{% endfor %}" + END)
"""Shows users alone, and raises at a word: what no repair mends."""

BARE = "{% for m in messages %}{{ m.role + m.content }}{% endfor %}"
"""Nothing stands between texts, or between a letter and a text."""

THOUGHTLESS = ("{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content.split('<channel|>')[-1] + '<|im_end|>\n' }}{% endfor %}" + END +
               "{# '<|tool_call>call:' <|channel> #}")
"""Leaves out thinking between marks of its own, by which llama.cpp knows it. As Gemma 4's does."""


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Served]]:
    """A server for each template, kept for the module."""
    running: dict[str, Served] = {}
    with ExitStack() as stack:
        def served(template: str) -> Served:
            if template not in running:
                running[template] = stack.enter_context(stubbed(tmp_path_factory.mktemp("served"), "Good.", "--ctx", "2048", template=template))
            return running[template]
        yield served


def say(role: str, content: object, **more: object) -> dict:
    return {"role": role, "content": content, **more}


def call(at: str, number: int = 1) -> dict:
    return {"id": f"call_of_a_client_{number}", "type": "function", "function": {"name": "look", "arguments": at}}


def result(content: object, number: int = 1) -> dict:
    return say("tool", content, tool_call_id=f"call_of_a_client_{number}")


def parts(*texts: str) -> list[dict]:
    return [{"type": "text", "text": text} for text in texts]


TURN = [say("user", "Where is it?"), say("assistant", "", tool_calls=[call('{"at": "the roof"}')]), result("It is here.")]


@pytest.mark.parametrize(("template", "messages", "prompt", "moved"), [
    (STRICT, [say("system", "Be kind."), say("user", "One."), say("system", "Be brief."), say("assistant", "Yes."), say("user", "Two.")],
     "system\nBe kind.\n\nBe brief.|user\nOne.|assistant\nYes.|user\nTwo.", "3 system into 1 system"),
    (STRICT, [say("user", "One."), say("developer", "Be brief.")], "system\nBe brief.|user\nOne.", "2 developer before 1 user"),
    (STRICT, [say("user", "One."), say("user", "Two."), say("assistant", "A."), say("assistant", "B."), say("user", "Three.")],
     "user\nOne.\n\nTwo.|assistant\nA.\n\nB.|user\nThree.", "2 user into 1 user; 4 assistant into 3 assistant"),
    (STRICT, [say("assistant", "Hello."), say("user", "One.")], "user\nThe assistant said:\n\nHello.\n\nOne.", "1 assistant into 2 user"),
    (STRICT, [say("user", "One."), result("It rains.")], "user\nOne.\n\nResult of a tool:\n\nIt rains.", "2 tool as user; 2 user into 1 user"),
    (FORGETFUL, [say("system", "Be kind."), say("system", "Be brief."), say("user", "One.")], "system\nBe kind.\n\nBe brief.|user\nOne.",
     "2 system into 1 system"),
    (FORGETFUL, TURN, ('user\nWhere is it?|assistant\n<tool_call>\n{"name": "look", "arguments": {"at": "the roof"}}\n</tool_call>|'
                       "user\nResult of a tool:\n\nIt is here."), "calls of 2 assistant as text; 3 tool as user"),
    (FORGETFUL, [say("user", parts("One.", "Two."))], "user\nOne.\nTwo.", None),
    (IN_PARTS, [say("user", parts("Good", "bye", " all"))], "user\nGoodbye all", None),
    (CAREFUL, [say("user", "One."), say("assistant", "I look.", tool_calls=[call('{"at": "here"}')]), result("Nothing.")],
     'user\nOne.|assistant\nI look.|assistant\n<tool_call>call_of_a_client_1 look at=here</tool_call>|tool\n"Nothing."', "the text of 2 assistant before it"),
    (CAREFUL, [say("user", "One."), say("assistant", "", tool_calls=[call('{"at": "A1"}'), call('{"at": "B2"}', 2)]), result("First."), result("Second.", 2)],
     ('user\nOne.|assistant\n<tool_call>call_of_a_client_1 look at=A1</tool_call>|tool\n"First."|'
      'assistant\n<tool_call>call_of_a_client_2 look at=B2</tool_call>|tool\n"Second."'), "a call of 2 assistant behind it"),
    (CAREFUL, [*TURN[:2], say("user", "Also."), TURN[2]],  # as one message of Anthropic's API becomes two
     'user\nWhere is it?|assistant\n<tool_call>call_of_a_client_1 look at=the roof</tool_call>|tool\n"It is here."|user\nAlso.', "4 tool behind 2 assistant"),
    (CAREFUL, [*TURN[:2], result(parts("It is", "here."))],
     'user\nWhere is it?|assistant\n<tool_call>call_of_a_client_1 look at=the roof</tool_call>|tool\n"It is\\nhere."', None),
], ids=lambda value: None if isinstance(value, str | list) else "")
def test_a_message_goes_where_the_template_can_hold_it(start, template: str, messages: list, prompt: str, moved: str | None) -> None:
    reply = start(template).ask(TEMPLATE, {"messages": messages})
    expected = "".join(f"<|im_start|>{message}<|im_end|>\n" for message in prompt.split("|")) + "<|im_start|>assistant\n"
    assert reply.status == 200 and reply.body["prompt"] == expected
    assert reply.headers.get("x-edgekv-messages") == moved


@pytest.mark.parametrize(("arguments", "shown"), [("", ""), ('{"at": "the ro', "the ro"), ('["the roof"]', "the roof")])
def test_arguments_that_are_no_object_are_shown(start, arguments: str, shown: str) -> None:
    reply = start(STRICT).ask(TEMPLATE, {"messages": [TURN[0], say("assistant", "", tool_calls=[call(arguments)]), TURN[2]]})
    assert reply.status == 200, reply.text
    assert shown in reply.body["prompt"].partition(" look ")[2].partition("</tool_call>")[0]


def test_ids_of_calls_have_nine_letters_for_a_template_that_wants_them(start) -> None:
    served = start(STRICT)
    turns = ([], [say("assistant", "So."), say("user", "And?")])
    prompts = [served.ask(TEMPLATE, {"messages": [*TURN, *later], "tools": TOOLS}).body["prompt"] for later in turns]
    ids = {prompt.partition("<tool_call>")[2].partition(" ")[0] for prompt in prompts}
    assert len(ids) == 1 and len(ids.pop()) == 9, "one call, one id in every turn"
    nine = [TURN[0], say("assistant", "", tool_calls=[{**call('{"at": "x"}'), "id": "abcdef123"}]), say("tool", "Y", tool_call_id="abcdef123")]
    assert "<tool_call>abcdef123 look" in served.ask(TEMPLATE, {"messages": nine}).body["prompt"]


def test_what_a_template_takes_is_not_touched(start) -> None:
    messages = [say("user", "One."), say("system", " Be brief.\n"), say("user", parts("Two.")), say("assistant", "Yes."), say("system", "Three."), TURN[2]]
    reply = start(CHATML).ask(TEMPLATE, {"messages": messages})
    texts = [message["content"] if isinstance(message["content"], str) else "Two." for message in messages]
    said = [f"<|im_start|>{message['role']}\n{text}<|im_end|>\n" for message, text in zip(messages, texts, strict=True)]
    assert reply.body["prompt"] == "".join(said) + "<|im_start|>assistant\n"
    assert "x-edgekv-messages" not in reply.headers


def test_texts_are_found_without_anything_between_them(start) -> None:
    messages = [say("system", "Be brief"), say("user", "a"), say("assistant", "ok"), say("user", "ok"), say("assistant", "brief"), say("user", "us")]
    reply = start(BARE).ask(TEMPLATE, {"messages": messages})
    assert (reply.status, reply.body.get("prompt")) == (200, "".join(message["role"] + message["content"] for message in messages)), reply.text
    assert "x-edgekv-messages" not in reply.headers


def test_arguments_with_escapes_are_found(start) -> None:
    escaped = call(json.dumps({"at": "Z\u00fcrich \u6771\u4eac"}))
    reply = start(FORGETFUL).ask(TEMPLATE, {"messages": [TURN[0], say("assistant", "", tool_calls=[escaped]), TURN[2]]})
    assert reply.status == 200 and "Z\\u00fcrich" in reply.body["prompt"], reply.text


def test_thinking_between_the_template_s_own_marks_may_be_left_out(start) -> None:
    thought = say("assistant", "<|channel>thought\nSo and so.<channel|>It is here.")
    reply = start(THOUGHTLESS).ask(TEMPLATE, {"messages": [TURN[0], thought, say("user", "Thanks.")]})
    assert reply.status == 200 and "It is here." in reply.body["prompt"], reply.text


@pytest.mark.parametrize(("path", "body"), [
    (CHAT, {"messages": [say("system", "A."), say("user", "B."), say("system", "C.")], "stream": True}),
    (CHAT, {"messages": [say("system", "A."), say("user", "B."), say("system", "C.")]}),
    (RESPONSES, {"instructions": "A.", "input": [say("user", "B."), say("developer", "C.")]}),
    (MESSAGES, {"max_tokens": 8, "system": "A.", "messages": [say("user", "B."), say("system", "C.")]}),
    (MESSAGES + "/count_tokens", {"system": "A.", "messages": [say("user", "B."), say("system", "C.")]})])
def test_all_dialects_say_what_was_moved(start, path: str, body: dict) -> None:
    reply = start(STRICT).ask(path, body)
    assert reply.status == 200, reply.text
    assert reply.headers["x-edgekv-messages"].endswith("into 1 system")


@pytest.mark.parametrize(("messages", "named"), [
    ([say("user", "One."), say("assistant", "Unseen."), say("user", "Two.")], "message 2 .assistant. is left out"),
    ([say("user", "One."), say("user", "Two."), say("user", "A forbidden word.")], "message 3 .user. is refused")])
def test_a_message_without_a_place_is_named(start, messages: list, named: str) -> None:
    served = start(ONE_SIDED)
    for path in (TEMPLATE, CHAT):
        reply = served.ask(path, {"messages": messages})
        error = reply.body["error"]
        assert (reply.status, error["type"]) == (400, "invalid_request_error")
        assert re.search(named, error["message"]), error


def test_an_image_in_history_is_a_sentence(start) -> None:
    image = {"type": "image_url", "image_url": {"url": PIXEL}}
    served = start(CHATML)
    seen = [say("user", [*parts("Look."), image]), say("assistant", "No."), *TURN[:2], result([*parts("Taken."), image]), say("user", "And now?")]
    prompt = served.ask(TEMPLATE, {"messages": seen}).body["prompt"]
    assert prompt.count("[An image was here, which this model cannot take.]") == 2 and "Look." in prompt and "Taken." in prompt
    newest = served.ask(CHAT, {"messages": [*seen, say("user", [image])]})
    assert newest.status == 400 and "image" in newest.body["error"]["message"]
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL.partition(",")[2]}}
    claude = [say("user", "Look."), say("assistant", [{"type": "tool_use", "id": "t", "name": "look", "input": {}}]),
              say("user", [{"type": "tool_result", "tool_use_id": "t", "content": [block]}])]
    assert served.ask(MESSAGES, {"max_tokens": 8, "messages": claude}).status == 200


@pytest.mark.parametrize("n_samples", [0, 1, 3])
def test_a_sound_of_a_few_samples_is_refused_by_a_model_of_text(start, n_samples: int) -> None:
    with io.BytesIO() as file:
        with wave.open(file, "wb") as sound:
            sound.setparams((1, 2, 16000, n_samples, "NONE", ""))
            sound.writeframes(bytes(2 * n_samples))
        data = base64.b64encode(file.getvalue()).decode()
    heard = say("user", [*parts("Listen."), {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}])
    reply = start(CHATML).ask(CHAT, {"messages": [heard]})
    assert reply.status == 400 and "audio" in reply.body["error"]["message"]
    prompt = start(CHATML).ask(TEMPLATE, {"messages": [heard, say("assistant", "No."), say("user", "And now?")]}).body["prompt"]
    assert "[Sound was here, which this model cannot take.]" in prompt


def test_a_prompt_that_is_too_long_is_told_in_the_client_s_words(start) -> None:
    served = start(CHATML)
    long = [say("user", "word " * 3000)]
    chat, stream = (served.ask(CHAT, {"messages": long, "stream": stream}) for stream in (False, True))
    error = chat.body["error"]
    n = error["n_prompt_tokens"]
    assert chat.status == stream.status == 400 and (error["code"], error["n_ctx"]) == ("context_length_exceeded", 2048)
    assert error["type"] == "exceed_context_size_error"
    assert f"maximum context length is 2048 tokens. However, your messages resulted in {n} tokens" in error["message"] and "--ctx" in error["message"]
    claude = served.ask(MESSAGES, {"max_tokens": 8, "messages": long})
    assert (claude.status, claude.body["error"]["type"]) == (400, "invalid_request_error")
    assert f"prompt is too long: {n} tokens > 2048 maximum" in claude.body["error"]["message"] and "--ctx" in claude.body["error"]["message"]
    answers = served.ask(RESPONSES, {"input": "=" * 100_000})  # a run of one character; tests/native/test_splits.py has more of them
    assert answers.body["error"]["code"] == "context_length_exceeded" and "exceeds the context window" in answers.body["error"]["message"]


def test_a_call_s_id_has_nine_letters(tmp_path: Path) -> None:
    pieces = [b"<tool_call>", *cut('\n{"name": "look", "arguments": {"at": "it"}}\n'), b"</tool_call>"]
    template = TOOL_LIST + ("{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + (m.content or '') }}{% for c in m.tool_calls or [] %}"
                            "{{ '<tool_call>\n{\"name\": \"' + c.function.name + '\", \"arguments\": ' + (c.function.arguments|tojson) + '}\n</tool_call>' }}"
                            "{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}") + END
    body = {"messages": TURN[:1], "tools": TOOLS}
    with stubbed(tmp_path, pieces, "--ctx", "2048", template=template, marks=("<tool_call>", "</tool_call>")) as served:
        (made,) = served.ask(CHAT, body).body["choices"][0]["message"]["tool_calls"]
        streamed = [c["id"] for event in iter(Stream(served.url, body).event, None) if isinstance(event, dict)
                    for choice in event["choices"] for c in choice["delta"].get("tool_calls", []) if "id" in c]
        assert [len(id_) for id_ in (made["id"], *streamed)] == [9, 9] and made["id"].isalnum()
        back = say("assistant", "", tool_calls=[made])
        assert served.ask(CHAT, {"messages": [*body["messages"], back, say("tool", "Here.", tool_call_id=made["id"])]}).status == 200
