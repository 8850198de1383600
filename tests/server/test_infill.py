"""/infill takes as much of a file as the context holds, and cuts what is far from the cursor."""

import pytest
from support.serve_process import Served
from support.stub_server import stub_server

PREFIX, SUFFIX, MIDDLE = "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"
CTX, ANSWER = 2048, 2048 // 8
ROOM = CTX - ANSWER - 5
"""Tokens of a prompt besides its marks; each letter of the stub is one."""

served = stub_server("filled", "--ctx", str(CTX), specials=("<|im_start|>", "<|im_end|>", PREFIX, SUFFIX, MIDDLE), n_ctx=CTX)


def numbered(name: str, n: int) -> str:
    """n letters, which tell their places."""
    return "".join(f"{name}{i:04} " for i in range(-(-n // 6)))[:n]


def parts(served: Served, before: str, behind: str, extra: list[str] | None = None, **more: object) -> tuple[str, str, str]:
    """What stands in the prompt of further files, before the cursor, and behind it."""
    body = {"input_prefix": before, "input_suffix": behind, "input_extra": [{"text": text, "filename": "f"} for text in extra or []], "n_predict": 4}
    reply = served.ask("/infill", {**body, **more})
    assert reply.status == 200, reply.text
    others, _, rest = reply.body["prompt"].partition(PREFIX)
    first, _, rest = rest.partition(SUFFIX)
    last, _, end = rest.partition(MIDDLE)
    assert end == ""
    return others, first, last


def test_what_fits_is_taken_whole(served: Served):
    before, behind, other = numbered("a", 900), numbered("b", 300), numbered("c", 300)
    others, first, last = parts(served, before, behind, [other])
    assert (first, last) == (before, behind) and other in others
    assert parts(served, numbered("a", 1500), "")[1] == numbered("a", 1500), "more than three quarters, where the rest is free"
    assert parts(served, "", numbered("b", 1500))[2] == numbered("b", 1500)


@pytest.mark.parametrize("extra", [0, 400, 9000])
def test_what_does_not_fit_is_cut_far_from_the_cursor(served: Served, extra: int):
    before, behind, other = numbered("a", 9000), numbered("b", 9000), numbered("c", extra)
    others, first, last = parts(served, before, behind, [other] if extra else None)
    assert before.endswith(first) and behind.startswith(last) and other.endswith(others[-extra:] if extra == 400 else others[-50:].strip("\n") or "")
    n = len(others) + len(first) + len(last)
    assert n <= ROOM and len(last) >= (ROOM - ROOM // 4) // 4
    assert len(first) >= (ROOM - ROOM // 4) * 3 // 4 * 7 // 8, "cut in steps of an eighth"


def test_further_files_take_what_is_left_and_the_last_stays(served: Served):
    before, behind = numbered("a", 100), numbered("b", 100)
    others, first, last = parts(served, before, behind, [numbered("c", 9000), numbered("d", 600)])
    assert (first, last) == (before, behind) and others.endswith(numbered("d", 600)) and "c" in others
    assert (ROOM - 200) * 7 // 8 <= len(others) <= ROOM - 200


def test_a_prompt_begins_as_before_while_the_cursor_moves(served: Served):
    text = numbered("a", 9000)
    begins = {parts(served, text[:n], "b")[1][:100] for n in range(8000, 8020)}
    assert len(begins) <= 2
