"""One store keeps the prefixes of all adapters and scales that requests name, and gives none to another."""

import threading
import types
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.clients import until
from support.prefix_rows import LAYOUT, conversation

from edgekv._native.prefix_callbacks import CachedTokens, SequenceTokens
from edgekv.common.enums import KvMode
from edgekv.config import KvOptions
from edgekv.models.geometry import open_model
from edgekv.prefix_cache import digests
from edgekv.prefix_cache.settings import StoreSettings
from edgekv.runtime import attachments
from edgekv.server import identities
from edgekv.server.prefixes import Prefixes


class HeldRows:
    needed = None

    def read(self, layers: range, n_bytes: int) -> np.ndarray:
        return np.ones(n_bytes, np.uint8)

    def release(self) -> None:
        pass


class Rows:
    """The tokens of a context whose rows are all the same."""

    arrivals = types.SimpleNamespace(can_wait=False)
    on_device = False

    def row_bytes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return LAYOUT.k_bytes, LAYOUT.v_bytes

    def depends_on(self, adapter: int = 0) -> bytes:
        return bytes([adapter])

    def cells_of(self, seq_id: int, n: int, at: np.ndarray | None = None) -> np.ndarray:
        return np.arange(n, dtype=np.uint32)

    def labelled(self, seq_id: int, n: int, at: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        return self.cells_of(seq_id, n), np.zeros(n, np.uint8)

    def read(self, seq_id: int, cells: np.ndarray, n_bytes: int) -> np.ndarray:
        return np.ones(n_bytes, np.uint8)

    def hold(self, seq_id: int, cells: np.ndarray) -> HeldRows:
        return HeldRows()

    def place(self, seq_id: int, first: int, labels: np.ndarray, tokens: np.ndarray, at: np.ndarray | None = None) -> np.ndarray:
        return np.arange(first, first + len(labels), dtype=np.uint32)

    def write(self, *_: object) -> None:
        pass


class Context:
    """As much of a Runtime as prefixes use."""

    address, mode = 1, KvMode.EXACT
    options = KvOptions(mode=mode)

    def __init__(self) -> None:
        self.tokens = Rows()


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Rows:
    context = Context()
    monkeypatch.setattr(attachments, "find", lambda _: context)
    return context.tokens


def begin(kept: Prefixes, prompt: SequenceTokens) -> CachedTokens:
    """Begin as the server does: when no save of the prompt's beginning is under way."""
    until(lambda: kept.match(prompt, 0, None, alone=True))
    return kept.load(prompt, 0, None)


def test_no_prompt_waits_for_the_digest_of_a_large_model(rows: Rows, synthetic, monkeypatch: pytest.MonkeyPatch, caplog):
    """Prompts before the end of the digest are read and not kept; the log says at the start what takes so long."""
    read = threading.Event()
    digest = digests.digest_of_model
    monkeypatch.setattr(digests, "digest_of_model", lambda path: (read.wait(60), digest(path))[1])
    monkeypatch.setattr(identities, "LONG_S", 0.01)
    kept = Prefixes(open_model(synthetic("llama")).geometry, StoreSettings(ram_bytes=1 << 20))
    tokens = conversation(300)
    kept.insert(of(0.0, tokens), True, False)
    assert kept.load(of(0.0, tokens), 0, None).ram == 0 and not kept.stats()
    opens = threading.Thread(target=kept.open, args=(attachments.find(1),))
    opens.start()
    until(lambda: caplog.records)
    assert opens.is_alive() and "is read once" in caplog.text
    read.set()
    opens.join(60)
    kept.insert(of(0.0, tokens), True, False)
    assert begin(kept, of(0.0, tokens)).ram == 300
    kept.close()


@pytest.fixture
def kept(rows: Rows, synthetic, tmp_path: Path) -> Iterator[Prefixes]:
    kept = Prefixes(open_model(synthetic("llama")).geometry, StoreSettings(ram_bytes=1 << 20, folder=tmp_path, folder_bytes=1 << 30))
    kept.identities.wait()
    yield kept
    kept.close()


def of(scale: float, tokens: np.ndarray) -> SequenceTokens:
    """A sequence with the adapter at address 7, or none at scale 0."""
    return SequenceTokens(1, 0, tokens, ((7, scale),) if scale else ())


def test_a_context_that_is_loaded_again_has_the_same_store(kept: Prefixes, rows: Rows, monkeypatch: pytest.MonkeyPatch):
    """The context before was never closed, as after --sleep-idle-seconds."""
    tokens = conversation(300)
    kept.insert(of(0.0, tokens), True, False)
    again = Context()
    monkeypatch.setattr(attachments, "find", lambda _: again)
    assert begin(kept, of(0.0, tokens)).ram == 300
    assert len(kept.stats()) == 1
