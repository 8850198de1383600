"""A real browser without a window, the page in it, and how colours are told apart."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support.clients import until

from edgekv.server.server import Server


@contextmanager
def browser() -> Iterator[Any]:
    """Skips the test where there is none."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    chromium, driver = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("there is no chromium with chromedriver here; apt-get install chromium chromium-driver")
    settings = webdriver.ChromeOptions()
    settings.binary_location = chromium
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        settings.add_argument(argument)
    settings.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = webdriver.Chrome(options=settings, service=webdriver.ChromeService(driver))
    try:
        yield opened
    finally:
        opened.quit()


def look(opened: Any, width: int, theme: str) -> None:
    """Through a window of `width` pixels, by a reader who prefers light or dark."""
    opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": width, "height": 1200, "deviceScaleFactor": 1, "mobile": False})
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": theme}]})


def text(opened: Any, selector: str) -> str:
    """The element's text, hidden or not; empty where there is no such element."""
    return opened.execute_script("return document.querySelector(arguments[0])?.textContent ?? ''", selector)


def texts(opened: Any, selector: str) -> list[str]:
    return opened.execute_script("return [...document.querySelectorAll(arguments[0])].map((one) => one.textContent)", selector)


def shown(opened: Any, selector: str) -> bool:
    return opened.execute_script("return document.querySelector(arguments[0])?.checkVisibility() ?? false", selector)


def visit(opened: Any, server: Server, until_shown: str = "canvas") -> None:
    """The page of a server, once an element of it can be seen."""
    opened.get(f"{server.url}/edgekv")
    until(lambda: shown(opened, until_shown))


def luminance(red: int, green: int, blue: int) -> float:
    linear = [part / 255 / 12.92 if part / 255 <= 0.03928 else ((part / 255 + 0.055) / 1.055) ** 2.4 for part in (red, green, blue)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: tuple[int, int, int], other: tuple[int, int, int]) -> float:
    """As WCAG 2 defines it."""
    low, high = sorted((luminance(*one), luminance(*other)))
    return (high + 0.05) / (low + 0.05)
