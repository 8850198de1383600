"""What llama.cpp's server reads beside our command line has no effect, is refused, or is named by `edgekv config show`."""

import json

import pytest
from click.testing import CliRunner
from support.local_server import options

from edgekv.cli.main import cli
from edgekv.common.errors import ConfigError
from edgekv.server import llama_settings, server_options
from edgekv.server.server import Server


@pytest.fixture(autouse=True)
def clean(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def shown(command: str) -> dict[str, tuple[str, str]]:
    result = CliRunner().invoke(cli, ["config", "show", "-o", "json", command])
    assert result.exit_code == 0, (result.output, result.exception)
    rows = {row["option"]: (row["value"], row["source"]) for row in json.loads(result.stdout)}
    return {name.removeprefix("llama.cpp's "): row for name, row in rows.items() if name.startswith("llama.cpp's ")}


def write(tmp_path, text: str) -> str:
    path = tmp_path / "llama.cpp/config.ini"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return str(path)


def test_our_command_line_overwrites_what_it_gives(synthetic, monkeypatch):
    """llama.cpp says which variables a command line overwrites. Of --alias it only adds ours."""
    for variable in llama_settings.OURS.values():
        monkeypatch.setenv(variable, "f16" if "CACHE_TYPE" in variable else "1")
    argv = Server(options(synthetic("llama")))._argv()
    behind_the_model = tuple(argv[argv.index("--alias"):])
    said = server_options.try_extra(behind_the_model).stderr
    for variable in llama_settings.OURS.values():
        assert f"{variable} environment variable is set, but will be overwritten" in said


@pytest.mark.parametrize("command", ["serve", "chat"])
def test_variables_that_have_an_effect_are_named(command, monkeypatch):
    assert shown(command) == {}
    named = {"LLAMA_ARG_CHAT_TEMPLATE": "chatml", "LLAMA_ARG_ALIAS": "also", "LLAMA_ARG_NO_CONT_BATCHING": "1", "LLAMA_ARG_TOP_K": "wrong",
             "LLAMA_MEDIA_MARKER": "<m>", "LLAMA_ARG_API_PREFIX": "/x"}
    for name, value in (named | {"LLAMA_API_KEY": "secret", "LLAMA_ARG_CTX_SIZE": "9", "LLAMA_ARG_HOST": "0.0.0.0", "LLAMA_CLOUD_API_KEY": "secret"}).items():
        monkeypatch.setenv(name, value)
    assert shown(command) == {name: (value, f"variable {name}") for name, value in (named | {"LLAMA_API_KEY": "..."}).items()}


def test_llamas_own_file_is_named(tmp_path):
    """Parts for single models have no effect."""
    path = write(tmp_path, "version = 1\ntop-k = 3 ; few\n[*]\nchat-template = chatml\nno-jinja = 1\nctx-size = 5\nLLAMA_ARG_TOP_P = 0.5\n[ a/b ]\nmin-p = 1\n")
    assert shown("serve") == {name: (value, f"file {path}") for name, value in {
        "top-k": "3", "chat-template": "chatml", "no-jinja": "1", "LLAMA_ARG_TOP_P": "0.5"}.items()}


@pytest.mark.parametrize("entry", ["api-prefix = /x", "api-key = secret", "LLAMA_API_KEY = secret", "LLAMA_ARG_SSL_KEY_FILE = k"])
def test_what_would_keep_us_out_is_refused(tmp_path, entry):
    path = write(tmp_path, f"[*]\n{entry}\n")
    with pytest.raises(ConfigError) as caught:
        server_options.check_extra(())
    assert f"{entry.split()[0]} in llama.cpp's own file {path} cannot be passed on" in str(caught.value) and "secret" not in str(caught.value)


@pytest.mark.parametrize("variable", ["AIP_MODE", "LLAMA_SERVER_ROUTER_PORT"])
def test_what_makes_another_server_is_refused(monkeypatch, variable):
    monkeypatch.setenv(variable, "PREDICTION")
    with pytest.raises(ConfigError, match=f"{variable}.* would .*; unset it"):
        server_options.check_extra(())
