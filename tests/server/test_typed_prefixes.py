"""Kept prefixes of caches with types by layer: they come back for the same types alone, and people read the types in their name."""

from pathlib import Path

from support.prefix_server import EXACT, conversation, from_disk

from edgekv.common.enums import CacheType
from edgekv.config import CacheOptions, LayerTypes
from edgekv.prefix_cache.listing import list_chains
from edgekv.prefix_cache.settings import StoreSettings
from edgekv.server.identities import named

Q8, Q4 = CacheType.Q8_0, CacheType.Q4_0
PROMPT = conversation(1, 300)


def test_other_types_of_a_layer_are_other_rows(synthetic, tmp_path):
    path, where = synthetic("llama", n_layer=3, dtype="f32"), StoreSettings(folder=tmp_path / "kept")

    def found(*k: CacheType) -> int:
        kv = EXACT | {"type_k": "q4_0", "type_v": "q4_0", "layer_types": LayerTypes(k, (Q4, Q4, Q8))}
        return from_disk(path, kv, where, PROMPT)

    assert [found(Q8, Q4, Q4), found(Q8, Q4, Q4), found(Q4, Q8, Q4), found(Q4, Q8, Q4)] == [0, len(PROMPT), 0, len(PROMPT)]
    assert {chain.name for chain in list_chains(tmp_path / "kept")} == {f"{path.stem} (K q8_0 in 1 of 3 layers, V in 1, else q4_0)"}


def test_rows_are_named_by_their_types():
    assert named(Path("a/smol.gguf"), CacheOptions()) == "smol"
    assert named(Path("a/smol.gguf"), CacheOptions(type_k="q8_0", type_v="q4_0")) == "smol (q8_0/q4_0)"
