"""Rounded rows: what rounding leaves of them, which places keep them, who may have them, and what becomes of damaged ones."""

import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.prefix_rows import conversation
from support.stores import restore

from edgekv.common.enums import CacheCodec
from edgekv.prefix_cache import codec
from edgekv.prefix_cache.blocks import Block, Conversation, Link, Reading, ReadWith, child_link
from edgekv.prefix_cache.coming import open_block
from edgekv.prefix_cache.files import scan
from edgekv.prefix_cache.folder import FolderPlace
from edgekv.prefix_cache.format import Refused, encode
from edgekv.prefix_cache.identity import ModelIdentity, RowLayout, fingerprint
from edgekv.prefix_cache.kept_prompts import Kept
from edgekv.prefix_cache.listing import list_chains, remove_chains
from edgekv.prefix_cache.place import Outcome
from edgekv.prefix_cache.place_rates import LEAST_SEEN_S, SLOW_RATE, Rate, rounds
from edgekv.prefix_cache.settings import StoreSettings
from edgekv.prefix_cache.store import PrefixStore

LAYOUT = RowLayout((256, 384), (256, 384))
WHO = ModelIdentity(fingerprint(b"numbers"), LAYOUT, "numbers", in_f16=True)
TAKES, NOT = ReadWith(rounded=b"r", takes_rounded=True), ReadWith(rounded=b"r")
CHANNELS = np.linspace(-3, 2, 512)


def numbers(tokens: np.ndarray, n_bytes: int, kind: int) -> np.ndarray:
    """Rows of tokens, float16 [n, channels], by token: a mean and a spread of each channel."""
    rows = [np.random.default_rng([int(token) & 0xFFFF, kind]).normal(CHANNELS[: n_bytes // 2], np.exp(CHANNELS[: n_bytes // 2] / 2)) for token in tokens]
    return np.array(rows, np.float16)


def payload(tokens: np.ndarray) -> np.ndarray:
    parts = [numbers(tokens, n, 2 * layer + kind) for layer in range(2) for kind, n in enumerate((LAYOUT.k_bytes[layer], LAYOUT.v_bytes[layer]))]
    return np.concatenate([part.reshape(-1) for part in parts]).view(np.uint8)


def block_of(n: int, parent: bytes | None = None, may_round: bool = True) -> Block:
    tokens = conversation(n)
    return Block(child_link(parent or WHO.root_key(), Reading.EXACT, tokens), tokens, payload(tokens), may_round)


def open_store(folder, which: CacheCodec = CacheCodec.ROUND, **more) -> PrefixStore:
    return PrefixStore(WHO, StoreSettings(folder=folder, codec=which, **more))


def save(store: PrefixStore, tokens: np.ndarray, may_round: bool = True, readings: np.ndarray | None = None):
    readings = np.zeros(len(tokens), np.uint8) if readings is None else readings
    saved = store.insert(Conversation(tokens, read_with=TAKES), readings, lambda first, n: payload(tokens[first : first + n]),
                         rounded=np.full(len(tokens), not may_round))
    assert store.flush(20)
    return saved


def restored(store: PrefixStore, tokens: np.ndarray, read_with: ReadWith = TAKES, accepts: Reading = Reading.ROUNDED):
    return restore(store, tokens, 0, accepts, read_with=read_with).pieces


def endings(folder) -> list[str]:
    return sorted(file.path.suffix for file in scan(folder))


def close_to(rows: np.ndarray, right: np.ndarray) -> bool:
    """Whether rows were rounded, by no more than the codec's steps."""
    found, right = (one.view(np.float16).astype(np.float32) for one in (rows, right))
    error = np.sqrt(((found - right) ** 2).mean() / (right**2).mean())
    return 0 < error < codec.V_STEP


# ---- the codec -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 3, 5, 100, 256])
@pytest.mark.parametrize("begins", [False, True])
def test_rounding_is_by_half_a_step(n, begins):
    rows = payload(conversation(n))
    first, out = LAYOUT.layer_starts(n)[1], np.empty(LAYOUT.layer_starts(n)[1], np.uint8)
    packed = codec.pack_layer(rows[:first], LAYOUT, 0, n, begins)
    codec.unpack_layer(memoryview(packed), LAYOUT, 0, n, begins, out)
    (k, v), (k_right, v_right) = ((one.view(np.float16).astype(np.float64).reshape(2, n, -1)) for one in (out, rows[:first]))
    if begins:
        np.testing.assert_array_equal(k[: codec.FIRST_RAW], k_right[: codec.FIRST_RAW])
    size = np.sqrt((v_right.reshape(n, -1, 64) ** 2).mean(axis=2))
    largest = np.abs(v_right.reshape(n, -1, 64)).max(axis=2)
    bound = np.maximum(codec.V_STEP * size, largest / 126) * 2 ** (1 / 8) * 0.51 + largest / 1024
    assert (np.abs(v - v_right).reshape(n, -1, 64).max(axis=2) <= bound).all()
    if n == 256:
        assert len(packed) < 0.45 * first
        spread = k_right.std(axis=0)
        assert (np.abs(k - k_right).max(axis=0) <= codec.K_STEP * np.exp(np.log(spread).mean()) + np.abs(k_right).max(axis=0) / 200).all()


@pytest.mark.parametrize("rows", [
    np.zeros((256, 128), np.float16), np.full((256, 128), 3, np.float16), np.full((256, 128), 6e-8, np.float16), np.full((256, 128), 65504, np.float16),
    np.full((256, 128), np.inf, np.float16), np.full((256, 128), np.nan, np.float16),
    np.where(np.arange(256)[:, None] == 7, 65504, 0).astype(np.float16).repeat(128, 1),
], ids=["zeros", "equal", "smallest", "largest", "infinite", "no numbers", "one outlier"])
def test_strange_rows(rows):
    """Numbers that cannot be rounded come back as they are; others err by half a step."""
    both = np.concatenate([rows.reshape(-1)] * 2).view(np.uint8)
    layout, out = RowLayout((256,), (256,)), np.empty_like(both)
    codec.unpack_layer(memoryview(codec.pack_layer(both, layout, 0, 256, False)), layout, 0, 256, False, out)
    found = out.view(np.float16).reshape(2, 256, 128)
    if not np.isfinite(rows).all():
        np.testing.assert_array_equal(out, both)
    else:
        assert (np.abs(found.astype(np.float64) - rows) <= 0.55 * codec.V_STEP * float(np.abs(rows).max()) + 1e-5).all()


def test_rows_of_odd_bytes_and_parts_that_are_missing():
    layout, rows = RowLayout((3, 0), (0, 5)), np.arange(40, dtype=np.uint8)
    for layer, part in ((0, rows[:24]), (1, rows[:40])):
        out = np.empty_like(part)
        codec.unpack_layer(memoryview(codec.pack_layer(part, layout, layer, 8, True)), layout, layer, 8, True, out)
        np.testing.assert_array_equal(out, part)


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_damaged_bytes_are_refused_or_give_other_rows(data):
    n = 40
    first = int(LAYOUT.layer_starts(n)[1])
    packed = bytearray(codec.pack_layer(payload(conversation(n))[:first], LAYOUT, 0, n, True))
    how = data.draw(st.sampled_from(["cut", "flip", "more", "random"]))
    at = data.draw(st.integers(0, len(packed) - 1))
    if how == "cut":
        del packed[at:]
    elif how == "flip":
        packed[at] ^= data.draw(st.integers(1, 255))
    elif how == "more":
        packed[at:at] = data.draw(st.binary(min_size=1, max_size=9))
    else:
        packed = bytearray(data.draw(st.binary(max_size=300)))
    try:
        codec.unpack_layer(memoryview(bytes(packed)), LAYOUT, 0, n, True, np.empty(first, np.uint8))
    except codec.Unpackable:
        return
    assert how == "flip", "bytes are missing or left over"


def test_a_stream_that_unpacks_to_more_takes_no_memory():
    n = 8
    bomb = zlib.compressobj(9, zlib.DEFLATED, -15)
    stream = bomb.compress(bytes(1 << 24)) + bomb.flush()
    part = bytes([codec.ROUNDED_V]) + bytes(2 * n) + stream
    layout = RowLayout((0,), (256,))
    with pytest.raises(codec.Unpackable, match="another number"):
        codec.unpack_layer(memoryview(len(part).to_bytes(4, "little") + part), layout, 0, n, False, np.empty(256 * n, np.uint8))


# ---- a file ----------------------------------------------------------------------------------------------------------------------


def read_as(path: Path, data: bytes | np.ndarray, link: Link) -> np.ndarray:
    """All rows of a file with these bytes, read as the block of a link."""
    path.write_bytes(data)
    rows = np.empty(LAYOUT.block_bytes(link.n), np.uint8)
    open_block(path, WHO.root_key(), link, LAYOUT, Rate()).read(range(LAYOUT.n_layers), rows)
    return rows


def test_a_rounded_file_is_read_as_such_alone(tmp_path):
    path, block = tmp_path / "block", block_of(100)
    data, copy = b"".join(encode(block, WHO, rounded=True)), block.link.copy(rounded=True)
    assert close_to(read_as(path, data, copy), block.payload)
    for wrong, link, why in ((data, block.link, "another block than its name says"), (data[:-1], copy, "truncated"), (data + b"x", copy, "longer")):
        with pytest.raises(Refused, match=why):
            read_as(path, wrong, link)


def test_bytes_that_no_codec_wrote_are_refused_in_spite_of_their_checksum(tmp_path, monkeypatch):
    monkeypatch.setattr(codec, "pack_layer", lambda *_: b"anything")
    block = block_of(100)
    header, stored = encode(block, WHO, rounded=True)
    with pytest.raises(Refused, match="the rows of layer 0 are damaged: a part is cut short"):
        read_as(tmp_path / "block", header + bytes(stored), block.link.copy(rounded=True))


# ---- places ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["a person", "a client"])
def test_rows_as_they_were_read_replace_rounded_ones_and_both_are_removed(tmp_path, by):
    tokens = conversation(300)
    save(open_store(tmp_path), tokens)
    store = open_store(tmp_path)
    restored(store, tokens)
    assert save(store, tokens, may_round=False).n_new == 300
    assert endings(tmp_path) == [".kv", ".kv", ".kvr", ".kvr"]
    assert {piece.reading for piece in restored(store, tokens)} == {Reading.EXACT}
    store.close()
    other = open_store(tmp_path)
    assert {piece.reading for piece in restored(other, tokens)} == {Reading.EXACT}
    if by == "a client":
        kept = Kept(other, WHO.root_key())
        assert kept.remove(kept.prompts()) == 300 * LAYOUT.token_bytes() and not kept.prompts()
    else:
        other.close()  # an open store writes a block again that is removed while it marks it as used
        (chain,) = list_chains(tmp_path)
        assert (chain.reading, chain.n_tokens, len(chain.copies)) == (Reading.EXACT, 300, 2)
        remove_chains([chain], [chain])
    assert not endings(tmp_path)


def test_what_was_rounded_is_not_rounded_again(tmp_path):
    """Neither a copy that another place rounded, nor a block with such rows."""
    place = FolderPlace(WHO, tmp_path, 1 << 30, codec=CacheCodec.ROUND)
    block = block_of(256)
    copy = child_link(block.link.parent, Reading.EXACT, block.tokens, rounded=True)
    assert place.write(Block(copy, block.tokens, block.payload, True)) is Outcome.DECLINED
    assert place.write(block) is place.write(Block(copy, block.tokens, block.payload)) is Outcome.WRITTEN
    assert endings(tmp_path) == [".kvr"]
    place.close()
    store, tokens = open_store(tmp_path), conversation(700, 3)
    may_round = np.arange(700) >= 300
    store.insert(Conversation(tokens, read_with=TAKES), np.where(may_round, 0, Reading.ROUNDED), lambda first, n: payload(tokens[first : first + n]),
                 rounded=~may_round)
    store.flush(20)
    assert endings(tmp_path) == [".kv", ".kv", ".kvr", ".kvr"]
    assert not restored(store, tokens, TAKES, Reading.EXACT) and {piece.reading for piece in restored(store, tokens)} == {Reading.ROUNDED}


@pytest.mark.parametrize("which", list(CacheCodec))
def test_only_numbers_in_f16_are_rounded_and_only_where_it_is_allowed(tmp_path, which):
    other = ModelIdentity(fingerprint(b"other"), LAYOUT, "q8_0")
    for who, may_round in ((other, True), (WHO, False)):
        store = PrefixStore(who, StoreSettings(folder=tmp_path, codec=which))
        save(store, conversation(256), may_round)
    assert endings(tmp_path) == [".kv", ".kv"]


def test_a_place_rounds_where_it_is_slow():
    """Until a far one has given rows counts how fast it took some."""
    fast, slow, unknown = Rate(), Rate(), Rate()
    fast.stored(int(SLOW_RATE), 0.9)
    slow.stored(int(SLOW_RATE), 1.1)
    unknown.stored(1000, LEAST_SEEN_S / 2)
    for far in (False, True):
        assert [rounds(CacheCodec.AUTO, rate, far) for rate in (fast, slow, unknown)] == [False, True, far]
        assert rounds(CacheCodec.AUTO, slow, far, fast) and not rounds(CacheCodec.AUTO, fast, far, slow)
        assert rounds(CacheCodec.ROUND, fast, far, fast) and not rounds(CacheCodec.NONE, slow, far, slow)
    assert [rounds(CacheCodec.AUTO, unknown, True, written) for written in (fast, slow, Rate())] == [False, True, True]


def test_the_time_of_unpacking_is_not_the_places(tmp_path, monkeypatch):
    """Or a fast place would round, because its rounded rows come slowly."""
    tokens = conversation(256)
    save(open_store(tmp_path), tokens)
    seen: list[int] = []
    monkeypatch.setattr(Rate, "stored", lambda _, n_bytes, seconds: seen.append(n_bytes))
    restored(open_store(tmp_path), tokens)
    (file,) = scan(tmp_path)
    assert 0 < sum(seen) < file.n_bytes < 0.45 * LAYOUT.block_bytes(256) + 4096


def test_a_shared_server_keeps_rounded_rows_until_it_is_known_to_be_fast(server, monkeypatch):
    tokens = conversation(600)

    def opened() -> PrefixStore:
        return open_store(None, CacheCodec.AUTO, url=server.url, url_timeout_s=20.0)

    def kept() -> list[bool]:
        names = [name for name in server.client.keys("*") if b":children" not in name]
        return sorted(name.endswith(b":rounded") for name in names)

    monkeypatch.setattr(Rate, "reached", lambda *_: False)
    save(opened(), tokens)
    assert kept() == [True] * 3
    pieces = restored(opened(), tokens)
    assert [(piece.n, piece.source, piece.reading) for piece in pieces] == [(n, "remote", Reading.ROUNDED) for n in (256, 256, 88)]
    assert all(close_to(piece.block.payload, payload(tokens[piece.first : piece.first + piece.n])) for piece in pieces)
    monkeypatch.setattr(Rate, "reached", lambda *_: True)
    save(opened(), conversation(100, 1, after=tokens[:512]))
    assert kept() == [False] * 3 + [True] * 3  # a fast server gets the rows as they are; the other tail goes on otherwise
    assert {piece.reading for piece in restored(opened(), tokens[:512], NOT, Reading.EXACT)} == {Reading.EXACT}


def test_a_rounded_block_replaces_rounded_tails_alone(tmp_path):
    tokens = conversation(200)
    save(open_store(tmp_path), tokens[:50], may_round=False)
    save(open_store(tmp_path, ram_bytes=0), tokens[:100])
    assert endings(tmp_path) == [".kv", ".kvr"]
    save(open_store(tmp_path, ram_bytes=0), tokens)
    assert [(file.path.suffix, file.link.n) for file in scan(tmp_path)] in ([(".kv", 50), (".kvr", 200)], [(".kvr", 200), (".kv", 50)])
