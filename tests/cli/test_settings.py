"""The laws of the table of settings: every one is an option, a variable and a key of the file, and help and documentation tell it."""

import json
import re
from dataclasses import fields
from enum import Enum
from functools import reduce
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from edgekv.cli.common.reference import reference
from edgekv.cli.main import COMMANDS, cli
from edgekv.common.errors import EXIT_USAGE, ConfigError
from edgekv.common.units import size
from edgekv.config import KvOptions
from edgekv.config.options import _GROUPS
from edgekv.config.setting_table import GONE, OF_KV, RENAMED, SETTINGS, Number, Setting, variable_of
from edgekv.policies import POLICIES
from edgekv.prefix_cache.settings import StoreSettings
from edgekv.server.server_options import ServerLimits, ServerOptions
from edgekv.tiering.prefetch import PREFETCHERS

pytestmark = pytest.mark.usefixtures("no_variables")

TEXTS = {"ctx": "64", "sample-budget": "9", "target-error": "2%", "evict-to": "99", "kv-bytes": "24KiB", "kv-dir": "d", "kv-budget": "1MiB",
         "kv-vram": "1GiB", "cache-ram": "7", "cache-disk": "7GiB", "cache-ttl": "12h", "cache-url": "redis://h:1/0", "recall": "ram", "page-size": "32"}
"""A value of settings whose kind does not tell one."""
MOST_SHOWN = 20
"""Options that `--help` shows."""


def value_of(setting: Setting) -> str:
    """A value that is not the default."""
    kind = setting.kind
    if setting.name in TEXTS:
        return TEXTS[setting.name]
    if isinstance(kind, Number):
        return f"{kind.least + 1:g}" if setting.default != kind.least + 1 else f"{kind.least + 2:g}"
    if kind is bool:
        return "off" if setting.usual == "on" else "true"
    values = [getattr(one, "value", one) for one in kind] if isinstance(kind, tuple) or isinstance(kind, type) and issubclass(kind, Enum) else ["a"]
    return next(value for value in reversed(values) if value != setting.usual)


def run(*arguments: str, **variables: str) -> Result:
    return CliRunner().invoke(cli, arguments, env=variables)


def sources(command: str, *arguments: str, **variables: str) -> dict[str, str]:
    result = run("config", "show", command, "-o", "json", *arguments, **variables)
    assert result.exit_code == 0, (result.output, result.exception)
    return {row["option"]: row["source"] for row in json.loads(result.stdout)}


@pytest.mark.parametrize("command", ["chat", "serve"])
def test_each_comes_from_the_command_line_a_variable_and_the_file(command, tmp_path):
    settings = [one for one in SETTINGS if command in one.where]
    words = [word for one in settings for word in ((f"--{one.name}",) if one.kind is bool else (f"--{one.name}", value_of(one)))]
    in_file = [one for one in settings if one.name != "prompt"]  # for one call alone
    text = {one.name: "true" if one.kind is bool else value_of(one) if isinstance(one.kind, Number) else f'"{value_of(one)}"' for one in in_file}
    (tmp_path / "config.toml").write_text("\n".join(f"{name} = {value}" for name, value in text.items()))
    variables = {one.variable: value_of(one) for one in settings}
    names, file = {one.name for one in in_file}, {"EDGEKV_CONFIG": str(tmp_path / "config.toml")}
    for found, source in ((sources(command, *words, **variables, **file), "command line"), (sources(command, **file), "file")):
        assert {name for name, said in found.items() if said == source} == names
    found = sources(command, **variables, **file)
    assert {name: found[name] for name in names} == {one.name: f"variable {one.variable}" for one in in_file}


@pytest.mark.parametrize("setting", OF_KV.values(), ids=lambda one: one.name)
def test_the_library_reads_the_variables_of_kv_options(setting, monkeypatch):
    def value(options: KvOptions) -> Any:
        return getattr(options if setting.keyword == "mode" else next(
            group for name in _GROUPS if hasattr(group := getattr(options, name), setting.keyword)), setting.keyword)

    monkeypatch.setenv(setting.variable, value_of(setting))
    assert value(KvOptions.from_env()) != value(KvOptions())


@pytest.mark.parametrize(("words", "said"), [
    *((f"{command} -c 2147483647", "from 1 to 1,073,741,824, such as 4096 or 4k, or auto") for command in ("chat", "serve", "plan")),
    ("plan -t 99999999999", "99999999999 is not in the range 1<=x<=512"),
    *((f"plan --evict-to {value}", "write tokens such as 4096, 1,073,741,824 at most, or bytes such as 64MiB.") for value in ("99999999999999", "1e9")),
    ("plan --cache-ram " + "9" * 400, "which is too large; write bytes such as 512MiB or 2GiB."),
    ("plan --cache-ram foo", "'foo'; write bytes such as 512MiB or 2GiB."),
    ("plan --kv-bytes foo", "'foo'; write bytes such as 24KiB, or auto."),
    ("plan --kv-budget foo", "'foo'; write bytes such as 512MiB or 2GiB, or auto."),
    *((f"chat -p hi --temp {value}", f"{value} is not a finite number in the range x>=0") for value in ("nan", "inf", "1e400")),
    ("chat -p hi --temp hot", "'hot' is not a valid number."),
    ("chat -p hi -n much", "'much' is not a valid whole number."),
    ("chat -p hi --top-p nan", "nan is not a finite number in the range 0<=x<=1"),
    ("chat -p hi --repeat-penalty inf", "inf is not a finite number in the range x>0"),
    ("chat -p hi -n 99999999999", "99999999999 is too large; give 2,147,483,647 or less"),
    ("chat -p hi --top-k 99999999999999", "is too large; give 2,147,483,647 or less"),
    ("serve --max-queue 99999999999", "is too large; give 2,147,483,647 or less"),
    ("serve --max-itl nan", "nan is not a finite number"),
    *((f"bench {letter} 99999999999", "99999999999 is too large; give 1,073,741,824 or less") for letter in ("-p", "-n", "-d")),
    ("bench -pg 1,99999999999", "99999999999 is too large"),
    ("bench -t 513", "513 is too large; give 512 or less"),
    ("models synth tiny --ctx-train 99999999999", "is not in the range 256<=x<=1073741824"),
])
def test_numbers_that_are_none_or_too_large_get_a_sentence(words, said):
    result = run(*words.split())
    assert result.exit_code == EXIT_USAGE and said in " ".join(result.output.split()), (result.output, result.exception)


def test_defaults_are_said_as_they_are():
    by_name = {one.name: one.default_text for one in SETTINGS}
    options = {one.name: one.default for group in _GROUPS.values() for one in fields(group)}
    for keyword, setting in OF_KV.items():
        if options.get(keyword) is not None:
            default = getattr(options[keyword], "value", options[keyword])
            said = {True: "on", False: "off"}[default] if isinstance(default, bool) else f"{default:g}" if isinstance(default, float) else str(default)
            assert setting.default_text == said, setting.name
    assert by_name["cache-ram"] == size(StoreSettings.ram_bytes) and by_name["cache-disk"] == size(StoreSettings.folder_bytes)
    assert by_name["cache-codec"] == StoreSettings.codec.value and by_name["max-itl"] == f"{ServerLimits.max_gap_s:g}"
    assert (by_name["host"], by_name["cors"]) == (ServerOptions.host, ServerOptions.cors)


@pytest.mark.parametrize("command", ["chat", "serve"])
def test_help_shows_few_and_help_all_every_one(command):
    def shown(option: str) -> list[str]:
        return [line for line in run(command, option).stdout.splitlines() if line.startswith("  -")]

    few, every = shown("--help"), shown("--help-all")
    assert len(run(command, "--help").stdout.splitlines()) <= 30, "a screen"
    assert len(few) <= MOST_SHOWN < len(every) and len(every) == sum(command in one.where for one in SETTINGS) + len(("--help", "--help-all"))
    text = run(command, "--help-all").stdout
    assert all(f"--{one.name}" in text and one.variable in "".join(text.split()) for one in SETTINGS if command in one.where)


def test_the_reference_is_the_tables():
    text = (Path(__file__).resolve().parents[2] / "cli" / "README.md").read_text(encoding="utf-8")
    assert reference() in text, "`python -m edgekv.cli.common.reference` prints what stands there"


def test_names_in_the_help_are_those_of_the_registries():
    """They are written by hand: the registries would load NumPy for every `--help`."""
    by_name = {one.name: one.help for one in SETTINGS}
    assert {"ema", "anchor", "recent", "h2o", "snapkv"} <= set(POLICIES)  # the examples
    assert all(name in by_name["prefetch"] for name in PREFETCHERS)


@pytest.mark.parametrize("name", ["chat", "serve", "plan", "bench", "lab trace record"])
def test_an_old_name_ends_with_the_new_one(name):
    """As an option with and without a value, and as a variable; llama.cpp's short names are those of ours."""
    command = reduce(lambda group, part: group.get_command(click.Context(group), part), name.split(), cli)
    known = {spelled for option in command.params for spelled in option.opts}
    of_command = {old: new for old, new in RENAMED.items() if f"--{new}" in known}
    assert {"cache-type-k", "page-size"} < set(of_command.values()) and {"-ctk", "-ctv"} < known
    for old, new in of_command.items():
        for arguments, variables, said in (([f"--{old}", "1"], {}, f"--{old} is now called --{new}"), ([f"--{old}"], {}, f"--{old} is now called --{new}"),
                                           ([], {variable_of(old): "1"}, f"{variable_of(old)} is now called {variable_of(new)}")):
            result = CliRunner().invoke(cli, [*name.split(), *arguments], env=variables)
            assert isinstance(result.exception, ConfigError) and (str(result.exception), result.exception.exit_code) == (said, EXIT_USAGE)
    assert name != "serve" or set(of_command) == set(RENAMED) - {"prompt-resolution"}, "none is left out"


@pytest.mark.parametrize("name", ["chat", "serve", "plan"])
@pytest.mark.parametrize("gone", GONE)
def test_an_option_that_is_gone_ends_with_what_to_use(name, gone, tmp_path):
    """As an option, as a variable and in the file, which plan does not read."""
    (tmp_path / "options.toml").write_text(f'{gone} = "none"\n')
    ends = "is gone: mode sparse reads what its sketches choose, and"
    for arguments, variables, said in (([f"--{gone}", "none"], {}, f"--{gone} {ends} --{GONE[gone]} says how much"),
                                       ([], {variable_of(gone): "none"}, f"{variable_of(gone)} {ends} {variable_of(GONE[gone])} says how much"),
                                       ([], {"EDGEKV_CONFIG": str(tmp_path / "options.toml")},
                                        f"{tmp_path / 'options.toml'}: {gone} {ends} {GONE[gone]} says how much")):
        if name == "plan" and "EDGEKV_CONFIG" in variables:
            continue
        result = CliRunner().invoke(cli, [name, *arguments], env=variables)
        assert isinstance(result.exception, ConfigError) and (str(result.exception), result.exception.exit_code) == (said, EXIT_USAGE)


@pytest.mark.parametrize(("typed", "meant"), [("--slot", "--parallel"), ("--paralel", "--parallel"), ("--ctxx", "--ctx")])
def test_what_is_suggested_works(typed, meant):
    known = {name for option in cli.get_command(click.Context(cli), "serve").params if not getattr(option, "hidden", False) for name in option.opts}
    result = run("serve", typed, "3")
    suggested = {*re.findall(r"(?<=[ ])--[\w-]+", result.stderr.partition("Did you mean")[2])}
    assert result.exit_code == EXIT_USAGE and meant in suggested <= known


def test_help_is_in_groups_in_one_colour(monkeypatch):
    """Up to 100 characters wide; without colours where NO_COLOR says so, and on no terminal."""
    monkeypatch.setenv("COLUMNS", "200")
    shown = CliRunner().invoke(cli, ["--help"], color=True).output
    plain = click.unstyle(shown)
    titles = [line for line in plain.splitlines() if line and line[0] != " "][1:]
    assert titles == ["Options", "Run a model", "Before you start", "Measure", "Settings"]
    assert all(f"\n  {name} " in plain for name in COMMANDS) and {*re.findall("\x1b\\[([0-9;]*)m", shown)} == {"0", "1", "36"}
    assert "\x1b" not in run("--help").output and "\x1b" not in CliRunner().invoke(cli, ["--help"], color=True, env={"NO_COLOR": "1"}).output
    bench = cli.get_command(click.Context(cli), "bench")
    lines = click.unstyle(bench.get_help(click.Context(bench, parent=cli.make_context("edgekv", ["bench"])))).splitlines()
    assert 90 < max(map(len, lines)) <= 100
