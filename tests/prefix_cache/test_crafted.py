"""Somebody made these files to be read: the parser raises its own error alone, whatever they say."""

import json
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.prefix_rows import LAYOUT, conversation, identity

from edgekv.prefix_cache.blocks import Reading, child_link
from edgekv.prefix_cache.format import _PREFIX, MAGIC, VERSION, Refused, decode_header
from edgekv.prefix_cache.named import read_pins

TOKENS = conversation(256)


def header(text: bytes) -> bytes:
    head = _PREFIX.pack(MAGIC, VERSION, len(text), zlib.crc32(text)) + text
    return head + bytes(-len(head) % 64)


def said(**changes: object) -> dict:
    """A block's header that is right but for the changes."""
    root = identity().root_key()
    tokens = np.asarray(changes.get("tokens", TOKENS.tolist()), np.int32)
    link = child_link(root, Reading.EXACT, tokens)
    return {"root": root.hex(), "name": "x", "parent": root.hex(), "key": link.key.hex(), "reading": 0, "read_with": "", "k_bytes": LAYOUT.k_bytes,
            "v_bytes": LAYOUT.v_bytes, "checksums": [0, 0], "tokens": TOKENS.tolist(), **changes}


CRAFTED = {
    "deep": b"[" * 500_000,
    "deep objects": b'{"a":' * 100_000,
    "deep tokens": json.dumps(said()).encode()[:-1] + b',"tokens":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "long number": b'{"tokens":[' + b"9" * 100_000 + b"]}",
    "tokens of two dimensions": json.dumps(said(tokens=TOKENS.reshape(128, 2).tolist())).encode(),
    "negative rows": json.dumps(said(k_bytes=[-8, 16])).encode(),
    "infinite rows": json.dumps(said(k_bytes=[float("inf"), 16])).encode(),
    "rows beyond all memory": json.dumps(said(k_bytes=[10**30, 16])).encode(),
    "settings without end": json.dumps(said(read_with="00" * 300)).encode(),
    "no object": b"3",
    "a name that is no text": b'{"name":"\xff"}',
}


@pytest.mark.parametrize("text", CRAFTED.values(), ids=CRAFTED)
def test_a_crafted_header_is_refused(text):
    with pytest.raises(Refused):
        decode_header(header(text))


def test_one_that_is_right_is_not():
    assert decode_header(header(json.dumps(said()).encode())).link.n == 256


_VALUES = st.recursive(st.none() | st.booleans() | st.integers(-10**40, 10**40) | st.floats() | st.text(max_size=8),
                       lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3), max_leaves=12)


@given(st.sampled_from(sorted(said())), _VALUES)
def test_any_value_is_refused_or_consistent(name, value):
    try:
        found = decode_header(header(json.dumps(dict(said(), **{name: value}) if name != "tokens" else {**said(), name: value}).encode()))
    except Refused:
        return
    assert found.tokens.ndim == 1 and 0 <= found.start <= found.n_bytes < 1 << 62


def test_a_crafted_pin_is_none(tmp_path):
    (tmp_path / "pins").mkdir()
    (tmp_path / "pins" / "deep.json").write_bytes(b"[" * 500_000)
    (tmp_path / "pins" / "number.json").write_text('{"root": 3}')
    (tmp_path / "pins" / "endless.json").write_text('{"root": "00", "key": "00", "expires": 1e999, "tokens": ' + "9" * 9000 + "}")
    assert read_pins(Path(tmp_path)) == []
