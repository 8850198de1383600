"""The file of options counts below variables and the command line, and a mistake in it gets one sentence."""

import json
import re
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from edgekv.cli.common import config_file
from edgekv.cli.config import commands, template
from edgekv.cli.main import cli
from edgekv.common.errors import EXIT_USAGE, ConfigError
from edgekv.common.machine import default_threads


@pytest.fixture(autouse=True)
def file(no_variables, monkeypatch, tmp_path) -> Path:
    """A place for the file."""
    path = tmp_path / "folder" / "config.toml"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    return path


def run(*arguments: str, **variables: str) -> Result:
    return CliRunner().invoke(cli, arguments, env=variables)


def shown(*arguments: str, **variables: str) -> dict[str, tuple[str, str]]:
    """Each option's value and where it comes from, as `edgekv config show` has them."""
    result = run("config", "show", "-o", "json", *arguments, **variables)
    assert result.exit_code == 0, (result.output, result.exception)
    return {row["option"]: (row["value"], row["source"]) for row in json.loads(result.stdout)}


def write(path: Path, text: str) -> dict[str, str]:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return {"EDGEKV_CONFIG": str(path)}


def test_the_path(file, tmp_path):
    result = run("config", "path")
    assert result.stdout.strip() == str(tmp_path / "home" / "edgekv" / "config.toml") and "config init" in result.stderr
    assert run("config", "path", **write(file, "")).stdout.strip() == str(file)


def test_a_new_file_has_every_option_and_says_nothing(file):
    variables = {"EDGEKV_CONFIG": str(file)}
    assert run("config", "init", **variables).exit_code == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600, "it may come to hold a key"
    assert config_file.tomllib.loads(file.read_text()) == {}
    assert {source for _, source in shown(**variables).values()} == {"default"}
    again = run("config", "init", **variables)
    assert isinstance(again.exception, ConfigError) and "--force" in str(again.exception)
    file.write_text("parallel = 2")
    assert run("config", "init", "--force", **variables).exit_code == 0 and file.read_text() == template()


def test_each_line_of_a_new_file_is_toml():
    """Each line is a key and a default or an example, once its # is gone."""
    lines = [line[1:] for line in template().splitlines() if re.match(r"#[a-z-]+ = ", line)]
    found = {name for line in lines for name in config_file.tomllib.loads(line)}
    assert found == {name for command in commands().values() for name in config_file.keys(command)}
    assert "prompt" not in found and {"ctx", "parallel", "temp", "model", "cache-dir", "max-itl"} <= found


def test_kv_options_of_the_file_reach_the_context(file, monkeypatch):
    """The library reads variables of KV options: they go before the file too. The file may name options without effect."""
    from edgekv.cli import serve as module

    seen = []
    monkeypatch.setattr(module, "model_path", lambda model: Path("m.gguf"))
    monkeypatch.setattr("edgekv.server.server.Server", lambda options: seen.append(options) or 1 / 0)
    variables = write(file, 'kv = "exact"\nsample-budget = 500\ncache-type-k = "q8_0"\nparallel = 3\nmax-queue = 0\ncache-dir = "kept"\ncache-disk = "2GiB"\n')
    run("serve", **variables)
    run("serve", "--kv", "sparse", "--cache-ram", "0", EDGEKV_SAMPLE_BUDGET="900", **variables)
    first, second = seen
    assert (first.kv.mode.value, first.kv.cache.type_k.value, first.n_slots, first.limits.max_queue) == ("exact", "q8_0", 3, 0)
    assert first.store.folder == file.parent / "kept" and first.store.folder_bytes == 2 << 30, "paths begin in the file's folder"
    assert second.kv.mode.value == "sparse" and second.kv.selection.sample_budget == 900 and second.store.ram_bytes == 0


@pytest.mark.parametrize(("text", "sentence"), [
    ("paralel = 2", "there is no option paralel; did you mean parallel?"),
    ("api_key = 'x'", "there is no option api_key; did you mean api-key?"),
    ("zzz = 2", "there is no option zzz; `edgekv config show` lists those there are"),
    ("prompt = 'x'", "there is no option prompt"),
    ("parallel = '2'", "parallel is '2'; it must be a whole number"),
    ("parallel = true", "parallel is True; it must be a whole number"),
    ("parallel = 99", "parallel: 99 is not in the range 1<=x<=16"),
    ("max-itl = 'long'", "max-itl is 'long'; it must be a number"),
    ("kv = 'fast'", "kv: 'fast' is not one of 'exact'"),
    ("footer = 1", "footer is 1; it must be true or false"),
    ("alias = [1]", "alias is [1]; it must be text in quotes"),
    ("kv-budget = 'much'", "kv-budget: kv-budget is 'much'; write bytes such as 512MiB"),
    ("cache-url = 'http://x'", "must begin with redis://"),
    ("parallel = ", "is not TOML"),
    ("slots = 2", "slots is now called parallel"), ("page_tokens = 2", "page-tokens is now called page-size"),
    ("[serve]\nparallel = 2", "there is no option serve"),
])
def test_mistakes_get_a_sentence(file, text, sentence):
    for command in ("serve", "chat"):
        result = run(command, **write(file, text))
        assert isinstance(result.exception, ConfigError) and result.exception.exit_code == EXIT_USAGE
        said = str(result.exception)
        assert sentence in said and str(file) in said and "\n" not in said
    assert run("config", "path", **write(file, text)).exit_code == 0, "what mends the file works"


@pytest.mark.parametrize("kind", ["missing", "folder", "bytes"])
def test_files_that_cannot_be_read(file, kind):
    variables = {"EDGEKV_CONFIG": str(file)}
    if kind == "folder":
        file.mkdir(parents=True)
    elif kind == "bytes":
        write(file, "")
        file.write_bytes(b"\xff\xfe")
    result = run("serve", **variables)
    assert isinstance(result.exception, ConfigError)
    assert {"missing": "there is no file", "folder": "cannot be read", "bytes": "is not UTF-8"}[kind] in str(result.exception)


@pytest.mark.parametrize("command", ["chat", "serve"])
def test_a_default_is_a_value_that_the_option_takes(command):
    found = shown(command)
    options = config_file.keys(commands()[command])
    for name, (value, _) in found.items():
        if value is not None:
            options[name].type.convert(value, options[name], None)
            assert " " not in value or value.endswith("iB"), value
    assert (found["ctx"][0], found["kv"][0], found["when-full"][0]) == ("auto", "sparse", {"chat": "roll", "serve": "stop"}[command])
    assert {found[name][0] for name in ("kv-dir", "target-error", "log-file", "recall")} == {None} and found["prefetch"][0] == "none"
    assert int(found["threads"][0]) == default_threads()


def test_secrets_are_not_shown(file):
    variables = write(file, 'api-key = "secret"\ncache-url = "redis://me:secret@host:1/0"\n')
    found = shown(**variables)
    assert found["api-key"] == ("...", "file") and found["cache-url"] == ("redis://...@host:1/0", "file")
    assert "secret" not in run("config", "show", **variables).output
