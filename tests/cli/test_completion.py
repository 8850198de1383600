"""`edgekv completion`: the offers behind a TAB, asked as the scripts ask, and in each shell itself."""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pexpect
import pytest
from click.testing import CliRunner
from support.command_lines import commands
from support.prefix_rows import conversation
from support.program import CONTROL, EDGEKV
from support.stores import open_store, save

from edgekv.bench import text
from edgekv.cli.chat.kept import KeptChats
from edgekv.cli.common.choices import OF_OPTION, TEXTS
from edgekv.cli.completion import register
from edgekv.cli.main import COMMANDS, cli
from edgekv.policies import POLICIES
from edgekv.prefix_cache.listing import list_chains
from edgekv.prefix_cache.named import Pin, write_pin
from edgekv.tiering.prefetch import PREFETCHERS

SHELLS = ("bash", "zsh", "fish")
Ask = Callable[..., list[str]]


@pytest.fixture
def home(environment, tmp_path) -> dict[str, str]:
    """An environment with the program on its path; the current folder has model files and others."""
    for name in ("tiny.gguf", "OLD.GGUF", "notes.txt", "two words/a b.gguf"):
        (tmp_path / "work" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "work" / name).touch()
    program = tmp_path / "bin" / "edgekv"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\nexec {sys.executable} -c 'from edgekv.cli.main import main; main()' \"$@\"\n")
    program.chmod(0o755)
    return {**environment, "PATH": f"{program.parent}:{os.environ['PATH']}", "XDG_DATA_HOME": str(tmp_path / "data"),
            "XDG_CACHE_HOME": str(tmp_path / "cache"), "XDG_CONFIG_HOME": str(tmp_path / ".config")}


@pytest.fixture
def ask(home, tmp_path, no_variables, monkeypatch) -> Ask:
    """`ask("chat --kv ")`: the offers, by click's protocol; a file or folder is its type and a comma."""
    register()
    monkeypatch.chdir(tmp_path / "work")

    def of(line: str, shell: str = "bash") -> list[str]:
        words = f"edgekv {line}"
        if shell == "fish":
            variables = {"COMP_CWORD": "" if words.endswith(" ") else words.split(" ")[-1]}
        else:
            variables = {"COMP_CWORD": str(words.count(" "))}
        found = CliRunner().invoke(cli, [], prog_name="edgekv", env={**home, **variables, "COMP_WORDS": words, "_EDGEKV_COMPLETE": f"{shell}_complete"})
        assert found.exit_code == 0 and not found.stderr, found.exception
        lines = found.stdout.splitlines()
        if shell == "zsh":  # three lines each: type, value, help
            lines = [f"{kind},{value}" for kind, value in zip(lines[::3], lines[1::3])]
        return [line.split("\t")[0].removeprefix("plain,") for line in lines if line]

    return of


# ---- what is offered ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_is_answered(ask, shell):
    assert ask("", shell) == list(COMMANDS)
    assert ask("ch", shell) == ["chat"]
    assert {"compare", "serve"} <= set(ask("bench ", shell))
    assert {"quality", "report"} <= set(ask("lab ", shell))
    assert {"--kv", "--kv-budget"} <= set(ask("chat --kv", shell))
    assert ask("chat --kv s", shell) == ["sparse"]
    assert ask("chat --policy ema+anch", shell) == ["ema+anchor"]
    assert ask("chat --kv sparse ", shell) == ["SmolLM2-135M-Instruct.Q4_1", "gguf,"]
    assert ask("serve --cache-dir wo", shell) == ["dir,wo"]
    assert ask("serve --api-key-file wo", shell) == ["file,wo"]
    assert ask("serve -- --metr", shell) == ["file,--metr"]  # llama.cpp's own


def test_values_are_offered(ask):
    assert ask("chat --policy ") == list(POLICIES)
    assert ask("chat --prefetch ") == list(PREFETCHERS)
    assert ask("chat --ctx ") == ask("serve --kv-budget ") == ["auto"]
    assert ask("bench --modes off,spa") == ["off,sparse"]
    assert ask("lab quality --tasks passkey,var") == ["passkey,variables"]
    assert ask("bench --cache-type-k f16,q8") == ["f16,q8_0"]
    assert ask("lab trace record --text ") == [*TEXTS, "file,"]
    assert "llama-3-8b" in ask("models synth lla")
    assert ask("config show ch") == ["chat"]
    assert ask("completion ") == list(SHELLS)


def test_kept_things_are_offered(ask, home, synthetic):
    """Things are offered by the names that commands take."""
    kept = KeptChats(Path(home["XDG_DATA_HOME"]) / "edgekv" / "chats")
    kept.add([{"role": "user", "content": "Why is the sky blue?"}, {"role": "assistant", "content": "It scatters."}])
    assert ask("chat --resume wh") == ["why-is-the-sky-blue"]
    models = Path(home["XDG_CACHE_HOME"]) / "llama.cpp"
    models.mkdir(parents=True)
    shutil.copy(synthetic(), models / "Tiny-1B.gguf")
    assert ask("models path Ti") == ["Tiny-1B"]
    assert ask("models show Ti") == ["Tiny-1B", "gguf,Ti"]


def test_stored_conversations_are_offered(ask, tmp_path):
    folder = tmp_path / "prefixes"
    store = open_store(folder)
    save(store, conversation(300))
    store.close()
    (chain,) = list_chains(folder)
    assert ask(f"cache show --cache-dir {folder} {chain.id[:2]}") == [chain.id]
    assert ask(f"cache rm --cache-dir {folder} --model ") == ["a model"]
    write_pin(folder, Pin("manual", chain.leaf.root, chain.leaf.link.key, time.time() + 60))
    assert ask(f"cache unpin --cache-dir {folder} ") == ["manual"]
    assert ask("cache show --cache-dir notes.txt ") == []  # the command tells what it cannot read


def test_texts_are_those_there_are():
    assert set(TEXTS) == set(text.TEXTS)


def test_every_option_with_values_exists():
    names = {name for _, command in commands() for parameter in command.params for name in parameter.opts}
    assert set(OF_OPTION) <= names


# ---- in the shells --------------------------------------------------------------------------------------------------------------


TYPED = {
    "edgekv comp": "edgekv completion ",
    "edgekv models sy": "edgekv models synth ",
    "edgekv chat --kv s": "edgekv chat --kv sparse ",
    "edgekv chat --kv=s": "edgekv chat --kv=sparse ",
    "edgekv chat --url http://127.0.0.1:80 --kv-pr": "edgekv chat --url http://127.0.0.1:80 --kv-prompts ",
    "edgekv chat --policy ema+anch": "edgekv chat --policy ema+anchor ",
    "edgekv bench --modes off,spa": "edgekv bench --modes off,sparse ",
    "edgekv chat tin": "edgekv chat tiny.gguf ",
    "edgekv chat OL": "edgekv chat OLD.GGUF ",
    "edgekv chat no": "edgekv chat no",  # notes.txt is no model
    "edgekv chat two": "edgekv chat two\\ words/",
    "edgekv chat two\\ words/": "edgekv chat two\\ words/a\\ b.gguf ",
    "edgekv serve --api-key-file=no": "edgekv serve --api-key-file=notes.txt ",
    "edgekv serve --cache-dir tw": "edgekv serve --cache-dir two\\ words/",
    "true; edgekv chat --resu": "true; edgekv chat --resume ",
}
"""A line before a TAB, and after it."""

SETTINGS = {
    "bash": """bind 'set enable-bracketed-paste off'; bind 'set bell-style none'; bind -x '"\\C-xd": printf "<%s>\\n" "$READLINE_LINE"'""",
    "zsh": """unsetopt zle_bracketed_paste prompt_sp; autoload -U compinit; compinit -u -D; show() { print -r -- "<$BUFFER>" }; zle -N show;
              bindkey '^Xd' show""",
}
"""Ctrl-X d shows the line."""
PROGRAMS = {"bash": ["bash", "--norc", "--noprofile", "-i"], "zsh": ["zsh", "-f", "-i"]}


@pytest.mark.parametrize("shell", PROGRAMS)
def test_shells_complete(shell, home, tmp_path):
    """A real shell in a pseudo-terminal shows its line after the TAB."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    child = pexpect.spawn(*PROGRAMS[shell][:1], PROGRAMS[shell][1:], encoding="utf-8", dimensions=(40, 200), env=home, cwd=tmp_path / "work", timeout=90)
    child.sendline(f'PS1=; {SETTINGS[shell]}; eval "$(edgekv completion {shell})"; echo rea""dy')
    child.expect("ready\r\n")
    for line, completed in TYPED.items():
        child.send(f"{line}\t")
        child.send("\x18d")  # the shell has completed the line by then
        child.expect("<([^>]*)>\r?\n")
        assert CONTROL.sub("", child.match[1]) == completed
        child.send("\x01\x0b")  # an empty line
    child.close(force=True)


def test_fish_completes(home, tmp_path):
    if shutil.which("fish") is None:
        pytest.skip("fish is not installed")
    script = tmp_path / ".config" / "fish" / "completions" / "edgekv.fish"
    script.parent.mkdir(parents=True)
    script.write_bytes(subprocess.run([*EDGEKV, "completion", "fish"], env=home, capture_output=True, check=True).stdout)
    for line, completed in TYPED.items():
        found = subprocess.run(["fish", "-c", "complete -C $argv[1]", "--", line], env=home, cwd=tmp_path / "work", capture_output=True,
                               text=True, timeout=120, check=True)
        words = [offer.split("\t")[0] for offer in found.stdout.splitlines()]
        last = completed.rstrip(" ").removeprefix(re.sub(r"(?:[^ \\]|\\.)*$", "", line)).replace("\\ ", " ")
        assert not found.stderr
        assert words == ([last] if completed != line else []), line


def test_the_script_says_where_it_goes(edgekv):
    for shell in SHELLS:
        assert re.search(rf"^ *{shell}   .*edgekv completion {shell}", edgekv("completion", "--help").stdout, re.M)
        checked = edgekv("completion", shell)
        assert checked.returncode == 0 and "_EDGEKV_COMPLETE" in checked.stdout
    assert edgekv("completion", "tcsh").returncode == 2
