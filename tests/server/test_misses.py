"""Why a prompt was not taken from the prefix cache: the reply says it, the log, and the metrics by tokens. Each reason is reached through HTTP."""

import logging
import re
import shutil
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
from support.calls import watch
from support.clients import Stream, drained, post, send, shown_at
from support.prefix_server import EXACT, SPARSE, apart, ask, conversation, keep, n_read, serve

from edgekv.common.enums import MissReason
from edgekv.common.errors import DoesNotFit
from edgekv.prefix_cache.coming import BlockReader
from edgekv.prefix_cache.digests import Digesting
from edgekv.prefix_cache.format import Refused
from edgekv.prefix_cache.place import Outage
from edgekv.prefix_cache.results import PrefixHit
from edgekv.prefix_cache.settings import StoreSettings
from edgekv.runtime.tokens import Tokens
from edgekv.server import prefixes as prefixes_of
from edgekv.server.server import Server

STORE = StoreSettings(ram_bytes=64 << 20)


def asked(server: Server, tokens: list[int], **more) -> tuple[int, str | None, str | None, int | None]:
    """(tokens, tier, reason, at_token) of a prompt."""
    usage = post(server.url, "/v1/completions", {"prompt": tokens, "max_tokens": 1, "temperature": 0, **more})["usage"]
    told = usage["edgekv"]["prefix_cache"]
    assert list(told) == ["tokens", "tier", "reason", "at_token"] and told["tokens"] == usage["prompt_tokens_details"]["cached_tokens"]
    return told["tokens"], told["tier"], told["reason"], told["at_token"]


def counts(server: Server) -> tuple[int, dict[str, int], dict[str, int]]:
    """Tokens asked for, found by tier, missed by reason."""
    text = send(server.url, "/metrics").text

    def by(name: str, label: str) -> dict[str, int]:
        return {key: int(n) for key, n in re.findall(rf'^{name}{{{label}="(\w+)"}} (\d+)$', text, re.M) if int(n)}

    (queries,) = re.findall(r"^edgekv_prefix_cache_queries_total (\d+)$", text, re.M)
    return int(queries), by("edgekv_prefix_cache_hits_total", "tier"), by("edgekv_prefix_cache_misses_total", "reason")


def test_replies_log_and_metrics_agree(tiny, tmp_path, caplog):
    """One server: new, whole in its slot, from RAM, a date that changed, `cache_prompt: false`, another salt."""
    log, first = tmp_path / "log", conversation(1, 820)
    dated = [*first[:5], 330, *first[5:]]
    with caplog.at_level(logging.INFO, "edgekv"), serve(tiny, store=STORE, log_file=log) as server:
        rows = [
            (first, {"max_tokens": 4}, (0, None, "cold", 0)),
            (first, {}, (819, "slot", None, None)),
            (conversation(2, 300), {}, (1, "slot", "cold", 1)),
            (first, {}, (819, "ram", None, None)),
            (dated, {}, (5, "slot", "diverged", 5)),
            (first, {"cache_prompt": False}, (0, None, "disabled", 0)),
            (first, {"cache_salt": "other"}, (0, None, "cold", 0)),
        ]
        for tokens, more, expected in rows:
            assert asked(server, tokens, **more) == expected
        server.prefixes.flush()
        queries, hits, misses = counts(server)
        shown = shown_at(server, "/edgekv/state")["prompt_tokens"]
    assert (shown["asked"], shown["found"]) == (queries, sum(hits.values()))
    assert queries == sum(len(tokens) - 1 for tokens, _, _ in rows) == sum(hits.values()) + sum(misses.values())
    assert misses == {"cold": 819 + 298 + 819, "diverged": 815, "disabled": 819}
    said = log.read_text(errors="replace")
    assert len(set(re.findall(r"slot \d, task (\d+) has \d+ tokens of its prompt of \d+", said))) == len(rows)
    assert re.search(r"slot \d, task \d+ has .*diverged.* at token 5; 816 tokens", said)
    lines = [record for record in caplog.records if record.name == "edgekv.requests"]
    answers = [4 if i == 0 else 1 for i in range(len(rows))]
    for record, (tokens, _, (found, tier, reason, _)), n_answer in zip(lines, rows, answers, strict=True):
        reused, lost = (rf", {found} reused \((slot, )?{tier}\)" if found else ""), reason == "diverged"
        again = r", 816 read again \(diverged at token 5\)" if lost else ""
        answer = rf"answer {n_answer} tokens?, \d+\.\d s(, [\d.]+ tok/s)?"
        assert re.fullmatch(rf"\d\d:\d\d:\d\d slot \d: prompt {len(tokens)} tokens{reused}, \d+\.\d s{again}; {answer}", record.getMessage())
        assert record.levelno == (logging.WARNING if lost else logging.INFO), "one line says both, and the loud one is seen everywhere"


def test_every_interface_says_it(wordy_model):
    """The same question, asked through each: the usage of each reply, and of its stream, names the slot that had it."""
    said = "Name three rivers."
    body = {"model": "m", "messages": [{"role": "user", "content": said}], "max_tokens": 2, "temperature": 0}
    with serve(wordy_model, store=STORE) as server:
        post(server.url, "/v1/chat/completions", body)
        prompt = post(server.url, "/apply-template", body)["prompt"]
        response = {"model": "m", "input": said, "max_output_tokens": 2}
        completed = drained(Stream(server.url, response, "/v1/responses"))[-1]["response"]
        begun = next(event for event in drained(Stream(server.url, body, "/v1/messages")) if event["type"] == "message_start")
        usages = {
            "chat": post(server.url, "/v1/chat/completions", body)["usage"], "messages": post(server.url, "/v1/messages", body)["usage"],
            "messages, a stream": begun["message"]["usage"], "responses": post(server.url, "/v1/responses", response)["usage"],
            "responses, a stream": completed["usage"], "completion": post(server.url, "/completion", {"prompt": prompt, "n_predict": 2})}
        unkept = {"cache_prompt": False}
        refused = [post(server.url, "/v1/chat/completions", body | unkept)["usage"], post(server.url, "/v1/messages", body | unkept)["usage"],
                   post(server.url, "/v1/responses", response | unkept)["usage"],
                   post(server.url, "/completion", {"prompt": prompt, "n_predict": 2} | unkept)]
    assert [usage["edgekv"]["prefix_cache"]["reason"] for usage in refused] == 4 * ["disabled"]
    told = {name: usage["edgekv"]["prefix_cache"] for name, usage in usages.items()}
    n = told["chat"]["tokens"]
    assert n > 10 and all(of == {"tokens": n, "tier": "slot", "reason": None, "at_token": None} for of in told.values()), told


def test_without_a_store_nothing_is_asked_for(tiny):
    with serve(tiny, store=None) as server:
        tokens = conversation(1, 300)
        assert asked(server, tokens) == (0, None, "disabled", 0)
        assert asked(server, tokens) == (299, "slot", None, None)


@pytest.fixture(scope="module")
def kept(synthetic, tmp_path_factory) -> Path:
    """A folder with a conversation of 700 tokens."""
    folder = tmp_path_factory.mktemp("kept")
    keep(synthetic("llama", n_head=6, dtype="f32"), EXACT, StoreSettings(folder=folder), conversation(1, 700))
    return folder


@pytest.mark.parametrize(("reason", "what", "name", "instead"), [
    ("damaged", BlockReader, "read", Mock(side_effect=Refused("it is damaged", damaged=True))),
    ("tier_down", Outage, "working", property(lambda _: False)),
    ("cheaper_to_compute", PrefixHit, "worth", lambda hit, reading_s: 0),
    ("model_unknown", Digesting, "unchanged", property(lambda _: False)),
    ("not_attached", prefixes_of.attachments, "find", lambda address: None)])
def test_what_stands_in_the_way_is_named(tiny, kept, tmp_path, monkeypatch, reason, what, name, instead):
    folder = shutil.copytree(kept, tmp_path / "kept")
    monkeypatch.setattr(what, name, instead)
    with serve(tiny, store=StoreSettings(ram_bytes=64 << 20, folder=folder)) as server:
        assert asked(server, conversation(1, 700)) == (0, None, reason, 0)
        assert counts(server)[2] == {reason: 699}


def test_a_place_that_crawls_is_not_waited_for_twice(tiny, tmp_path, monkeypatch, caplog):
    store = StoreSettings(ram_bytes=64 << 20, folder=tmp_path)
    computed = [answer["tokens"] for answer in keep(tiny, EXACT, store, apart(1), apart(2))]
    reads: list[Path] = []
    watch(monkeypatch, BlockReader, "read", lambda block, *_: (reads.append(block.path), time.sleep(0.5)))
    caplog.set_level(logging.INFO, "edgekv")
    with serve(tiny, store=store) as server:
        ask(server, apart(4))
        first = ask(server, apart(1))  # the rate is not known yet
        n_reads = len(reads)
        assert n_reads >= 3 and n_read(first) <= 2 and "are computed: by measured speeds" not in caplog.text
        second = ask(server, apart(2))
        assert len(reads) == n_reads and n_read(second) >= 699
        assert "700 kept tokens of a prompt are computed: by measured speeds" in caplog.text and "from disk takes longer" in caplog.text
        assert n_read(ask(server, apart(1))) <= 2  # RAM does not crawl
    assert [first["tokens"], second["tokens"]] == computed
    monkeypatch.setattr("edgekv.server.prefixes.native.reading_s", lambda first, n: n * 1.0)
    with serve(tiny, store=store) as server:
        assert all(n_read(ask(server, apart(seed))) <= 2 for seed in (1, 2)), "the place is as slow, and prompts take longer still"


def test_rows_of_another_fidelity(tiny, tmp_path):
    """What a sample read is not taken for exact."""
    where, prompt = StoreSettings(ram_bytes=64 << 20, folder=tmp_path), conversation(3, 100)
    (answer,) = keep(tiny, SPARSE | {"exact_tokens": 16}, where, prompt, n=30)
    with serve(tiny, store=where) as server:
        assert asked(server, [*prompt, *answer["tokens"][:-1]]) == (0, None, "other_settings", 0)


def test_rows_without_a_checkpoint(synthetic):
    """A prompt that ends in the middle of a kept one, of a model with windows: its rows are kept, its newest checkpoint lies before it."""
    with serve(synthetic("gemma2", dtype="f32")) as server:
        tokens = conversation(7, 500)
        asked(server, tokens)
        asked(server, conversation(9, 900))
        assert asked(server, tokens[:450]) == (0, None, "no_checkpoint", 0)


def test_no_cells_for_kept_rows(tiny, monkeypatch):
    with serve(tiny, store=STORE) as server:
        asked(server, conversation(1, 700))
        asked(server, conversation(2, 700))
        monkeypatch.setattr(Tokens, "place", _full)
        assert asked(server, conversation(1, 700)) == (1, "slot", "no_cells", 1)


def _full(*_):
    raise DoesNotFit("no cell is free")


def test_every_reason_is_described():
    text = (Path(__file__).parents[2] / "edgekv/server/README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", text.partition("| reason |")[2].partition("\n\n")[0], re.M)
    assert rows == [(reason.value, reason.description) for reason in MissReason]


def test_every_reason_is_reached():
    """By a test here, or in test_media.py."""
    here = set(re.findall(r'"(\w+)"', Path(__file__).read_text(encoding="utf-8")))
    assert {reason.value for reason in MissReason} - {"inside_media"} <= here
