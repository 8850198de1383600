"""`python tests/agents FOLDER [NAME...]`: two fresh conversations of each published client with `edgekv serve` on a stub, in a
network namespace that has loopback only."""

import argparse
import os
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

if not __package__:  # started as a folder: again, as a package
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    runpy.run_module("agents", run_name="__main__", alter_sys=True)
    sys.exit()

from support.serve_process import serving
from support.stub import cut, write_stub

from .clients import ANOTHER, CLIENTS, QUESTION, Client, laid_out
from .recording import Asked, recording

ROOT = Path(__file__).resolve().parent.parent.parent
ANSWER = "Hello, says the stub."
NOTE = "The zebra crosses at noon."  # what the tool finds
OURS = ROOT / "tests" / "support" / "tools.jinja"
CALLS = """{%- set seen = namespace(result=not tools) %}
{%- for message in messages %}{%- if message.role == 'tool' %}{%- set seen.result = true %}{%- endif %}{%- endfor %}
{%- if add_generation_prompt and not seen.result %}{{- '~' }}{%- endif %}"""  # at the end of a prompt: a call is to come
EXCERPT = 60  # characters either side of the first difference
N_CTX = 131072


def without_network() -> None:
    """Starts the command again in a network namespace with loopback only, unless it runs in one."""
    if os.environ.pop("EDGEKV_AGENTS", "") == "inside":
        assert os.listdir("/sys/class/net") == ["lo"], "only loopback"
        return
    rights = [] if os.geteuid() == 0 else ["--map-root-user"]
    if not shutil.which("unshare") or not shutil.which("ip") or subprocess.run(["unshare", "--net", *rights, "ip", "link", "set", "lo", "up"]).returncode:
        sys.exit("A network namespace is needed: Linux with unshare and ip, as root or where users may make namespaces.")
    # /sys shows the namespace that mounted it
    inside = 'mount -t sysfs none /sys && ip link set lo up && exec "$@"'
    os.environ["EDGEKV_AGENTS"] = "inside"
    os.execvp("unshare", ["unshare", "--net", "--mount", *rights, "sh", "-c", inside, "sh", sys.executable, str(Path(__file__).parent), *sys.argv[1:]])


def words() -> list[str]:
    """What our documents are written in: enough that English takes about four characters a token."""
    return " ".join(path.read_text() for path in (ROOT / "README.md", *sorted(ROOT.glob("*/README.md")))).split()


def difference(first: Asked, second: Asked) -> str:
    """Where the prompts part, and which fields differ. Values of fields may be personal: only names are told."""
    a, b = first.prompt, second.prompt
    at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    prompts = "" if a == b else f"; prompts differ at character {at}: " + " | ".join(repr(text[max(0, at - EXCERPT):at + EXCERPT]) for text in (a, b))
    names = sorted(name for name in first.fields.keys() | second.fields.keys() if first.fields.get(name) != second.fields.get(name))
    return prompts + (f"; other fields: {', '.join(names)}" if names else "")


def asks(command: list[str], variables: dict[str, str], home: Path) -> bool:
    """Runs the client once, and prints what came of it. Whether the answer arrived."""
    done = subprocess.run(command, env={"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8", **variables}, cwd=home / "project",
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600)
    arrived = ANSWER in done.stdout
    print(f"  exit {done.returncode}, {'answered' if arrived else 'no answer: ' + done.stdout[-EXCERPT:] + done.stderr[-600:]}")
    return done.returncode == 0 and arrived


def converse(client: Client, folder: Path, home: Path, template: str | None) -> bool:
    """Prints what came of it. Whether both conversations had their answers, and no prompt was refused. Under our own template the
    model calls the client's tool first, and the tool's result must be in a prompt."""
    thinks = "</think>" in (template or "")  # and begins its answer within a thought, or takes an end too many for text
    answers, result = {"": cut("</think>\n\n" * thinks + ANSWER)}, ""
    if template is None and client.call:
        answers["~"], result = cut(f"<tool_call>\n{client.call.replace('<HOME>', str(home))}\n</tool_call>"), NOTE
    model = write_stub(home / "stub.gguf", answers, template or OURS.read_text() + CALLS, n_ctx=N_CTX, pre_tokenizer="qwen2", words=words())
    with serving(home, str(model), "--ctx", str(N_CTX), LLAMA_SERVER_SLOTS_DEBUG="1") as served, recording(served) as (url, asked):
        command, variables = laid_out(client, url, folder, home)
        (home / "project").mkdir(exist_ok=True)
        (home / "project" / "note.txt").write_text(NOTE)
        fine = asks(command, variables, home)
        before = [*asked]
        fine &= asks([part.replace(QUESTION, ANOTHER) for part in command], variables, home)
    for i, one in enumerate(asked):
        differs = difference(before[i - len(before)], one) if len(before) <= i < 2 * len(before) else ""
        refused = "" if one.status == 200 else f" {one.reply[:300].decode()}"
        print(f"  {one.path}: {one.status}{refused}, {one.n_prompt} tokens, {one.n_cached} of them cached{differs}")
    if result and not any(result in one.prompt for one in asked):
        print("  the tool's result is in no prompt")
        return False
    return fine and all(one.status == 200 for one in asked if one.path.startswith("POST"))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tests/agents", description="Two fresh conversations of each published client, without a network.")
    parser.add_argument("folder", type=Path, help="where they are installed: node_modules, and an environment for each of Python's")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"these clients (all: {', '.join(CLIENTS)})")
    parser.add_argument("--template", type=Path, help="a chat template (default: ours, and the model calls a tool)")
    given = parser.parse_args()
    if unknown := set(given.names) - set(CLIENTS):
        parser.error(f"no such client: {', '.join(sorted(unknown))}")
    without_network()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the server ends too
    sys.stdout.reconfigure(line_buffering=True)
    fine = True
    for name in given.names or CLIENTS:
        if not (given.folder / CLIENTS[name].command[0]).exists():
            print(f"{name}: not installed in {given.folder}")
            continue
        with tempfile.TemporaryDirectory() as home:
            print(f"{name}:")
            fine &= converse(CLIENTS[name], given.folder.resolve(), Path(home), given.template and given.template.read_text())
    return int(not fine)


if __name__ == "__main__":
    sys.exit(main())
