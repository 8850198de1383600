"""The prompts that a store keeps behind a root: listed, kept for a time, removed."""

import time

from msgspec import Struct

from edgekv.prefix_cache.blocks import Link, Reading, line
from edgekv.prefix_cache.files import BlockFile, listed, remove_files
from edgekv.prefix_cache.named import ID_DIGITS, read_pins, snapshots_on
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
    """What one store keeps behind a root (`ModelIdentity.chain_root`), in RAM and in its folder. From any thread."""

    def __init__(self, store: PrefixStore, chain_root: bytes):
        self._store, self._chain_root = store, chain_root
        self._folder, self._root = store.settings.folder, store.identity.root_key()

    def prompts(self) -> list[KeptPrompt]:
        """Raises EdgeKVError if the folder cannot be read."""
        ram, pins = self._store.ram, [] if self._folder is None else [pin for pin in read_pins(self._folder) if pin.root == self._root]
        with ram.lock:
            links = {link.key: link for link in ram.links() if not link.snapshot}
        files = {file.link.key: file for file in self._files() if not file.link.snapshot}  # behind RAM: a block that leaves it is here
        in_ram, links = links.keys(), links | {key: file.link for key, file in files.items()}
        parents = {key: link.parent for key, link in links.items()}
        found, followed = list[KeptPrompt](), set(parents.values())
        for leaf in links:
            keys = line(leaf, parents) if leaf not in followed else []
            if keys and parents[keys[-1]] == self._chain_root:
                with ram.lock:
                    until = max(map(ram.pins.until, keys))
                until = max([until, *(pin.expires for pin in pins if pin.asked and pin.key in keys)])
                unused_s = max(0.0, time.time() - files[leaf].used_ns / 1e9) if leaf in files else None
                found.append(KeptPrompt(
                    tuple(links[key] for key in reversed(keys)), sum(self._store.identity.layout.block_bytes(links[key].n) for key in keys),
                    tuple(place for place, has in ((Ram.name, in_ram), ("disk", files)) if leaf in has), unused_s, until,
                    tuple(pin.name for pin in pins if not pin.asked and pin.key in keys)))
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
        files = self._files()
        gone = sorted((file for file in files if file.link.key in order), key=lambda file: -order[file.link.key])
        remove_files([*gone, *snapshots_on(gone, files)])
        for place in self._store.places:
            place.recount()
        return sum(self._store.identity.layout.block_bytes(link.n) for link in links)

    def _of_these_alone(self, prompts: list[KeptPrompt]) -> list[Link]:
        """The blocks that no other prompt has, each before those that follow it."""
        leaves = {prompt.leaf for prompt in prompts}
        others = {link.key for prompt in self.prompts() if prompt.leaf not in leaves for link in prompt.links}
        return list({link.key: link for prompt in prompts for link in prompt.links if link.key not in others}.values())

    def _files(self) -> list[BlockFile]:
        return [] if self._folder is None else [file for file in listed(self._folder) if file.root == self._root]
