"""The page at /edgekv beside servers of their own: behind keys, in other modes; and who may read what a conversation says."""

import pytest
from support.browser import browser as opened
from support.browser import shown, text, texts, visit
from support.clients import send, until
from support.local_server import ask, complete, options, settled

from edgekv._native.http_server import has_ui
from edgekv.common.enums import KvMode
from edgekv.config import KvOptions
from edgekv.prefix_cache.settings import StoreSettings
from edgekv.server.server import Server

STORE = StoreSettings(ram_bytes=1 << 24)


def test_keys_are_asked_for(synthetic, browser):
    with Server(options(synthetic("llama"), api_key="secret")) as server:
        visit(browser, server, "#key")
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


@pytest.mark.parametrize(("mode", "note"), [(KvMode.OFF, "stock llama.cpp computes attention"), (KvMode.EXACT, "Nothing computed yet")])
def test_what_there_is_not_is_not_drawn(synthetic, browser, mode, note):
    with Server(options(synthetic("llama"), kv=KvOptions(mode=mode))) as server:
        visit(browser, server, "#note")
        assert note in text(browser, "#note")
        assert not any(shown(browser, of) for of in ("#slots", "#maps", "#speed", "#figures .card")), "nothing was computed"
        assert texts(browser, "#facts h2") == ["Memory", "Settings"], "no arena"
        complete(server, n_answer=4)
        until(lambda: shown(browser, "canvas") and shown(browser, "#slots"))


def test_mode_evict_is_told_as_it_is(synthetic, browser):
    with Server(options(synthetic("llama"), kv=KvOptions(mode=KvMode.EVICT, evict_to=256, observe=True))) as server:
        complete(server, n_answer=200)
        kept, seen = settled(server)["kept"]
        assert seen - kept > 100
        visit(browser, server)
        assert texts(browser, "#figures .card") == [f"{seen / kept:.1f}\N{MULTIPLICATION SIGN} lessKV: {kept} of {seen} tokens kept, others dropped for good"]


def test_a_conversation_is_read_by_its_own_key_alone(synthetic, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("one\nother\n", encoding="utf-8")
    path, body = "/edgekv/cache?slot=0&first=0&n=8", {"prompt": list(range(260, 300)), "n_predict": 1}
    with Server(options(synthetic("llama"), api_key_file=keys, store=STORE)) as server:
        assert ask(server, "/completion", "one", body).status == 200
        assert ask(server, path, "one").body == {"tokens": list(range(260, 268))}
        assert ask(server, path, "other").body == ask(server, f"{path}&cache_salt=x", "one").body == {"tokens": []}
        assert ask(server, "/edgekv/cache?slot=x&first=0&n=8", "one").status == 400
        ask(server, "/completion", "one", {**body, "cache_prompt": False})
        assert ask(server, path, "one").body == {"tokens": []}, "what is not kept is not shown"
    with Server(options(synthetic("llama"), host="0.0.0.0", store=STORE)) as server:
        ask(server, "/completion", None, body)
        assert ask(server, path).body == {"tokens": []}, "anybody could read it"


# ---- at `/`: llama.cpp's chat page where this build has it (EDGEKV_UI=on), elsewhere the live page ------------------------------


built = pytest.mark.skipif(not has_ui(), reason="built without the chat page; EDGEKV_UI=on builds it")


@built
def test_a_question_is_answered(default_model):
    """In a real browser; the page asks nobody but its own server."""
    with Server(options(default_model, sampling=("--temp", "0"))) as server, opened() as window:
        window.get(f"{server.url}/")
        until(lambda: "SmolLM2" in text(window, "form"))
        window.find_element("css selector", "textarea").send_keys("What is the opposite of hot?\ue007")
        until(lambda: any("cold" in said.lower() for said in texts(window, "p")))
        window.get(f"{server.url}/edgekv")
        assert texts(window, "header a") == ["Chat"]
        window.find_element("css selector", "header a").click()
        until(lambda: "SmolLM2" in text(window, "form"))
        asked = window.execute_script("return performance.getEntriesByType('resource').map((entry) => entry.name)")
        assert asked and all(name.startswith((server.url, "data:", "blob:")) for name in asked)


@built
def test_it_needs_no_key_but_its_requests_do(synthetic, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("secret\n")
    with Server(options(synthetic("llama"), api_key_file=keys)) as server:
        page = send(server.url, "/", **{"Accept-Encoding": "gzip"})
        assert (page.status, page.headers["content-type"], page.headers["server"]) == (200, "text/html; charset=utf-8", "EdgeKV")
        assert send(server.url, "/v1/chat/completions", {"messages": []}).status == 401


def test_elsewhere_the_address_leads_to_the_live_page(synthetic):
    with Server(options(synthetic("llama"), extra=("--no-ui",))) as server:
        led, models = send(server.url, "/"), send(server.url, "/v1/models")
        assert (led.status, led.headers["location"], led.headers["server"], server.options.has_chat_page) == (302, "/edgekv", "EdgeKV", False)
        page = send(server.url, led.headers["location"])
        assert "Chat</a>" not in page.text, "it leads nowhere else"
        assert page.status == 200 and "<title>EdgeKV</title>" in page.text and models.body["data"][0]["owned_by"] == "edgekv", "our own name"
