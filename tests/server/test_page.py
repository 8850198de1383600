"""The page at /edgekv beside one server, in a real browser without a window; skipped where there is none."""

import re
from collections.abc import Iterator
from importlib import resources
from types import SimpleNamespace

import pytest
from support.browser import contrast, look, text, texts, visit
from support.clients import post, shown_at, until
from support.local_server import N_TOKENS, SPARSE, complete, map_fields, options, settled

from edgekv._native.http_server import Request
from edgekv.common.enums import KvMode
from edgekv.prefix_cache.settings import StoreSettings
from edgekv.server import first_tokens, page
from edgekv.server.conversations import Conversations
from edgekv.server.server import Server


@pytest.fixture(scope="module")
def served(synthetic) -> Iterator[Server]:
    """Two slots that share a cache: the first answered the same prompt twice, the other another. By plan they are 2.5 times as fast as stock."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(first_tokens, "decode_speed", lambda request: lambda mode, depth: 10.0 if mode is KvMode.OFF else 25.0)
        with Server(options(synthetic("llama"), kv=SPARSE, n_slots=2, store=StoreSettings(ram_bytes=1 << 24), extra=("--kv-unified",))) as server:
            for seed in (0, 0, 1):
                complete(server, seed)
            settled(server)
            yield server


def test_it_says_what_was_saved(served, browser):
    state = settled(served)
    visit(browser, served)
    first, error, reused, plan = texts(browser, "#figures .card")
    assert re.match(r"[\d.]+\S lessKV read per token: \d+ of \d+ tokens per head", first)
    assert re.match(r"[\d.]+ %estimated error of a head; [\d.]+ % of the attention covered", error)
    found, asked = (state["prompt_tokens"][name] for name in ("found", "asked"))
    assert found >= N_TOKENS - 1 and reused.startswith(f"{found:,}of {asked:,} prompt tokens reused"), "those of a slot's own cells too"
    assert plan.startswith("2.5\N{MULTIPLICATION SIGN}as fast as llama.cpp")


def test_cards_maps_and_state_are_in_step(served, browser):
    state = settled(served)
    visit(browser, served)
    for row, slot in zip(texts(browser, "#slots > div"), state["slots"], strict=True):
        assert "idle" in row and f"{slot['n_tokens']:,} of 1,024 tokens" in row
    assert sum("reused (slot)" in row for row in texts(browser, "#slots > div")) == 1
    assert text(browser, "figcaption") == f"Slots 0, 1: {served.runtime.memory().n_cells_used:,} tokens", "shared cells count once"


CENTRES = """
const canvas = document.querySelector("canvas"), [lines, columns] = arguments, found = [];
const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
for (let line = 0; line < lines; line += 1) for (let column = 0; column < columns; column += 1) {
  const x = Math.floor(30 + (column + 0.5) / columns * (canvas.width - 30)), y = Math.floor(18 + (line + 0.5) / lines * (canvas.height - 36));
  found.push([...data.slice(4 * (y * canvas.width + x), 4 * (y * canvas.width + x) + 3)].join());
}
return found;
"""
"""A script that reads the colours of a map's fields."""


def test_a_map_has_a_colour_for_each_level(served, browser):
    fields, _ = map_fields(served, 0)
    look(browser, 1400, "light")
    visit(browser, served)
    levels = [(value >> 4 > 0, value & 15) for value in fields.flat]
    assert len(set(zip(levels, browser.execute_script(CENTRES, *fields.shape), strict=True))) == len(set(levels)) > 2


def test_a_line_parts_the_slots(served, browser):
    _, drawn = map_fields(served, 0)
    owners = [slots for _, slots in drawn["spans"] if slots]
    assert [0] in owners and [1] in owners
    column = next(column for column, slots in drawn["spans"] if column and slots)
    look(browser, 1400, "light")
    visit(browser, served)
    pixel = browser.execute_script("""
        const canvas = document.querySelector("canvas"), x = 30 + arguments[0] / arguments[1] * (canvas.width - 30);
        return [...canvas.getContext("2d").getImageData(Math.round(x), 100, 1, 1).data].slice(0, 3)""", column, drawn["n_columns"])
    assert tuple(pixel) == parts(palette("light")["text"])
    assert "which the slots share" in text(browser, "#map-what")


def test_the_text_is_told_under_the_mouse_and_by_keys(served, browser):
    _, drawn = map_fields(served, 0)
    slot, first, n = drawn["texts"][1]
    tokens = shown_at(served, f"/edgekv/cache?slot={slot}&first={first}&n={n}")["tokens"]
    said = post(served.url, "/detokenize", {"tokens": tokens})["content"]
    visit(browser, served)
    browser.find_element("css selector", "canvas").send_keys("\ue014" * 2)  # the arrow to the right
    until(lambda: text(browser, "#tip q") == said != "")
    assert f"slot {slot}, tokens {first} to {first + n - 1}, layer 0, head 0: " in text(browser, "#tip")


def test_it_asks_nobody_else_and_breaks_nothing(served, browser):
    browser.get_log("browser")  # drop the words of earlier pages, whose servers have ended
    visit(browser, served)
    asked = browser.execute_script("return performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert asked and all(name.startswith(f"{served.url}/edgekv/") for name in asked)
    said = [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
    assert not said
    browser.execute_script("const other = document.createElement('script'); other.textContent = 'window.broken = 1'; document.body.append(other)")
    assert browser.execute_script("return window.broken ?? 0") == 0, "its policy lets no other script run"


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1400])
def test_it_fits(served, browser, width, theme):
    look(browser, width, theme)
    visit(browser, served)
    assert browser.execute_script("return document.documentElement.scrollWidth") == width, "nothing has to be scrolled sideways"
    assert browser.execute_script("return document.querySelector('canvas').clientWidth") > 300
    ground = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground))) < 200) == (theme == "dark")


# ---- without a browser ---------------------------------------------------------------------------------------------------------------


def test_a_slot_says_what_it_does():
    conversations = Conversations()

    def now(n_tokens: int, at: float) -> tuple:
        figures = SimpleNamespace(taken=at, sequences=[SimpleNamespace(n_tokens=n_tokens, n_positions=n_tokens)])
        (one,) = conversations.of(figures)
        return one.doing, one.tokens_per_second and round(one.tokens_per_second, 3), one.seconds_left and round(one.seconds_left, 3)

    assert now(0, 100.0) == ("idle", None, None)
    request = Request(0, n_prompt=1000, n_found=200, by_tier={"slot": 200}, n_read=0, n_answer=0, read_s=0, answer_s=0, ended=False)
    conversations.told(request, 3.5, 100.0)
    assert now(200, 101.0) == ("prefill", None, None)
    assert now(600, 104.0) == ("prefill", 100.0, 4.0), "400 tokens in 4 s, 400 are left"
    assert now(1000, 108.0) == ("answering", None, None)
    assert now(1020, 109.0) == ("answering", 20.0, None)
    conversations.told(Request(0, 1000, 200, {"slot": 200}, 800, 30, 8.0, 1.5), 0.0, 110.0)
    assert now(1030, 110.0) == ("idle", None, None) and conversations.seconds_saved == 3.5


def test_the_document_is_whole():
    document = page.document(has_chat_page=True)
    assert "{{" not in document and not re.search(r"""(?<!<a )(?:src|href)=["'](?!data:)""", document), "nothing is fetched for it"
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", document)
    assert document.count("\n") <= 350, "it stays small"


def parts(colour: str) -> tuple[int, int, int]:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return red, green, blue


def palette(theme: str) -> dict[str, str]:
    light, _, rest = resources.files(page).joinpath("page.css").read_text(encoding="utf-8").partition("@media (prefers-color-scheme: dark)")
    return dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", light if theme == "light" else rest.split("}")[0]))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colours_can_be_told_apart(theme):
    of = palette(theme)
    for name in ("text", "muted", "wrong"):
        assert min(contrast(parts(of[name]), parts(of[ground])) for ground in ("card", "ground")) >= 4.5, name
    for name in ("home", "good", "other", "wrong", "moving", "home-strong", "arena-strong"):
        assert contrast(parts(of[name]), parts(of["card"])) >= 3, name
