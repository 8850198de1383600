"""What a browser finds at `/`: llama.cpp's chat page where this build has it (EDGEKV_UI=on), elsewhere the live page."""

import pytest
from support.browser import browser, text, texts
from support.clients import send, until
from support.local_server import options

from edgekv._native.http_server import has_ui
from edgekv.server.server import Server

built = pytest.mark.skipif(not has_ui(), reason="built without the chat page; EDGEKV_UI=on builds it")


@built
def test_a_question_is_answered(default_model):
    """In a real browser; the page asks nobody but its own server."""
    with Server(options(default_model, sampling=("--temp", "0"))) as server, browser() as window:
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
