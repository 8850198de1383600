"""The page at /edgekv: one document, with its style and script in it, that asks the server it came from and nobody else."""

from __future__ import annotations

import base64
import hashlib
from importlib import resources


def document() -> str:
    """`page.html` with `page.css` and `page.js` inside. A browser runs no other script and asks no other host: the policy in it says so."""
    files = resources.files(__name__)
    html, style, script = (files.joinpath(f"page.{kind}").read_text(encoding="utf-8") for kind in ("html", "css", "js"))
    policy = (f"default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
              f"style-src '{_digest(style)}'; script-src '{_digest(script)}'")
    return html.replace("{{policy}}", policy).replace("{{style}}", style).replace("{{script}}", script)


def _digest(text: str) -> str:
    """As Content-Security-Policy names what stands in a document."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
