"""The page of requests' fields: `python -m edgekv.server.fields > edgekv/server/FIELDS.md` writes it."""

import html
from collections.abc import Iterable

_ENDPOINTS = {"c": "chat/completions", "l": "completions", "r": "responses", "m": "messages", "e": "embeddings", "k": "rerank"}
_FATES = {"done": "", "refused": "refused: ", "said": "no effect: "}

_HEAD = """\
# Fields of requests

What a field asks for is done, is refused with HTTP 400 (its name, and what is allowed), or has no effect. Fields without an effect, and fields that this page
does not have, stand in the header `X-EdgeKV-Ignored` of the reply; `--strict-fields` refuses the latter. `null` is as good as no field. Requests that
count tokens have the fields of those that they count for. `python -m edgekv.server.fields` writes this page from the table that requests are checked by
(`native/server/http/field_table.h`).
"""


def page(rows: Iterable[list[str]]) -> str:
    """FIELDS.md of the table's rows, as `edgekv._native.http_server.fields` has them."""
    rows = list(rows)
    parts = [_HEAD]
    for letter, name in _ENDPOINTS.items():
        parts += [f"\n## /v1/{name}\n\n", "| field | allowed | |\n|---|---|---|\n"]
        parts += [f"| `{field}` | {allowed or '-'} | {html.escape(_FATES[fate] + note, quote=False)} |\n"
                  for where, field, fate, allowed, note in rows if letter in where]
    return "".join(parts)


if __name__ == "__main__":
    from edgekv import _native
    from edgekv._native import http_server

    _native.prepare()
    print(page(http_server.fields()), end="")
