"""`edgekv chat`: talk to a model, or get one answer."""

from __future__ import annotations

import secrets
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from edgekv.cli.chat.piped import check_output, read_piped
from edgekv.cli.common.examples import examples
from edgekv.cli.common.help import SettingsCommand
from edgekv.cli.common.shared_options import model_argument, model_path, settings_of, split_kv_options, with_measured
from edgekv.common.enums import KvMode, WhenFull
from edgekv.common.errors import ConfigError, EdgeKVError
from edgekv.common.units import parameters

if TYPE_CHECKING:
    from edgekv.models import Geometry
    from edgekv.prefix_cache.settings import StoreSettings

_NEWEST = ""  # --resume without a name

_STORE_SHARE = 1 / 8
"""The share of the free memory that a chat's prefix store may take, up to its usual size."""

_SAMPLING = {"max_tokens": "max_tokens", "temp": "temperature", "top_p": "top_p", "top_k": "top_k", "min_p": "min_p",
             "repeat_penalty": "repeat_penalty", "seed": "seed"}
"""Fields of the request, by parameter."""

_ANYWHERE = {"model", "prompt", "system", "footer", "plain", "url", "api_key", "api_key_file", "resume", "no_keep", *_SAMPLING}
"""Parameters that also have a meaning with a server elsewhere."""


@click.command(cls=SettingsCommand, epilog=examples(
    "edgekv chat",
    "edgekv chat model.gguf --ctx 32768",
    'git diff | edgekv chat -p "Review this:"',
    "edgekv chat --resume",
))
@model_argument
@settings_of("chat")
def chat(
    model: Path | None, prompt: str | None, system: str | None, footer: bool | None, plain: bool, log_file: Path | None, url: str | None,
    api_key: str | None, api_key_file: Path | None, resume: str | None, no_keep: bool, when_full: str | None, recall: Any,
    spec_type: str | None, model_draft: Path | None, **settings: Any,
) -> int:
    """Chat with MODEL: a file, a name of `models list`, or hf:USER/REPO[:QUANT].

    With --prompt, or text on standard input, it answers once and leaves: the answer goes to standard output, everything else to
    standard error. Otherwise it is a conversation; /help lists what you can do in it. Conversations are kept, and --resume goes on
    with one.
    """
    _check_place(url)
    question = _question(prompt)
    if question is None and not sys.stdout.isatty():
        raise click.UsageError("a conversation needs a terminal; use --prompt TEXT, or give the text on standard input")
    if question is not None:
        check_output()
    from edgekv.cli.chat.kept import KeptChats, kept_folder
    from edgekv.cli.chat.talk import Talk

    kept = KeptChats(kept_folder())
    footer = sys.stderr.isatty() if footer is None else footer
    talk = Talk(kept, question, system, kept.newest() if resume == _NEWEST else resume, wanted=not no_keep)
    sampling = {field: settings.pop(name) for name, field in _SAMPLING.items()}
    sampling = {field: value for field, value in sampling.items() if value is not None}
    if url is not None:
        from edgekv.cli.chat.client import ChatClient
        from edgekv.cli.chat.endpoint import RemoteServer, base_url
        from edgekv.cli.chat.render import Renderer

        renderer = Renderer(None, footer, plain)
        client = ChatClient(base_url(url), _key(api_key, api_key_file), sampling, elsewhere=True)
        with renderer.waiting(f"connecting to {url}"):
            remote = RemoteServer(client, _name_there(model))
        return talk.run(remote, client, renderer)

    from edgekv.cli.common.summary import summary_line, told_cost
    from edgekv.common.machine import n_cores
    from edgekv.measure.busy import Others
    from edgekv.models.default import sampling as sampling_of
    from edgekv.server.drafts import chosen_draft
    from edgekv.server.server import Server, ServerOptions

    path = model_path(model)
    placed = split_kv_options(settings, path)
    placed["kv"] = with_measured(path, placed["kv"], placed["n_threads"])
    if when_full is None:
        when_full = WhenFull.STOP if placed["kv"].mode is KvMode.EVICT else WhenFull.ROLL
    if no_keep and recall is not None and recall.folder is not None:
        raise ConfigError("--no-keep keeps nothing on disk, and --recall names a folder; use --recall ram")
    # The key keeps other users of this machine out: they could read the conversation.
    server = Server(ServerOptions(
        path, **placed, when_full=WhenFull(when_full), store=_store(talk.keeping), api_key=secrets.token_urlsafe(), log_file=log_file,
        cache_shared=True,  # each chat has another key
        draft=chosen_draft(spec_type, model_draft), recall=recall, sampling=sampling_of(path),
    ))
    cost, others = told_cost(server), Others()
    server.begin()
    from edgekv.cli.chat.client import ChatClient  # these imports take about as long as a small model to load
    from edgekv.cli.chat.render import Renderer
    from edgekv.cli.chat.views import OwnServer

    renderer = Renderer(None, footer, plain)
    if server.context.note:
        renderer.note(f"note: {server.context.note}")
    if cost:
        renderer.note(cost)
    if (question is None or footer) and (warning := _warning(server.model, demo=model is None)) is not None:
        renderer.warn(warning)
    client = ChatClient(server.url, server.options.api_key, sampling)  # imports more
    with renderer.waiting(f"loading {server.alias}"):
        server.start()
    if (question is None or footer) and (n := others.busy()):
        renderer.warn(f"other programs keep {n:.1f} of {n_cores()} cores busy: answers come slower than this machine can give them")
    with server:
        try:
            if server.runtime is not None:
                server.note(summary_line(server, server.runtime))
            return talk.run(OwnServer(server), client, renderer)
        except EdgeKVError:
            if server.alive:
                raise
            raise server.why_stopped() from None


def _warning(model: Geometry, demo: bool) -> str | None:
    """What a reader should know of the model before its first answer."""
    if not model.chat_template:
        return "this model has no chat template: it goes on with a text rather than answer, and may not know where to end; take one made for chats"
    return f"the demo model has {parameters(model.n_params)} parameters: it shows speed, not wisdom; for real answers name a MODEL.gguf" if demo else None


def _question(prompt: str | None) -> str | None:
    """The one question, or None for a conversation."""
    parts = [] if prompt is None else [prompt]
    if not sys.stdin.isatty():
        parts.append(read_piped(sys.stdin.buffer, partial(click.echo, err=True)).decode("utf-8", "replace"))
    if not parts:
        return None
    question = "\n\n".join(part for part in parts if part.strip())
    if not question:
        raise click.UsageError("the prompt is empty; give some text with --prompt or on standard input")
    return question


# ---- here or elsewhere ----------------------------------------------------------------------------------------------------------


def _check_place(url: str | None) -> None:
    """Raise UsageError for options on the command line that have no effect where the model is; variables are not checked."""
    context = click.get_current_context()
    given = [parameter for parameter in context.command.params
             if parameter.name and context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE]
    if url is None:
        useless, why = {"api_key", "api_key_file"}, "{} is the key of a server at --url, and there is none"
    else:
        useless = {parameter.name for parameter in given if parameter.name} - _ANYWHERE
        why = "{} is for a model in this process, and the one at --url is elsewhere; leave one of them out"
    for parameter in given:
        if parameter.name in useless:
            raise click.UsageError(why.format(max(parameter.opts, key=len)))


def _name_there(model: Path | None) -> str | None:
    """The model's name on the server, from the command line alone: EDGEKV_MODEL names a file of this machine."""
    source = click.get_current_context().get_parameter_source("model")
    return str(model) if model is not None and source is ParameterSource.COMMANDLINE else None


def _key(key: str | None, file: Path | None) -> str | None:
    """The API key. Raises ConfigError for two keys on the command line, and for a file without one."""
    if file is None:
        return key
    source = click.get_current_context().get_parameter_source
    if key is not None and source("api_key") is ParameterSource.COMMANDLINE:
        if source("api_key_file") is ParameterSource.COMMANDLINE:
            raise ConfigError("--api-key and --api-key-file both give a key; leave one of them out")
        return key
    try:
        lines = file.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the key file {file} cannot be read: {getattr(error, 'strerror', None) or 'it is not text'}") from None
    if not lines:
        raise ConfigError(f"the key file {file} is empty")
    return lines[0]


def _store(on_disk: bool) -> StoreSettings:
    """The prefix store, which spares reading a resumed conversation again; on disk too where the conversation is kept. On a small machine it
    leaves the memory to the model."""
    from edgekv.planning.available import available_bytes
    from edgekv.prefix_cache.settings import StoreSettings, default_folder

    ram_bytes = min(StoreSettings.ram_bytes, int(_STORE_SHARE * available_bytes()))
    return StoreSettings(ram_bytes, folder=default_folder() if on_disk else None)
