"""logit_bias has an effect in every form that clients write, or is refused with a sentence."""

import pytest
from support.clients import CHAT
from support.dialects import COMPLETIONS, refusal, request
from support.dialects import said as answered
from support.serve_process import Served
from support.stub import SPECIALS
from support.stub_server import stub_server

FORMS = {
    "object": lambda token, bias: {str(token): bias},
    "pairs": lambda token, bias: [[token, bias]],
    "objects": lambda token, bias: [{"token": token, "bias": bias}],
}

served = stub_server([b"yes"])


def said(served: Served, path: str, bias: object) -> str:
    return answered(path, served.ask(path, request(path, limit=1, logit_bias=bias))).text


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_has_an_effect(served: Served, path: str, form: str):
    (q,) = served.ask("/tokenize", {"content": "q"}).body["tokens"]
    yes = 257 + len(SPECIALS)  # the stub's first piece
    assert served.ask("/detokenize", {"tokens": [yes]}).body["content"] == "yes"
    write = FORMS[form]
    assert said(served, path, []) == said(served, path, {}) == said(served, path, None) == "yes"
    assert said(served, path, write(q, 100)) == said(served, path, write("q", 100)) == "q"
    assert said(served, path, write(yes, -100)) != "yes" and said(served, path, write(yes, False)) != "yes"


@pytest.mark.parametrize(("bias", "why"), [
    ([{"id": 5, "bias": 1}], "write [token, bias]"), ([5], "write [token, bias]"), ([[5, 1, 2]], "write [token, bias]"), ("5", 'write {"token": bias'),
    ([[5, "1"]], "a bias is a number"), ({"5": "1"}, "a bias is a number"), ([{"token": 5, "bias": True}], "a bias is a number"),
    ([[5.5, 1]], "a token is a number"), ([[None, 1]], "a token is a number"), ([[100000, 1]], "has no such token"), ({"-1": 1}, "has no such token"),
    ([{"token": 1 << 40, "bias": 1}], "has no such token"),
])
def test_what_cannot_be_read_is_refused(served: Served, bias: object, why: str):
    sentence = refusal(served.ask(CHAT, request(CHAT, logit_bias=bias)))
    assert "'logit_bias'" in sentence and why in sentence


def test_the_last_token_may_have_one_and_no_further_number(served: Served):
    n_vocab = served.ask("/v1/models").body["data"][0]["meta"]["n_vocab"]
    assert said(served, CHAT, [[n_vocab - 1, 1]]) == "yes"
    assert "has no such token" in refusal(served.ask(CHAT, request(CHAT, logit_bias=[[n_vocab, 1]])))
