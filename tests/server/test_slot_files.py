"""A slot's file is restored whole or not at all, and the server goes on."""

from pathlib import Path

import pytest
from support.serve_process import Served, serving
from support.stub import write_stub

PROMPT = list(range(40, 140))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_stub(tmp_path_factory.mktemp("stub") / "stub.gguf", "a word")


def act(served: Served, action: str, filename: str = "one"):
    return served.ask(f"/slots/0?action={action}", {"filename": filename})


@pytest.mark.parametrize("mode", ["off", "exact", "sparse"])
def test_only_a_whole_file_is_restored(model: Path, tmp_path: Path, mode: str):
    saved = tmp_path / "slots"
    saved.mkdir()
    with serving(tmp_path, str(model), "--kv", mode, "--parallel", "1", "--ctx", "512", "--cache-ram", "0", "--", "--slot-save-path", str(saved)) as served:

        def n_cached() -> int:
            return served.ask("/completion", {"prompt": PROMPT, "n_predict": 1}).body["timings"]["cache_n"]

        n_cached()
        reply = act(served, "save")
        whole = (saved / "one").read_bytes()
        assert reply.status == 200 and len(whole) > reply.body["n_written"] and [path.name for path in saved.iterdir()] == ["one"]

        flipped = bytearray(whole)
        flipped[len(whole) // 2] ^= 1
        for name, spoilt, why in (("cut", whole[:-1], "lacks its end"), ("half", whole[:len(whole) // 2], "lacks its end"), ("empty", b"", "lacks its end"),
                                  ("theirs", whole[:reply.body["n_written"]], "this server did not save it"), ("longer", whole + whole[-24:], "lacks its end"),
                                  ("flipped", bytes(flipped), "was changed after it was saved")):
            (saved / name).write_bytes(spoilt)
            refused = act(served, "restore", name)
            assert refused.status == 400 and why in refused.body["error"]["message"] and name in refused.body["error"]["message"], refused.text
            assert str(saved) not in refused.text
            (saved / name).unlink()
        assert act(served, "restore", "none").status == 400
        assert n_cached() == len(PROMPT) - 1  # what the slot held is there

        assert act(served, "erase").status == 200
        assert n_cached() == 0
        assert act(served, "erase").status == 200
        assert act(served, "restore").status == 200
        assert n_cached() == len(PROMPT) - 1


def test_a_save_that_finds_no_room_leaves_the_older_file(model: Path, tmp_path: Path):
    saved = tmp_path / "slots"
    saved.mkdir()
    with serving(tmp_path, str(model), "--parallel", "1", "--ctx", "512", "--", "--slot-save-path", str(saved)) as served:
        served.ask("/completion", {"prompt": PROMPT, "n_predict": 1})
        assert act(served, "save").status == 200
        before = (saved / "one").read_bytes()
        (saved / f":part-{served.process.pid}").symlink_to("/dev/full")
        served.ask("/completion", {"prompt": PROMPT[1:], "n_predict": 1})
        refused = act(served, "save")
        assert refused.status == 500 and refused.body["error"]["message"]
        assert act(served, "restore").status == 200  # and what the save began is gone
        assert (saved / "one").read_bytes() == before and [path.name for path in saved.iterdir()] == ["one"]


def test_no_other_save_touches_a_file_of_a_client(model: Path, tmp_path: Path):
    saved = tmp_path / "slots"
    saved.mkdir()
    with serving(tmp_path, str(model), "--parallel", "1", "--ctx", "512", "--", "--slot-save-path", str(saved)) as served:
        served.ask("/completion", {"prompt": PROMPT, "n_predict": 1})
        for name in ("one.part", "one", "n" * 255):
            assert act(served, "save", name).status == 200
        assert {path.name for path in saved.iterdir()} == {"one.part", "one", "n" * 255}
        assert act(served, "save", f":part-{served.process.pid}").status == 400
        assert act(served, "restore", "one.part").status == 200
