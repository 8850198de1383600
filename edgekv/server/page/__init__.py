"""The page at /edgekv: one document, with its style and scripts in it, that sends requests only to its own server."""

import base64
import hashlib
from importlib import resources

SCRIPTS = ("map.js", "page.js")
"""In the order in which a browser runs them."""


def document(has_chat_page: bool) -> str:
    """`page.html` with everything inside, and a way to llama.cpp's chat page where it is at `/`. A browser runs no other script and
    asks no other host: the policy in it says so."""
    style, script = _text("page.css"), "".join(map(_text, SCRIPTS))
    policy = ("default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
              f"style-src '{_digest(style)}'; script-src '{_digest(script)}'")
    chat = '<p><a href=".">Chat</a></p>' if has_chat_page else ""
    return _text("page.html").replace("{{policy}}", policy).replace("{{chat}}", chat).replace("{{style}}", style).replace("{{script}}", script)


def _text(name: str) -> str:
    return resources.files(__name__).joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """As Content-Security-Policy names what stands in a document."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
