"""`edgekv cache`: what a folder holds, and what may be done to it."""

import json
import re
import time

import pytest
from click.testing import CliRunner
from support import stores
from support.prefix_rows import conversation, exact, identity
from support.stores import n_restored, open_store

from edgekv.cli.cache import cache
from edgekv.common.errors import ConfigError, EdgeKVError
from edgekv.prefix_cache.blocks import Reading
from edgekv.prefix_cache.conversations import add_blocks
from edgekv.prefix_cache.files import scan
from edgekv.prefix_cache.settings import default_folder

SYSTEM = conversation(512, 0)
TALKS = [conversation(100 * n, n, after=SYSTEM) for n in (1, 2, 3)]
OTHER = conversation(300, 9)


def save(folder, tokens, who="a model", reading=Reading.EXACT):
    store = open_store(folder, who=identity(who))
    stores.save(store, tokens, exact(tokens) + reading)
    store.close()
    time.sleep(0.01)


@pytest.fixture
def folder(tmp_path):
    for talk in TALKS:
        save(tmp_path, talk)
    save(tmp_path, OTHER, "another", Reading.SPARSE)
    return tmp_path


def n_stored(folder, tokens, who="a model") -> int:
    store = open_store(folder, who=identity(who))
    found = n_restored(store, tokens, accepts=Reading.SPARSE)
    store.close()  # an open store writes a block again that is removed while the store marks it as used
    return found


def run(folder, command, *arguments, **environment):
    return CliRunner().invoke(cache, [command, *arguments, "--cache-dir", str(folder)], env=environment)


def rows(folder):
    return json.loads(run(folder, "list", "-o", "json").stdout)


def error_of(result, kind):
    assert isinstance(result.exception, kind), result.output
    return str(result.exception)


def test_list(folder):
    found = rows(folder)
    assert [(row["model"], row["tokens"], row["reading"]) for row in found] == [
        ("another", 300, "sparse"), ("a model", 812, "exact"), ("a model", 712, "exact"), ("a model", 612, "exact")]
    assert all(0 <= row["unused_s"] < 300 and row["pins"] == [] for row in found)
    assert found[1]["own_bytes"] > found[2]["own_bytes"] > found[3]["own_bytes"] and found[0]["own_bytes"] == found[0]["bytes"]
    table = run(folder, "list")
    assert "4 conversations in 8 blocks" in table.stderr
    assert all(row["id"] in table.stdout for row in found) and "812" in table.stdout


def test_an_empty_folder(tmp_path):
    assert rows(tmp_path) == [] and "0 conversations in 0 blocks" in run(tmp_path, "list").stderr
    for command in ("list", "verify"):
        assert "name the one of `edgekv serve --cache-dir`" in error_of(run(tmp_path / "none", command), ConfigError)
    assert "0 blocks" in run(tmp_path, "verify").stdout


def test_the_folder_comes_from_the_environment_or_the_users_cache(folder, monkeypatch):
    result = CliRunner().invoke(cache, ["list", "-o", "json"], env={"EDGEKV_CACHE_DIR": str(folder)})
    assert len(json.loads(result.stdout)) == 4
    monkeypatch.setenv("XDG_CACHE_HOME", "/nowhere")
    assert default_folder().parts[-2:] == ("edgekv", "prefixes")


def test_show(folder):
    row = rows(folder)[1]
    shown = json.loads(run(folder, "show", row["id"][:6], "-o", "json").stdout)
    assert shown["first_tokens"] == SYSTEM[:32].tolist()
    assert [(block["first"], block["n"], block["shared"]) for block in shown["blocks"]] == [
        (0, 256, True), (256, 256, True), (512, 256, False), (768, 44, False)]
    text = run(folder, "show", row["id"]).stdout
    assert f"{SYSTEM[0]} {SYSTEM[1]}" in text and "812" in text
    assert len(run(folder, "show", row["id"], "-o", "csv").stdout.splitlines()) == 5


def test_show_says_which_ids_there_are(folder):
    assert "edgekv cache list" in error_of(run(folder, "show", "zz"), ConfigError)
    start = next(c for c in "0123456789abcdef" if sum(row["id"].startswith(c) for row in rows(folder)) == 1)
    assert run(folder, "show", start).exit_code == 0


def test_rm_leaves_what_others_share(folder):
    found = rows(folder)
    assert "1 conversation removed" in run(folder, "rm", found[1]["id"]).stdout
    assert [n_stored(folder, talk) for talk in TALKS] == [612, 712, 512]
    run(folder, "rm", found[2]["id"], found[3]["id"])
    assert [n_stored(folder, talk) for talk in TALKS] == [0, 0, 0]
    assert n_stored(folder, OTHER, "another") == 300


def test_rm_by_model_and_all(folder):
    assert "another" in error_of(run(folder, "rm", "--model", "a third"), ConfigError)
    assert "3 conversations" in run(folder, "rm", "--model", "a model").stdout
    assert len(rows(folder)) == 1
    (block, *_) = scan(folder)
    loose = block.path.parent.with_name("ab" * 16) / f"{'cd' * 16}-0-5.snap"
    loose.parent.mkdir()
    loose.write_bytes(b"behind no block")
    run(folder, "rm", "--all")
    assert rows(folder) == [] and not list(scan(folder))
    assert error_of(run(folder, "rm"), ConfigError)
    assert error_of(run(folder, "rm", "abc", "--all"), ConfigError)


def test_pins(folder):
    first = rows(folder)[3]
    assert "pinned as manual for 2 d" in run(folder, "pin", first["id"], "manual", "--ttl", "2d").stdout
    assert rows(folder)[3]["pins"] == ["manual"] and "manual" in run(folder, "list").stdout
    assert "unpin manual" in error_of(run(folder, "rm", first["id"]), ConfigError)
    assert "1 are pinned" in run(folder, "rm", "--all").stderr
    assert [row["id"] for row in rows(folder)] == [first["id"]] and n_stored(folder, TALKS[0]) == 612
    assert "manual" in error_of(run(folder, "unpin", "other"), ConfigError)
    run(folder, "unpin", "manual")
    run(folder, "rm", "--all")
    assert rows(folder) == []


def test_a_time_and_a_name_that_are_none(folder):
    one = rows(folder)[0]["id"]
    assert run(folder, "pin", one, "x", "--ttl", "soon").exit_code == 2
    assert "letters" in error_of(run(folder, "pin", one, "../x"), ConfigError)


def test_verify(folder):
    result = run(folder, "verify")
    assert result.exit_code == 0 and re.search(r"\d+ blocks, .* 0 damaged", result.stdout)
    damaged = rows(folder)[1]["id"]
    path = next(file.path for file in scan(folder) if file.link.key.hex().startswith(damaged))
    path.write_bytes(path.read_bytes()[:-9])
    result = run(folder, "verify")
    assert "1 of 8 blocks are damaged" in error_of(result, EdgeKVError) and result.exception.exit_code == 1
    assert str(path) in result.stderr and path.exists()
    assert "were removed" in error_of(run(folder, "verify", "--remove"), EdgeKVError) and not path.exists()
    assert run(folder, "verify").exit_code == 0


def test_a_chain_whose_beginning_is_gone_says_so(folder):
    next(file.path for file in scan(folder) if file.link.parent == identity("another").root_key()).unlink()
    assert [row["note"] for row in rows(folder)].count("its beginning is gone") == 1


def test_rm_of_a_kept_chat(folder, tmp_path_factory):
    data = tmp_path_factory.mktemp("data")
    environment = {"XDG_DATA_HOME": str(data)}
    chats = data / "edgekv" / "chats"
    chats.mkdir(parents=True)
    for name, beside in {"mine": {"conversation": "0123456789abcdef"}, "older": {}}.items():
        (chats / f"{name}.json").write_text(json.dumps([{"role": "user", "content": "x", **beside}, {"role": "assistant", "content": "y"}]))
    for name in ("mine", "older"):  # no block of theirs is known yet
        assert f"nothing of {name} is known to be in {folder}" in error_of(run(folder, "rm", "--conversation", name, **environment), ConfigError)
    store = open_store(folder)
    chain = stores.save(store, TALKS[1]).chain
    store.close()
    add_blocks(folder, "0123456789abcdef", [link.key for link in chain])
    add_blocks(folder, "fedcba9876543210", [link.key for link in chain[:2]])
    assert "mine: " in run(folder, "rm", "--conversation", "mine", **environment).stdout
    assert n_stored(folder, TALKS[1]) == len(SYSTEM) and n_stored(folder, TALKS[2]) == len(TALKS[2])
    assert (chats / "mine.json").exists()
    assert "only one of these" in error_of(run(folder, "rm", "--conversation", "mine", "--all", **environment), ConfigError)
    assert "no conversation is kept as nobody" in error_of(run(folder, "rm", "--conversation", "nobody", **environment), EdgeKVError)


def test_rm_of_all_leaves_no_note(folder):
    add_blocks(folder, "0123456789abcdef", [b"0" * 16])
    run(folder, "rm", "--all")
    assert not list(folder.rglob("*.json"))
