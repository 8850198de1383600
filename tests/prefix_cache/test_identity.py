"""Which rows belong to which model."""

import pytest
from support.prefix_rows import LAYOUT, identity

from edgekv.prefix_cache.identity import RowLayout, begins_chain, fingerprint


def test_layout():
    layout = RowLayout(k_bytes=(8, 16), v_bytes=(4, 2))
    assert layout.token_bytes() == 30 and layout.block_bytes(10) == 300
    assert layout.layer_starts(10).tolist() == [0, 120, 300]
    with pytest.raises(ValueError, match="2 layers"):
        RowLayout((1, 2), (1,))


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
