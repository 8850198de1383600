"""The page at /edgekv, in a real browser without a window; skipped where there is none."""

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from typing import Any

import pytest
from support.browser import browser as opened
from support.browser import contrast, look
from support.clients import until
from support.local_server import N_TOKENS, SPARSE, complete, options, settled

from edgekv.common.enums import KvMode
from edgekv.config import KvOptions
from edgekv.server import page
from edgekv.server.server import Server


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with opened() as window:
        yield window


@pytest.fixture
def served(synthetic) -> Iterator[Server]:
    with Server(options(synthetic("llama"), kv=SPARSE, n_slots=2)) as server:
        yield server


@contextmanager
def answering(server: Server) -> Iterator[None]:
    """Answers run one after the other, each of another prompt and length: a quick machine ends each between two looks."""
    over = threading.Event()

    def answer() -> None:
        seed = 0
        while not over.is_set():
            complete(server, seed, N_TOKENS, 400 + 10 * (seed % 30))
            seed += 1

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        settled(server)


def text(browser, selector: str) -> str:
    """The element's text, hidden or not; empty where there is no such element."""
    return browser.execute_script("return document.querySelector(arguments[0])?.textContent ?? ''", selector)


def shown(browser, selector: str) -> bool:
    return browser.execute_script("return document.querySelector(arguments[0])?.checkVisibility() ?? false", selector)


COLOURS = """
const canvas = document.querySelectorAll(".map canvas")[arguments[0]];
if (!canvas?.width) return 0;
const data = canvas.getContext("2d").getImageData(40, 0, canvas.width - 40, canvas.height - 20).data, found = new Set();
for (let i = 0; i < data.length; i += 4) if (data[i + 3]) found.add(data[i] << 16 | data[i + 1] << 8 | data[i + 2]);
return found.size;
"""
"""A script that counts the colours of a map."""


def test_it_follows_an_answer(served, browser):
    browser.get(f"{served.url}/edgekv")
    until(lambda: shown(browser, "#main"))
    with answering(served):
        until(lambda: text(browser, "#status").startswith("computing"))
        seen: set[str] = set()
        end = time.monotonic() + 30
        while len(seen) < 3:
            seen.add(text(browser, "#slots"))
            assert time.monotonic() < end, f"the slots said only {seen}"
            time.sleep(0.05)
        assert max(int(browser.execute_script(COLOURS, number)) for number in range(2)) > 10, "places and levels of attention"
        until(lambda: "%" in text(browser, "#curve-hits b"))
    until(lambda: text(browser, "#status") == "idle")
    state = settled(served)
    until(lambda: text(browser, "#slots .label span") == f"{state['slots'][0]['n_tokens']:,} of 1,024 tokens")
    assert f"{state['pages']['promoted']:,} page" in text(browser, "#moved")
    assert len(browser.execute_script("return [...document.querySelectorAll('.map')]")) == 2


def test_it_asks_nobody_else_and_breaks_nothing(served, browser):
    browser.get_log("browser")  # drop the words of earlier pages, whose servers have ended
    browser.get(f"{served.url}/edgekv")
    until(lambda: shown(browser, ".map"))
    asked = browser.execute_script("return performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert asked and all(name.startswith(f"{served.url}/edgekv/") for name in asked)
    said = [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
    assert not said
    browser.execute_script("const other = document.createElement('script'); other.textContent = 'window.broken = 1'; document.body.append(other)")
    assert browser.execute_script("return window.broken ?? 0") == 0, "its policy lets no other script run"


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1600])
def test_it_fits(served, browser, width, theme):
    look(browser, width, theme)
    browser.get(f"{served.url}/edgekv")
    until(lambda: shown(browser, ".map"))
    assert browser.execute_script("return document.documentElement.scrollWidth") == width, "nothing has to be scrolled sideways"
    narrow = browser.execute_script("return [...document.querySelectorAll('.map canvas')].map((canvas) => canvas.clientWidth)")
    assert min(narrow) > 250
    ground = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground))) < 200) == (theme == "dark")


def test_keys_are_asked_for(synthetic, browser):
    with Server(options(synthetic("llama"), api_key="secret")) as server:
        browser.get(f"{server.url}/edgekv")
        until(lambda: shown(browser, "#key"))
        assert not shown(browser, "#main")

        def enter(key: str) -> None:
            field = browser.find_element("css selector", "#key")
            field.clear()
            field.send_keys(key)
            browser.find_element("css selector", "#ask-key button").click()

        enter("wrong")
        until(lambda: shown(browser, "#key-wrong"))
        enter("secret")
        until(lambda: shown(browser, "#main"))
        assert not shown(browser, "#ask-key") and server.alias in text(browser, "#model")
        browser.refresh()
        until(lambda: shown(browser, "#main"))  # the tab remembers the key


@pytest.mark.parametrize(("mode", "note"), [(KvMode.OFF, "no tiers"), (KvMode.EXACT, "")])
def test_it_says_what_there_is_not(synthetic, browser, mode, note):
    with Server(options(synthetic("llama"), kv=KvOptions(mode=mode))) as server:
        browser.get(f"{server.url}/edgekv")
        until(lambda: shown(browser, ".map"))
        assert note in text(browser, "#note") and "nothing decoded yet" in text(browser, ".map")
        assert text(browser, "#curve-speed") == "Nothing decoded yet." and "one tier" in text(browser, "#pages")
        complete(server, n_answer=4)
        until(lambda: "304 tokens" in text(browser, ".map") or "303 tokens" in text(browser, ".map"))


def test_mode_evict_is_told_as_it_is(synthetic, browser):
    with Server(options(synthetic("llama"), kv=KvOptions(mode=KvMode.EVICT, evict_to=256, observe=True))) as server:
        complete(server, n_answer=200)
        state = settled(server)
        dropped = state["pages"]["dropped_tokens"]
        assert dropped > 100
        browser.get(f"{server.url}/edgekv")
        until(lambda: f"{dropped:,} tokens" in text(browser, "#moved"))
        assert "for good" in text(browser, "#moved-what") and "what was dropped" in text(browser, "#column-order")
        assert "being filled" in text(browser, "#legend")
        with answering(server):  # for a second at least: a point of a curve
            until(lambda: "share of the attention is unknown" in text(browser, "#curve-error"))


def test_a_cache_that_slots_share_is_called_one(synthetic, browser):
    with Server(options(synthetic("llama"), kv=SPARSE, n_slots=2, extra=("--kv-unified",))) as server:
        complete(server)
        browser.get(f"{server.url}/edgekv")
        until(lambda: "in one cache of 2,048 tokens for all" in text(browser, "#slots-what"))
        assert "which all slots share" in text(browser, "#column-order")
        assert len(browser.execute_script("return [...document.querySelectorAll('.map')]")) == 1
        with answering(server):
            until(lambda: "of the attention covered" in text(browser, "#curve-error"))


# ---- without a browser ---------------------------------------------------------------------------------------------------------------


def test_the_document_is_whole():
    document = page.document()
    assert "{{" not in document and not re.search(r"""(?:src|href)=["'](?!data:)""", document), "nothing is fetched for it"
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", document)


def parts(colour: str) -> tuple[int, int, int]:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return red, green, blue


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colours_can_be_told_apart(theme):
    light, _, rest = resources.files(page).joinpath("page.css").read_text(encoding="utf-8").partition("@media (prefers-color-scheme: dark)")
    of = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", light if theme == "light" else rest.split("}")[0]))
    for name in ("text", "muted", "wrong"):
        assert min(contrast(parts(of[name]), parts(of[ground])) for ground in ("card", "ground")) >= 4.5, name
    for name in ("home", "arena", "good", "other", "wrong", "filling", "moving", "home-strong", "arena-strong"):
        assert contrast(parts(of[name]), parts(of["card"])) >= 3, name
