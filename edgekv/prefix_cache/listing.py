"""Lists a folder of prefixes for people: conversations, their models, the blocks that they share, and their snapshots."""

import contextlib
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from msgspec import Struct

from edgekv.common.errors import EdgeKVError
from edgekv.prefix_cache.blocks import Reading, line
from edgekv.prefix_cache.coming import open_block
from edgekv.prefix_cache.files import BlockFile, listed, read_header, remove_files
from edgekv.prefix_cache.format import Refused
from edgekv.prefix_cache.identity import begins_chain
from edgekv.prefix_cache.named import ID_DIGITS, Pin, find_id, read_pins, snapshots_on
from edgekv.prefix_cache.place_rates import Rate

UNREADABLE = "(unreadable)"


class Chain(Struct, frozen=True):
    """The blocks of one conversation, from the first to one that nothing follows."""

    files: tuple[BlockFile, ...]
    name: str
    """Of the model."""
    own: tuple[BlockFile, ...]
    """Blocks of this chain alone."""
    pins: tuple[Pin, ...]
    snapshots: tuple[BlockFile, ...] = ()
    """Of models that keep more than rows; other chains with the same beginning may have them too."""
    copies: tuple[BlockFile, ...] = ()
    """Rounded copies of blocks that are also there as they were read."""

    @property
    def leaf(self) -> BlockFile:
        return self.files[-1]

    @property
    def id(self) -> str:
        return self.leaf.link.key.hex()[:ID_DIGITS]

    @property
    def whole(self) -> bool:
        """Whether the chain has its beginning; without that it is never found, and goes when room is needed."""
        return begins_chain(self.leaf.root, self.files[0].link.parent)

    @property
    def n_tokens(self) -> int:
        return sum(file.link.n for file in self.files)

    @property
    def n_bytes(self) -> int:
        return sum(file.n_bytes for file in (*self.files, *self.copies))

    @property
    def snapshot_bytes(self) -> int:
        return sum(file.n_bytes for file in self.snapshots)

    @property
    def own_bytes(self) -> int:
        return sum(file.n_bytes for file in self.own)

    @property
    def reading(self) -> Reading:
        return self.leaf.link.label

    @property
    def unused_s(self) -> float:
        """Seconds since it was last used."""
        return max(0, time.time_ns() - self.leaf.used_ns) / 1e9


def list_chains(folder: Path) -> list[Chain]:
    """Every conversation in a folder, the one that was used last first. Raises EdgeKVError if the folder cannot be read."""
    files, pins = listed(folder), read_pins(folder)
    names: dict[bytes, str] = {}
    found: list[list[BlockFile]] = []
    uses: Counter[Path] = Counter()
    for root in dict.fromkeys(file.root for file in files):
        by_key = {file.link.key: file for file in sorted(files, key=lambda file: not file.link.rounded) if file.root == root and not file.link.snapshot}
        parents = {key: file.link.parent for key, file in by_key.items()}
        followed = set(parents.values())
        paths = [[by_key[key] for key in reversed(line(leaf, parents))] for leaf in by_key if leaf not in followed]
        found += paths
        uses.update(file.path for path in paths for file in path)
        names[root] = next(filter(None, map(_name, by_key.values())), UNREADABLE)
    snapshots = [file for file in files if file.link.snapshot]
    rounded = {file.link.key: file for file in files if file.link.rounded}
    chains = [Chain(tuple(chain), names[chain[-1].root], tuple(file for file in chain if uses[file.path] == 1), _pins_on(chain, pins),
                    tuple(snapshots_on(chain, snapshots)),
                    tuple(rounded[file.link.key] for file in chain if not file.link.rounded and file.link.key in rounded)) for chain in found]
    return sorted(chains, key=lambda chain: -chain.leaf.used_ns)


def _pins_on(chain: list[BlockFile], pins: list[Pin]) -> tuple[Pin, ...]:
    keys = {(file.root, file.link.key) for file in chain}
    return tuple(pin for pin in pins if (pin.root, pin.key) in keys)


def find_chain(chains: list[Chain], start: str) -> Chain:
    """The chain whose ID begins with `start`. Raises ConfigError if there is none, or more than one."""
    return find_id({chain.leaf.link.key: chain for chain in chains}, start,
                   f"no stored conversation has an ID that begins with {start!r}; `edgekv cache list` shows them")


def remove_chains(doomed: Iterable[Chain], chains: Iterable[Chain]) -> int:
    """Remove the blocks of `doomed` that no other of `chains` has, the last of each first, and every snapshot that may follow them; bytes removed.
    Raises EdgeKVError."""
    doomed = list(doomed)
    leaves = {chain.leaf.path for chain in doomed}
    kept = {file.path.stem for chain in chains if chain.leaf.path not in leaves for file in chain.files}
    files = [file for chain in doomed for file in (*reversed(chain.files), *chain.copies) if file.path.stem not in kept]
    return remove_files([*files, *snapshots_on(files, (file for chain in doomed for file in chain.snapshots))])


def fault_of(file: BlockFile) -> Refused | None:
    """Read and verify all of a block or snapshot; None: it is as it was written, or evicted meanwhile."""
    try:
        reader = open_block(file.path, file.root, file.link, None, Rate())
        layout = reader.header.layout
        reader.read(range(layout.n_layers), np.empty(layout.block_bytes(file.link.n), np.uint8))
    except Refused as error:
        return error
    except FileNotFoundError:
        pass
    except OSError as error:
        return Refused(f"it cannot be read ({error.strerror})", damaged=False)
    return None


def first_tokens(chain: Chain, n: int) -> list[int]:
    """The first tokens of a conversation. Raises EdgeKVError if its first block cannot be read."""
    file = chain.files[0]
    try:
        return read_header(file.path).tokens[:n].tolist()
    except (OSError, Refused) as error:
        raise EdgeKVError(f"{file.path} cannot be used: {error}; `edgekv cache verify --remove` removes what is damaged") from None


def _name(file: BlockFile) -> str | None:
    with contextlib.suppress(OSError, Refused):
        return read_header(file.path).name
    return None
