"""A new conversation of an agent begins with the prompt that the one before began with, whatever the client numbers and dates."""

import pytest
from support.serve_process import Served
from support.stub_server import stub_server

SYSTEM = "You are an agent. " + " ".join(f"Rule {i} is a rule." for i in range(20))
HEADER = "x-anthropic-billing-header: "

served = stub_server("Fine.", "--parallel", "1")


def messages(served: Served, system: object, **more: object) -> int:
    """Tokens of a prompt of Anthropic's shape that came from the cache."""
    reply = served.ask("/v1/messages", {"max_tokens": 3, "system": system, "messages": [{"role": "user", "content": "Hello"}], **more})
    assert reply.status == 200, reply.text
    return reply.body["usage"]["cache_read_input_tokens"]


def prompt(served: Served, content: object, role: str = "system") -> str:
    body = {"messages": [{"role": role, "content": content}, {"role": "user", "content": "Hello"}]}
    return served.ask("/apply-template", body).body["prompt"]


def test_a_billing_header_begins_no_prompt(served: Served):
    def blocks(header: str) -> list[dict]:
        return [{"type": "text", "text": text} for text in (header, SYSTEM)]

    messages(served, "Something else.")
    assert messages(served, blocks(HEADER + "cc_version=2.1.101.e51; cc_entrypoint=cli; cch=a5145;")) < 50
    # another build, another way in, another order, more and fewer values
    for header in (HEADER + "cc_version=2.1.102.c07; cc_entrypoint=sdk-py; cch=00000;", HEADER + "cch=12345;cc_workload=cron; cc_version=3",
                   HEADER, HEADER + "cc_version=2.1.102.c07;\n"):
        assert messages(served, blocks(header)) > len(SYSTEM)
    assert messages(served, HEADER + "cc_version=2.1.102.c07; cch=54321;" + SYSTEM) > len(SYSTEM)


@pytest.mark.parametrize("separator", ["", "\n", "\n\n"])
def test_a_billing_header_goes_from_other_dialects_too(served: Served, separator: str):
    plain = prompt(served, SYSTEM)
    for begun in (HEADER + "cc_version=2.1.101.e51; cch=a5145;", HEADER.strip() + "cch=1;"):
        assert prompt(served, begun + separator + SYSTEM) == plain
        assert prompt(served, [{"type": "text", "text": begun + separator + SYSTEM}]) == plain


def test_text_that_is_no_header_stays(served: Served):
    values = HEADER + "cc_version=2.1.101.e51;"
    assert values in prompt(served, values, role="user")
    assert values in prompt(served, f"Never write {values}")
    assert prompt(served, values + "Set NAME=a value; then go.") == prompt(served, "Set NAME=a value; then go.")


@pytest.mark.parametrize(("path", "body", "usage", "details"), [
    ("/v1/chat/completions", {"messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Hi"}], "max_tokens": 3},
     "usage", "prompt_tokens_details"),
    ("/v1/responses", {"instructions": SYSTEM, "input": "Hi", "max_output_tokens": 3}, "usage", "input_tokens_details"),
    ("/v1/completions", {"prompt": SYSTEM, "max_tokens": 3}, "usage", "prompt_tokens_details"),
])
def test_prompt_cache_key_is_a_hint_and_cache_salt_a_wall(served: Served, path: str, body: dict, usage: str, details: str):
    def cached(**more: object) -> int:
        reply = served.ask(path, {"model": "x", **body, **more})
        assert reply.status == 200, reply.text
        return reply.body[usage][details]["cached_tokens"]

    cached(cache_salt=path)
    assert cached(cache_salt=path, prompt_cache_key="0192-of-one-thread") > len(SYSTEM) - 5
    assert cached(cache_salt=path, prompt_cache_key="0193-of-another") > len(SYSTEM) - 5
    assert cached(cache_salt=path + " of another") == 0
    refused = served.ask(path, {"model": "x", **body, "cache_salt": 5})
    assert refused.status == 400 and "cache_salt" in refused.body["error"]["message"]


def test_ids_of_threads_and_items_are_in_no_prompt(served: Served):
    """What agents number anew in each conversation, in headers, metadata and messages."""
    def cached(name: str) -> int:
        items = [{"type": "message", "role": role, "id": f"msg_{role}_{name}", "content": [{"type": "input_text", "text": text}]}
                 for role, text in (("developer", SYSTEM), ("user", "Hi"))]
        body = {"model": "x", "input": items, "max_output_tokens": 3, "client_metadata": {"thread_id": name, "turn_id": name}, "metadata": {"user": name}}
        reply = served.ask("/v1/responses", body, **{"session-id": name, "x-session-affinity": name, "x-client-request-id": name})
        assert reply.status == 200, reply.text
        return reply.body["usage"]["input_tokens_details"]["cached_tokens"]

    cached("0192-of-one-thread")
    assert cached("0193-of-another") > len(SYSTEM)
    messages(served, SYSTEM, metadata={"user_id": "one_session"})
    assert messages(served, SYSTEM, metadata={"user_id": "another_session"}) > len(SYSTEM)


def test_cache_salt_is_a_wall_in_messages_too(served: Served):
    assert messages(served, SYSTEM, cache_salt="mine") == 0
    assert messages(served, SYSTEM, cache_salt="mine") > len(SYSTEM)
    assert messages(served, SYSTEM, cache_salt="yours") == 0
