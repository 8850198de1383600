"""The prompts that a store keeps under some roots: listed, kept for a time, removed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable

from msgspec import Struct

from edgekv.common.errors import EdgeKVError
from edgekv.prefix_cache.blocks import Link, Reading
from edgekv.prefix_cache.files import links_below, listed, path_of, remove_files
from edgekv.prefix_cache.named import ID_DIGITS, Pin, read_pins, snapshots_on
from edgekv.prefix_cache.ram import Ram
from edgekv.prefix_cache.store import PrefixStore


class KeptPrompt(Struct, frozen=True):
    """A chain, from its first block to one that nothing follows."""

    links: tuple[Link, ...]
    n_bytes: int
    """Of its rows, once."""
    places: tuple[str, ...]
    """Those that have its last block: ram, disk."""
    unused_s: float | None
    """Seconds since it was last used; None: it is only in RAM, which does not note the time."""
    until: float
    """It stays until then, in seconds since 1970, because a request asked for it; 0: none did."""
    pins: tuple[str, ...]
    """Names that pin it in the folder."""

    @property
    def leaf(self) -> bytes:
        return self.links[-1].key

    @property
    def id(self) -> str:
        return self.leaf.hex()[:ID_DIGITS]

    @property
    def n_tokens(self) -> int:
        return sum(link.n for link in self.links)

    @property
    def reading(self) -> Reading:
        return self.links[-1].reading


class Kept:
    """What one store keeps under some roots (`ModelIdentity.chain_root`), in RAM and in its folder. From any thread."""

    def __init__(self, store: PrefixStore, roots: Iterable[bytes]):
        self._store, self._roots = store, tuple(roots)
        self._folder, self._root = store.settings.folder, store.identity.root_key()

    def prompts(self) -> list[KeptPrompt]:
        """Raises EdgeKVError if the folder cannot be read."""
        pins = self._pins()
        found: list[KeptPrompt] = []
        pending: list[tuple[bytes, tuple[Link, ...]]] = [(root, ()) for root in self._roots]
        while pending:
            parent, chain = pending.pop()
            below = self._below(parent)
            pending += [(key, (*chain, link)) for key, link in below.items()]
            if chain and not below:
                found.append(self._prompt(chain, pins))
        return found

    def stay(self, prompt: KeptPrompt, ttl_s: float) -> None:
        """The prompt stays so many seconds from now on, or longer if it does so already; 0: no longer, but for a beginning that others have too."""
        if ttl_s:
            self._store.pin(prompt.leaf, time.time() + ttl_s)
            return
        for link in self._of_these_alone([prompt]):
            self._store.unpin(link.key)

    def remove(self, doomed: list[KeptPrompt]) -> int:
        """Remove the blocks that no other prompt has, and every snapshot that may follow them; returns their bytes. What a name pins stays. Raises
        EdgeKVError."""
        links = self._of_these_alone(doomed)
        for link in links:
            self._store.unpin(link.key)
        order = {link.key: i for i, link in enumerate(links)}
        self._store.evict(set(order))  # no write of them is under way behind this
        files = [file for file in listed(self._folder) if file.root == self._root] if self._folder is not None else []
        gone = sorted((file for file in files if file.link.key in order), key=lambda file: -order[file.link.key])
        remove_files([*gone, *snapshots_on(gone, files)])
        return sum(self._store.identity.layout.block_bytes(link.n) for link in links)

    def _of_these_alone(self, prompts: list[KeptPrompt]) -> list[Link]:
        """The blocks that no other prompt has, each before those that follow it."""
        leaves = {prompt.leaf for prompt in prompts}
        others = {link.key for prompt in self.prompts() if prompt.leaf not in leaves for link in prompt.links}
        return list({link.key: link for prompt in prompts for link in prompt.links if link.key not in others}.values())

    def _below(self, parent: bytes) -> dict[bytes, Link]:
        with self._store.ram.lock:
            found = {child.link.key: child.link for child in self._store.ram.following(parent)}
        if self._folder is not None:
            try:
                found |= {link.key: link for link in links_below(self._folder, self._root, parent) if not link.snapshot}
            except OSError as error:
                raise EdgeKVError(f"the folder {self._folder} cannot be read: {error.strerror}") from None
        return found

    def _prompt(self, chain: tuple[Link, ...], pins: list[Pin]) -> KeptPrompt:
        keys = {link.key for link in chain}
        with self._store.ram.lock:
            until = max(self._store.ram.pins.until(key) for key in keys)
            in_ram = chain[-1].key in self._store.ram
        used: float | None = None
        if self._folder is not None:
            with contextlib.suppress(OSError):
                used = path_of(self._folder, self._root, chain[-1]).stat().st_mtime
        until = max([until, *(pin.expires for pin in pins if pin.asked and pin.key in keys)])
        places = ((Ram.name,) if in_ram else ()) + (("disk",) if used is not None else ())
        names = tuple(pin.name for pin in pins if not pin.asked and pin.key in keys)
        return KeptPrompt(chain, sum(self._store.identity.layout.block_bytes(link.n) for link in chain), places,
                          None if used is None else max(0.0, time.time() - used), until, names)

    def _pins(self) -> list[Pin]:
        return [] if self._folder is None else [pin for pin in read_pins(self._folder) if pin.root == self._root]
