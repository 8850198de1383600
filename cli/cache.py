"""`edgekv cache`: the stored prefixes of conversations in a folder."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from edgekv.cli.common import choices
from edgekv.cli.common.examples import examples
from edgekv.cli.common.help import Group
from edgekv.cli.common.progress import progress_bar
from edgekv.cli.common.shared_options import Parsed, option
from edgekv.cli.common.tables import NAME, Column, output_option, print_json, print_rows
from edgekv.common.errors import ConfigError, EdgeKVError
from edgekv.common.units import counted, long_duration, mebibytes, parse_duration, size, tokens
from edgekv.prefix_cache.settings import default_folder

if TYPE_CHECKING:
    from edgekv.prefix_cache.listing import Chain

LIST_COLUMNS = [
    Column("id", "ID", right=False, rank=NAME),
    Column("model", "model", right=False, rank=NAME),
    Column("tokens", "tokens", tokens, rank=8),
    Column("bytes", "MiB", mebibytes, rank=7),
    Column("own_bytes", "own MiB", mebibytes, rank=4),
    Column("snapshot_bytes", "snapshots MiB", mebibytes, rank=2),
    Column("reading", "read", right=False, rank=3),
    Column("unused_s", "last used", lambda seconds: f"{long_duration(seconds)} ago", rank=7),
    Column("pins", "pins", lambda pins: ", ".join(pins) or "-", right=False, rank=6),
    Column("note", "note", right=False, rank=8, least=16),
]

BLOCK_COLUMNS = [
    Column("first", "from token", tokens, rank=NAME),
    Column("n", "tokens", tokens),
    Column("bytes", "MiB", mebibytes),
    Column("reading", "read", right=False),
    Column("shared", "shared", lambda shared: "yes" if shared else "no", right=False),
    Column("key", "key", right=False, rank=3),
]

N_SHOWN = 32
"""First tokens that `show` lists."""

def _check_named(folder: Path) -> None:
    """Raise ConfigError if a folder is named that is not there; the default one is there from its first block on."""
    if click.get_current_context().get_parameter_source("folder") is not ParameterSource.DEFAULT and not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}; name the one of `edgekv serve --cache-dir`")


folder_option = option("--cache-dir", "folder", envvar="EDGEKV_CACHE_DIR", type=click.Path(path_type=Path, file_okay=False), default=default_folder,
                       help="The folder of the prefixes.  [default: edgekv/prefixes in the user's cache folder]")


@click.group(cls=Group, epilog=examples(
    "edgekv cache list",
    "edgekv cache show 3f2a",
    "edgekv cache rm --all",
))
def cache() -> None:
    """Look after the prefixes of conversations that a server keeps on disk (edgekv serve --cache-dir).

    Any number of servers may use the folder at the same time.
    """


@cache.command("list", epilog=examples(
    "edgekv cache list",
    "edgekv cache list --cache-dir prefixes -o json",
))
@folder_option
@output_option("json", "csv", "md")
def list_(folder: Path, output: str) -> None:
    """List stored conversations: model, tokens, bytes, reading, last use, and the names that pin them.

    Conversations with a common beginning share its blocks; "own" counts the blocks of one alone, which `edgekv cache rm` frees. Models that keep
    more than rows (windows, recurrent states) also have snapshots.
    """
    from edgekv.prefix_cache.listing import list_chains

    _check_named(folder)
    chains = list_chains(folder)
    if chains or output != "table":
        print_rows([_row(chain) for chain in chains], LIST_COLUMNS, output)
    if output == "table":
        files = {file.path: file.n_bytes for chain in chains for file in chain.files}
        snapshots = {file.path: file.n_bytes for chain in chains for file in chain.snapshots}
        beside = f", {counted(len(snapshots), 'snapshot')}, {size(sum(snapshots.values()))}" if snapshots else ""
        click.echo(f"{counted(len(chains), 'conversation')} in {counted(len(files), 'block')}, {size(sum(files.values()))}{beside} in {folder}", err=True)


@cache.command(epilog=examples(
    "edgekv cache show 3f2a",
    "edgekv cache show 3f2a --cache-dir prefixes -o json",
))
@click.argument("id", shell_complete=choices.stored)
@folder_option
@output_option("json", "csv", "md")
def show(id: str, folder: Path, output: str) -> None:  # noqa: A002 - its name on the command line
    """Show the blocks of a conversation, and its first tokens by their numbers: their text is known only to the model's tokenizer."""
    from edgekv.prefix_cache.listing import find_chain, first_tokens, list_chains

    chain = find_chain(list_chains(folder), id)
    shown = {file.path for file in chain.own}
    rows, first = [], 0
    for file in chain.files:
        rows.append({"first": first, "n": file.link.n, "bytes": file.n_bytes, "reading": file.link.label.name.lower(),
                     "shared": file.path not in shown, "key": file.link.key.hex(), "file": str(file.path)})
        first += file.link.n
    if output == "json":
        print_json({**_row(chain), "first_tokens": first_tokens(chain, N_SHOWN), "blocks": rows})
        return
    if output != "csv":
        beside = f", {counted(len(chain.snapshots), 'snapshot')}, {size(chain.snapshot_bytes)}" if chain.snapshots else ""
        click.echo(f"{chain.id}: {tokens(chain.n_tokens)} tokens of {chain.name}, {size(chain.n_bytes)}{beside}; it begins with the tokens "
                   f"{' '.join(map(str, first_tokens(chain, N_SHOWN)))}\n")
    print_rows(rows, BLOCK_COLUMNS, output)


@cache.command(epilog=examples(
    "edgekv cache rm 3f2a 91cc",
    "edgekv cache rm --model SmolLM2-135M-Instruct",
    "edgekv cache rm --conversation what-is-a-kv-cache",
    "edgekv cache rm --all --cache-dir prefixes",
))
@click.argument("ids", metavar="[ID]...", nargs=-1, shell_complete=choices.stored)
@option("--all", "everything", envvar="EDGEKV_CACHE_RM_ALL", is_flag=True, help="Remove every conversation.")
@option("--model", envvar="EDGEKV_CACHE_RM_MODEL", metavar="NAME", shell_complete=choices.stored_models,
        help="Remove every conversation of the model with this name.")
@option("--conversation", envvar="EDGEKV_CACHE_RM_CONVERSATION", metavar="NAME", shell_complete=choices.conversations,
        help="Remove blocks that only the kept chat with this name uses, of any model. Its text stays; /chats rm deletes both.")
@folder_option
def rm(ids: Sequence[str], everything: bool, model: str | None, conversation: str | None, folder: Path) -> None:
    """Remove conversations. Shared blocks and pinned conversations stay."""
    from edgekv.prefix_cache.conversations import forget_all
    from edgekv.prefix_cache.files import listed, remove_files
    from edgekv.prefix_cache.listing import find_chain, list_chains, remove_chains

    if bool(ids) + everything + (model is not None) + (conversation is not None) != 1:
        raise ConfigError("name the IDs to remove, or --all, or --model NAME, or --conversation NAME, and only one of these")
    if conversation is not None:
        click.echo(f"{conversation}: {size(_forget(conversation, folder))} removed")
        return
    chains = list_chains(folder)
    if ids:
        doomed = list({(chain := find_chain(chains, one)).leaf.path: chain for one in ids}.values())
        if pinned := next((chain for chain in doomed if chain.pins), None):
            raise ConfigError(f"{pinned.id} is pinned as {pinned.pins[0].name}; `edgekv cache unpin {pinned.pins[0].name}` first")
    else:
        doomed = [chain for chain in chains if everything or chain.name == model or chain.name.startswith(f"{model} (")]
        if model is not None and not doomed:
            names = ", ".join(sorted({chain.name for chain in chains})) or "none"
            raise ConfigError(f"no conversation of a model {model!r} is stored; there are: {names}")
    removable = [chain for chain in doomed if not chain.pins]
    n_bytes = remove_chains(removable, chains)
    if everything and len(removable) == len(doomed):
        n_bytes += remove_files(listed(folder))  # snapshots behind no stored block
        forget_all(folder)
    click.echo(f"{counted(len(removable), 'conversation')} removed, {size(n_bytes)}")
    if len(removable) < len(doomed):
        click.echo(f"{len(doomed) - len(removable)} are pinned and stay; `edgekv cache unpin` takes a name from one", err=True)


@cache.command(epilog=examples(
    "edgekv cache verify",
    "edgekv cache verify --remove --cache-dir prefixes",
))
@option("--remove", envvar="EDGEKV_CACHE_VERIFY_REMOVE", is_flag=True, help="Remove damaged blocks and snapshots.")
@folder_option
def verify(remove: bool, folder: Path) -> None:
    """Read every block and snapshot and check them against their checksums. The exit code is 1 if one is damaged."""
    from edgekv.prefix_cache.files import listed, remove_file
    from edgekv.prefix_cache.listing import fault_of

    _check_named(folder)
    n = n_bytes = n_damaged = 0
    with progress_bar() as show_progress:
        for n, file in enumerate(files := listed(folder), 1):
            fault = fault_of(file)
            show_progress("verify", n, len(files))
            n_bytes += file.n_bytes
            if fault is not None:
                n_damaged += fault.damaged
                click.echo(f"{file.path}: {fault}", err=True)
                if fault.damaged and remove:
                    remove_file(file.path)
    click.echo(f"{counted(n, 'block')}, {size(n_bytes)}, {n_damaged} damaged")
    if n_damaged:
        then = "they were removed" if remove else "servers skip them; `edgekv cache verify --remove` removes them"
        raise EdgeKVError(f"{n_damaged} of {n} blocks are damaged; {then}")


@cache.command(epilog=examples(
    "edgekv cache pin 3f2a manual",
    "edgekv cache pin 3f2a manual --ttl 12h",
))
@click.argument("id", shell_complete=choices.stored)
@click.argument("name")
@option("--ttl", envvar="EDGEKV_CACHE_PIN_TTL", type=Parsed("TIME", lambda text: parse_duration(text, "--ttl")), default="30d",
        show_default=True, metavar="TIME", help="How long it stays: a number followed by s, min, h or d.")
@folder_option
def pin(id: str, name: str, ttl: float, folder: Path) -> None:  # noqa: A002 - its name on the command line
    """Keep a conversation under a name until its time is over, even if the folder is full."""
    from edgekv.prefix_cache.listing import find_chain, list_chains
    from edgekv.prefix_cache.named import Pin, write_pin

    chain = find_chain(list_chains(folder), id)
    try:
        write_pin(folder, Pin(name, chain.leaf.root, chain.leaf.link.key, time.time() + ttl))
    except OSError as error:
        raise EdgeKVError(f"the pin cannot be written into {folder}: {error.strerror}") from None
    click.echo(f"{chain.id} is pinned as {name} for {long_duration(ttl)}")


@cache.command(epilog=examples(
    "edgekv cache unpin manual",
    "edgekv cache unpin manual --cache-dir prefixes",
))
@click.argument("name", shell_complete=choices.pins)
@folder_option
def unpin(name: str, folder: Path) -> None:
    """Take the name from a conversation, which then stays as long as others do."""
    from edgekv.prefix_cache.named import read_pins, remove_pin

    if not remove_pin(folder, name):
        names = ", ".join(one.name for one in read_pins(folder)) or "none"
        raise ConfigError(f"nothing is pinned as {name!r}; there are: {names}")
    click.echo(f"{name} is no longer pinned")


@cache.command(epilog=examples(
    "edgekv cache warm system.txt --url http://127.0.0.1:8080",
    "edgekv cache warm handbook/ --role user --ttl 1h",
))
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@option("--url", envvar="EDGEKV_CACHE_WARM_URL", metavar="URL", default="http://127.0.0.1:8080", show_default=True, help="The running server.")
@option("--api-key", metavar="KEY", help="The server's key whose requests will begin with the texts. Others can see it on the command line.")
@option("--role", envvar="EDGEKV_CACHE_WARM_ROLE", type=click.Choice(["system", "user"]), default="system", show_default=True,
        help="Whose message each text begins.")
@option("--cache-salt", envvar="EDGEKV_CACHE_WARM_CACHE_SALT", metavar="NAME", default="",
        help="The namespace of these requests, if they name one.")
@option("--ttl", envvar="EDGEKV_CACHE_WARM_TTL", type=click.Choice(["5m", "1h"]), help="How long each text stays, however much else comes.")
def warm(files: Sequence[Path], url: str, api_key: str | None, role: str, cache_salt: str, ttl: str | None) -> None:
    """Let a running server read texts before anybody asks: system prompts, documents, or all texts of a folder.

    Each is read in pieces of about 2,000 tokens, only while the server has no other request. What was read is kept even if this ends early: the same
    command goes on from there.
    """
    from edgekv.server.warming import Warmer, texts_of

    texts = list(texts_of(files))
    warmer = Warmer(url.rstrip("/").removesuffix("/v1"), api_key, role, cache_salt, ttl or "")
    warmer.check()
    done, n_all = 0, sum(len(text) for _, text in texts)
    with progress_bar() as show_progress:
        for path, text in texts:
            before, name = done, str(path)

            def said(n: int, before: int = before, name: str = name) -> None:
                show_progress(f"warm: {name}", before + n, n_all)

            said(0)
            warmed = warmer.warm(text, said)
            done += len(text)
            click.echo(f"{path}: {tokens(warmed.n_tokens)} tokens, {tokens(warmed.n_known)} of them known before")


def _forget(name: str, folder: Path) -> int:
    """Remove a kept chat's prefixes; return their bytes. Raises ConfigError if the chat does not name them."""
    from edgekv.cli.chat.kept import KeptChats, kept_folder
    from edgekv.prefix_cache.conversations import forget, knows

    conversation = KeptChats(kept_folder()).id_of(name)
    if conversation is None or not knows(folder, conversation):
        raise ConfigError(f"nothing of {name} is known to be in {folder}; `edgekv cache list` shows what is there")
    return forget(folder, conversation)


def _row(chain: Chain) -> dict[str, Any]:
    return {"id": chain.id, "model": chain.name, "tokens": chain.n_tokens, "bytes": chain.n_bytes, "own_bytes": chain.own_bytes,
            "snapshots": len(chain.snapshots), "snapshot_bytes": chain.snapshot_bytes,
            "reading": chain.reading.name.lower(), "unused_s": round(chain.unused_s, 1), "pins": [pin.name for pin in chain.pins],
            "note": None if chain.whole else "its beginning is gone"}
