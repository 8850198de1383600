"""`edgekv chat` through a terminal, with the real server."""

import json
import pydoc_data.topics
import re

from support.program import Screen

from edgekv.common.errors import EXIT_INTERRUPTED, EXIT_OK

ENDLESS = "Write a very long story about a river.\r"


def test_a_session(screen, tmp_path):
    chat = screen("--kv", "exact", "--ctx", "1024", "--temp", "0", "-n", "12", "-s", "Be brief.", NO_COLOR="1")
    assert re.search(r"EdgeKV \S+ · SmolLM2-135M-Instruct\.Q4_1 · context 1,024 · KV exact\s+1 thread, \w+ · [\d.]+ MiB used, up to [\d.]+ of [\d.]+ GiB",
                     chat.greeting), chat.greeting
    assert re.search(r"the\s+demo\s+model\s+has\s+135M\s+parameters", chat.greeting), chat.greeting
    footer = chat.say("Say hello.", r"decode [\d.]+ t/s")
    assert re.search(r"context \d+/1,024 · KV exact [\d.]+ KiB of 22.5 MiB", footer), footer
    chat.say("/hlep", "did you mean /help")
    chat.type("/he\t")
    chat.until("/help")
    chat.type("\r")
    chat.until("Show this list.*Ctrl-D +Leave")
    chat.type("first\\\rsecond\x1b\rthird\r")  # both ways to start a new line
    chat.until(r"decode [\d.]+ t/s")
    chat.say(f"/save {tmp_path}/talk.json", "saved 5 messages")
    messages = json.loads((tmp_path / "talk.json").read_text())
    assert messages[0] == {"role": "system", "content": "Be brief."} and messages[3]["content"] == "first\nsecond\nthird"
    chat.say("/undo", "taken back: first")
    chat.say("/regen", r"decode [\d.]+ t/s")
    chat.say("/stats", "30 served by our kernel")
    chat.say("/memory", r"home +22.5 MiB .* of 1,024 tokens")
    chat.say("/pin last", "pinned: it stays where the context is full")
    (tmp_path / "fact.txt").write_text("The sky is green.")
    chat.say(f"/read {tmp_path}/fact.txt", "17 characters")
    chat.say("/clear", "new conversation")
    chat.say(f"/load {tmp_path}/talk.json", "loaded 5 messages")
    chat.say("/system", "Be brief.")
    chat.type("/exit\r")
    assert chat.ends() == EXIT_OK
    history = (tmp_path / "state" / "edgekv" / "chat_history").read_text()
    assert "+Say hello." in history and "+second" in history


def test_a_session_in_mode_sparse(screen, tmp_path):
    (tmp_path / "long.txt").write_text("\n".join(pydoc_data.topics.topics.values())[:6000])
    chat = screen("--kv", "sparse", "--sample-budget", "1000", "--ctx", "2048", "--temp", "0", "-n", "48", "-s", "Be brief.",
                  NO_COLOR="1")
    chat.say(f"/read {tmp_path}/long.txt", "6,000 characters")
    footer = chat.say("Summarise.", r"decode [\d.]+ t/s")
    assert re.search(r"reads [\d.]+ %", footer), footer  # and the error, where the line has room: an answer that is cut says so
    shown = chat.say("/pin last", r"2\s+assistant: .*\(pinned, tokens [\d,]+ to [\d,]+\)")
    assert re.search(r"system: Be brief\.  \(pinned, tokens \d+ to \d+\)", shown)
    chat.say("/regen", r"decode [\d.]+ t/s")
    chat.type("/pin\r")
    assert "pinned" not in chat.until(r"2\s+assistant: .*\n>").split("assistant")[1], "another answer is another message"
    chat.say("/pin 7", "use 1 to 2, last or system")
    chat.say("/unpin", "nothing is pinned")
    shown = chat.say("/memory", r"error +~[\d.]+ % of")
    for expected in (r"home +45.0 MiB", r"sketches +4.6 MiB +of all keys", r"reads +\d+ of [\d,]+ tokens a head: [\d.]+ %, of these [\d.]+ % for certain"):
        assert re.search(expected, shown), shown
    assert 0 < float(re.search(r"error +~([\d.]+) % of", shown)[1]) < 50, shown
    reads = re.search(r"reads +(\d+) of ([\d,]+) tokens a head", shown)
    assert 100 < int(reads[1]) < 600 and 1000 < int(reads[2].replace(",", "")) < 2048, shown
    assert "arena" not in footer + shown
    chat.type("/exit\r")
    assert chat.ends() == EXIT_OK


def test_ctrl_c_stops_the_answer_only(screen):
    chat = screen("--ctx", "2048", "--temp", "0")
    for n_messages in (2, 4):
        chat.until(r"\(/help for commands\)")  # what is typed before is shown twice, and a note follows it
        chat.type(ENDLESS)
        chat.until(r"river\.[^\n]*\n\s*([\w'-]+[\s,.]+){4}")
        assert not chat.child.getecho(), "the terminal says that it shows no keys while an answer comes"
        chat.child.sendintr()
        chat.until("stopped by you")  # no rate is asked for: an answer stopped at its first token has none
        chat.say("/stats", rf"messages\s+{n_messages}")
    chat.until(r"\n>")
    chat.leave()


def test_ctrl_c_while_the_prompt_is_read(screen, tmp_path):
    (tmp_path / "long.txt").write_text("\n".join(pydoc_data.topics.topics.values())[:25000])
    chat = screen("--temp", "0", "-n", "8")
    chat.say(f"/read {tmp_path}/long.txt", "25,000 characters")
    chat.say("Summarise.", r"reading.*/[\d,]+ tokens")
    chat.child.sendintr()
    chat.until("stopped before the answer began; nothing is lost")
    chat.until(r"\[long.txt\] > Summarise\.")
    chat.child.sendintr()  # clears the line
    chat.until("Ctrl-C again or Ctrl-D leaves.*\n.*>")
    chat.say("/undo", "taken back: long.txt")
    chat.say("Say hello.", r"decode [\d.]+ t/s")
    chat.until(r"\n>")
    chat.child.sendintr()
    chat.until("Ctrl-C again.*\n>")
    chat.child.sendintr()
    assert chat.ends() == EXIT_OK


def test_a_prompt_that_does_not_fit_is_kept(screen):
    chat = screen("--ctx", "256", "-n", "4")
    chat.type("word " * 300 + "end\r")
    chat.until(r"the context holds 256.*it is kept.*--ctx 1024")
    chat.until("end")
    chat.type("\x01\x0b" + "Say hello.\r")
    chat.until(r"context \d+/256")
    chat.leave()


def test_an_unwritable_history_is_said(screen, tmp_path, environment):
    (tmp_path / "state").write_text("not a folder")
    chat = screen("--ctx", "256")
    chat.until("the history is not kept")
    chat.leave()


def test_ctrl_c_in_one_shot(environment, default_model):
    chat = Screen(environment, "-p", ENDLESS, "--temp", "0")
    chat.until(r"([\w'-]+[\s,.]+){4}")
    chat.child.sendintr()
    assert chat.ends() == EXIT_INTERRUPTED
