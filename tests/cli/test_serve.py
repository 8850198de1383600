"""`edgekv serve`: its options become settings, mistakes get a sentence, and the program says its first lines and ends as it should."""

import os
import re
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner
from support.clients import post
from support.program import EDGEKV
from support.serve_process import serving

from edgekv._native import http_server
from edgekv.cli.common.caches import caches_text, split_cache_options, without_password
from edgekv.cli.common.config_file import use_config_file
from edgekv.cli.common.shared_options import settings_of
from edgekv.cli.main import cli
from edgekv.cli.serve import _announce
from edgekv.common.enums import CacheCodec
from edgekv.common.errors import EXIT_DOES_NOT_FIT, EXIT_OK, EXIT_USAGE, ConfigError, DoesNotFit
from edgekv.models import geometry
from edgekv.prefix_cache.settings import StoreSettings
from edgekv.server.server import Server
from edgekv.server.server_options import ServerOptions

pytestmark = pytest.mark.usefixtures("no_variables")


# ---- caches ---------------------------------------------------------------------------------------------------------------------


def caches(*arguments: str, **variables: str) -> StoreSettings | None:
    found: list[StoreSettings | None] = []

    @click.command()
    @settings_of("serve")
    def command(**settings: Any) -> None:
        found.append(split_cache_options(settings))

    result = CliRunner().invoke(command, arguments, env=variables, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return found[0]


def test_what_is_kept_where():
    assert caches() == StoreSettings() and caches().folder is None, "RAM alone: nothing is written that nobody asked for"
    assert caches("--cache-ram", "0") is None
    assert caches("-cram", "512") == caches("--cache-ram", "512MiB") == StoreSettings(512 << 20), "a bare number is in MiB, as in llama.cpp"
    assert caches("--cache-ram", "0", "--cache-dir", "d") == StoreSettings(ram_bytes=0, folder=Path("d"))
    assert caches("--cache-ram", "2GiB", "--cache-disk", "5GiB", EDGEKV_CACHE_DIR="d") == StoreSettings(2 << 30, Path("d"), 5 << 30)
    assert caches(EDGEKV_CACHE_URL="redis://h:1/0").url == "redis://h:1/0"
    assert caches(EDGEKV_CACHE_DISK="5GiB") == StoreSettings(folder_bytes=5 << 30), "a variable may be without effect"
    assert caches("--cache-codec", "round").codec is CacheCodec.ROUND and caches().codec is CacheCodec.AUTO
    with pytest.raises(ConfigError, match="--cache-disk bounds the folder of --cache-dir, and there is none"):
        caches("--cache-disk", "5GiB")
    assert caches("--cache-dir", "d", "--cache-ttl", "12h").folder_ttl_s == 12 * 3600
    with pytest.raises(ConfigError, match="--cache-ttl is for the folder of --cache-dir, and there is none"):
        caches("--cache-ttl", "12h")


def test_what_is_said_of_them():
    assert caches_text(None) == "none" and caches_text(StoreSettings()) == "1.0 GiB of RAM"
    everything = StoreSettings(1 << 20, Path("d"), 1 << 30, "redis://me:secret@h:1/0")
    assert caches_text(everything) == "1.0 MiB of RAM, 1.0 GiB in d, redis://...@h:1/0"
    assert without_password("redis://h:1/0") == "redis://h:1/0"


@pytest.mark.parametrize("arguments", [
    ("--cache-ram", "much"), ("--cache-ram", "auto"), ("--cache-ram", "-1"), ("--cache-disk", "x"), ("--cache-ttl", "x"), ("--cache-url", "http://h"),
    ("--cache-dir", __file__), ("--parallel", "0"), ("-np", "17"), ("--parallel", "x"), ("--max-itl", "-1"),
    ("--max-itl", "nan"), ("--max-queue", "-1"), ("--cors", "example.org"), ("--allow-host", "a b"), ("--api-key", ""), ("--api-key", "a,b"),
    ("--allow-media-host", "http://a"), ("--api-key-file", "none"), ("--host", "1.2.3.4"), ("--port", "99999"),
], ids=" ".join)
def test_mistakes_get_a_sentence(synthetic, arguments):
    result = CliRunner().invoke(cli, ["serve", str(synthetic("llama")), *arguments])
    code = result.exception.exit_code if isinstance(result.exception, ConfigError) else result.exit_code
    assert code == EXIT_USAGE and (str(result.exception) + result.output).strip()
    assert "a,b" not in str(result.exception)


def test_hosts_come_one_by_one_in_lists_and_from_elsewhere(tmp_path, monkeypatch):
    def hosts(*arguments: str, text: str = "") -> tuple[str, ...]:
        (tmp_path / "config.toml").write_text(text)
        monkeypatch.setenv("EDGEKV_CONFIG", str(tmp_path / "config.toml"))
        with click.Context(cli) as context:
            command = cli.get_command(context, "serve")
            use_config_file(context, {"chat": cli.get_command(context, "chat"), "serve": command})
            return command.make_context("serve", list(arguments), parent=context).params["allow_host"]

    assert hosts() == () and hosts("--allow-host", "A.example,b", "--allow-host", "::1") == ("a.example", "b", "::1")
    assert hosts(text='allow-host = "a.example, b"') == ("a.example", "b")
    monkeypatch.setenv("EDGEKV_ALLOW_HOST", "c.example,d")
    assert hosts(text='allow-host = "a.example, b"') == ("c.example", "d") and hosts("--allow-host", "e") == ("e",)


def test_memory_of_the_cache_is_not_given_to_the_context(synthetic):
    model = synthetic("llama")
    kept = StoreSettings(ram_bytes=1 << 50)
    with pytest.raises(DoesNotFit, match="are set aside for kept prefixes .--cache-ram") as caught:
        Server(ServerOptions(model, n_ctx=256, store=kept))
    assert caught.value.exit_code == EXIT_DOES_NOT_FIT
    assert Server(ServerOptions(model, n_ctx=256)).context.n_ctx == 256


# ---- what it says ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("public", "needs_key", "warns"), [(True, False, True), (True, True, False), (False, False, False)])
def test_a_server_for_everybody_warns(synthetic, capsys, monkeypatch, public, needs_key, warns):
    monkeypatch.setattr(http_server, "has_ui", lambda: public)
    _announce(SimpleNamespace(
        context=SimpleNamespace(n_ctx=1024, note=None), options=ServerOptions(synthetic("llama"), n_slots=3, store=StoreSettings()),
        model=geometry(synthetic("llama")), is_public=public, needs_key=needs_key, alias="a", url="http://h:1", runtime=None), "Ctrl-C to stop")
    out, err = capsys.readouterr()
    assert ("warning: ANYBODY who reaches this machine can use the server" in err) is warns and not out
    key = " (with a key)" if needs_key else ""
    chat = "  Chat    http://h:1/\n" if public else ""
    assert err.endswith(f"  KV      off\n{chat}  API     http://h:1/v1{key}\n  Live    http://h:1/edgekv\nCtrl-C to stop\n"), "a cache in RAM is no news"


def test_a_key_of_llama_cpps_own_variable_counts(synthetic, tmp_path):
    with serving(tmp_path, str(synthetic("llama")), "--ctx", "256", LLAMA_API_KEY="theirs") as served:
        assert served.ask("/v1/models").status == 401
        assert served.ask("/v1/models", key="theirs").status == 200


def test_the_default_model_samples_as_its_card_says(default_model, tmp_path):
    """By its path too. A request that says nothing gets the card's temperature; that of another file is llama.cpp's own."""
    other = tmp_path / "other.gguf"
    other.symlink_to(default_model)
    shutil.copy(default_model, tmp_path / "copy.gguf")
    for model, temperature in (((), 0.2), ((str(other),), 0.2), ((str(tmp_path / "copy.gguf"),), 0.8)):
        with serving(tmp_path, *model, "--ctx", "512") as served:
            params = served.ask("/props").body["default_generation_settings"]["params"]
            assert round(params["temperature"], 3) == temperature


# ---- the program -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "at_birth"), [
    (signal.SIGTERM, signal.SIG_DFL), (signal.SIGINT, signal.SIG_DFL), (signal.SIGINT, signal.SIG_IGN)], ids=str)
def test_serve(environment, edgekv, default_model, number, at_birth, tmp_path):
    """`at_birth`: a script that starts the server with & makes it ignore SIGINT."""
    log = tmp_path / "server.log"
    server = subprocess.Popen(
        [*EDGEKV, "serve", "--port", "0", "--ctx", "512", "--alias", "smol", "--log-file", str(log), "--", "--metrics", "--no-ui"],
        env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, at_birth),  # noqa: PLW1509 (as a shell does it; no thread runs yet)
    )
    try:
        said = [server.stderr.readline() for _ in range(5)]
        assert said[0] == "smol: 512 tokens of context\n" and re.match(r"  KV      exact|  KV      sparse: sample budget 2,000", said[1])
        assert all(len(line) <= 81 for line in said) and said[3] == said[2].replace("API ", "Live").replace("/v1", "/edgekv")
        assert re.search(r"^edgekv: takes \S+ \S+ \(weights 92.1 MiB, KV home 11.2 MiB.*\), \S+ GiB are free$", log.read_text(), re.M)
        url = re.fullmatch(r"  API     (http://127.0.0.1:\d+/v1)\n", said[2])[1]
        post(url.removesuffix("/v1"), "/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8})
        line = server.stderr.readline()
        assert re.match(r"\d\d:\d\d:\d\d slot 0: prompt \d+ tokens, \d+\.\d s; answer \d tokens", line), "a line for a request, and no colours"
        assert "\x1b" not in line
        port = url.split(":")[2].split("/")[0]
        second = edgekv("serve", "--port", port)
        assert second.returncode == EXIT_USAGE and f"port {port} on 127.0.0.1 is in use" in second.stderr
        server.send_signal(number)
        out, err = server.communicate(timeout=60)
        assert (server.returncode, out, err) == (EXIT_OK, "", "stopping\n")
    finally:
        server.kill()
        server.wait()


def test_serve_says_what_mode_sparse_has_and_what_types_cost_and_keeps_the_log_to_itself(default_model, tmp_path):
    with serving(tmp_path, "--ctx", "1024", "--parallel", "2", "-ctk", "q8_0", "-ctv", "q8_0", "--log-file", "log", "--", "--no-ui",
                 EDGEKV_KV="sparse", EDGEKV_SAMPLE_BUDGET="16000") as served:
        context, types, *said, last = served.lines
        assert context.endswith(": 1,024 tokens of context for each of 2 slots\n")
        assert types == "note: what a cache in q8_0/q8_0 costs this model is not measured; `edgekv lab quality --types` measures it once\n"
        assert said[0] == "  KV      sparse: sample budget 16,000\n" and said[1].startswith("  API ") and last == "Ctrl-C to stop\n"
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(60) == EXIT_OK and served.process.stderr.read() == "stopping\n"


def test_a_server_ends_where_nobody_reads_what_it_says(synthetic, tmp_path):
    """The pipe of its standard error is full when a request ends and when the signal comes."""
    with serving(tmp_path, str(synthetic("llama"))) as served:
        pipe = os.open(f"/proc/self/fd/{served.process.stderr.fileno()}", os.O_WRONLY | os.O_NONBLOCK)
        with suppress(BlockingIOError):
            while True:
                os.write(pipe, bytes(1 << 16))
        assert served.ask("/completion", {"prompt": [1, 300], "n_predict": 1}).status == 200
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(60) == EXIT_OK
        os.close(pipe)


def test_serve_lists_the_options_of_the_server_below(edgekv):
    result = edgekv("serve", "--", "--help")
    assert result.returncode == EXIT_OK and "--slot-save-path" in result.stdout
