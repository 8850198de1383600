"""Which rows belong to which model."""

from __future__ import annotations

import numpy as np
import pytest
from support.prefixes import LAYOUT, identity

from edgekv.errors import ModelError
from edgekv.models import synth
from edgekv.models.reader import open_gguf
from edgekv.store.identity import RowLayout, begins_chain, fingerprint_of_file


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return synth.write("llama", tmp_path_factory.mktemp("model") / "tiny.gguf")


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


def test_settings_are_part_of_the_fingerprint(model):
    prints = {fingerprint_of_file(model), fingerprint_of_file(model, "f16", "q8_0"), fingerprint_of_file(model, "f16q8_0"),
              fingerprint_of_file(model, "q8_0", "f16")}
    assert len(prints) == 4 and {len(one) for one in prints} == {16}
    assert fingerprint_of_file(model, "f16") == fingerprint_of_file(model, "f16")


def test_a_changed_weight_or_word_of_metadata_is_another_model(model, tmp_path):
    reader = open_gguf(model)
    places = {"metadata": 40, **{tensor.name: tensor.end - tensor.n_bytes + min(4095, tensor.n_bytes - 1) for tensor in reader.tensor_infos}}
    before, data = fingerprint_of_file(model), np.fromfile(model, np.uint8)
    for name, offset in places.items():
        changed = data.copy()
        changed[offset] ^= 1
        changed.tofile(tmp_path / "changed.gguf")
        try:
            assert fingerprint_of_file(tmp_path / "changed.gguf") != before, name
        except ModelError:
            assert name == "metadata"


def test_no_model_is_a_model_error(tmp_path):
    with pytest.raises(ModelError, match="there is no file"):
        fingerprint_of_file(tmp_path / "none.gguf")


def test_every_part_of_a_split_model_counts(model, tmp_path):
    other = synth.write("llama", tmp_path / "other.gguf", seed=1)
    parts = [tmp_path / f"m-0000{i}-of-00002.gguf" for i in (1, 2)]
    for part in parts:
        part.write_bytes(model.read_bytes())
    before = fingerprint_of_file(parts[0])
    parts[1].write_bytes(other.read_bytes())
    assert fingerprint_of_file(parts[0]) != before
