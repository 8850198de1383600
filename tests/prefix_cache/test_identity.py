"""Which rows belong to which model, and to which tokens, read how."""

import numpy as np
from support.prefix_rows import LAYOUT, conversation, identity

from edgekv.prefix_cache.blocks import Reading, child_link
from edgekv.prefix_cache.identity import RowLayout, begins_chain, fingerprint


def test_another_layout_is_another_model():
    widened = RowLayout(LAYOUT.k_bytes, tuple(2 * n for n in LAYOUT.v_bytes))
    keys = {identity().root_key(), identity("another").root_key(), identity(layout=widened).root_key()}
    assert len(keys) == 3 and {len(key) for key in keys} == {16}


def test_chains_of_other_texts_have_other_roots():
    own = identity().root_key()
    roots = [identity().chain_root(*texts) for texts in [("",), ("a",), ("b",), ("", "a"), ("a", ""), ("a", "b"), ("ab", "")]]
    assert roots[0] == own and len(set(roots)) == 7 and {len(root) for root in roots} == {16}
    assert all(begins_chain(own, root) for root in roots)
    assert not begins_chain(own, identity("another").root_key())


def test_every_piece_is_part_of_the_fingerprint():
    prints = {fingerprint(b"model", b"context"), fingerprint(b"modelcontext"), fingerprint(b"context", b"model"), fingerprint(b"model")}
    assert len(prints) == 4 and {len(one) for one in prints} == {16}
    assert fingerprint(b"model", b"context") == fingerprint(b"model", b"context")


def test_a_key_tells_settings_from_tokens():
    tokens = conversation(40)
    settings = tokens[:1].tobytes()
    keys = {child_link(bytes(16), Reading.SAMPLED, tokens, settings).key, child_link(bytes(16), Reading.SAMPLED, tokens).key,
            child_link(bytes(16), Reading.SAMPLED, np.concatenate([tokens[:1], tokens]), b"").key,
            child_link(bytes(16), Reading.SPARSE, tokens, settings).key}
    assert len(keys) == 4
