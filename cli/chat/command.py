"""`edgekv chat`: talk to a model, or get one answer."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgekv.cli.common.options import kv_options, model_argument, model_path, option, split_kv_options
from edgekv.errors import EXIT_INTERRUPTED, EXIT_OK, ContextOverflow, EdgeKVError

if TYPE_CHECKING:
    from edgekv.cli.chat.render import Renderer
    from edgekv.cli.chat.session import Conversation
    from edgekv.serving.server import Server

_MODELS_OWN = "[default: the model's own, or llama.cpp's]"


@click.command()
@model_argument
@option("-p", "--prompt", metavar="TEXT", help="Answer this and leave; text on standard input is put after it.")
@option("-s", "--system", metavar="TEXT", help="The system prompt.")
@kv_options
@option("-n", "--max-tokens", type=click.IntRange(min=1), metavar="TOKENS",
        help="Longest answer.  [default: until the context is full]")
@option("--temp", type=click.FloatRange(min=0), help=f"Sampling temperature; 0 always takes the best token.  {_MODELS_OWN}")
@option("--top-p", type=click.FloatRange(0, 1), help=f"Sample from the best tokens with this probability in all.  {_MODELS_OWN}")
@option("--top-k", type=click.IntRange(min=0), help=f"Sample from this many tokens; 0 for all.  {_MODELS_OWN}")
@option("--min-p", type=click.FloatRange(0, 1), help=f"Leave out tokens this much less likely than the best.  {_MODELS_OWN}")
@option("--repeat-penalty", type=click.FloatRange(min=0, min_open=True), help=f"Above 1 discourages repetition.  {_MODELS_OWN}")
@option("--seed", type=click.IntRange(0, 2**32 - 2), help="Seed of the sampler.  [default: another each time]")
@option("--footer/--no-footer", default=None, help="Figures after each answer, on standard error.  [default: on a terminal]")
@option("--log-file", type=click.Path(path_type=Path), help="Where llama.cpp's server writes its log; - for standard error.")
def chat(
    model: Path | None, prompt: str | None, system: str | None, footer: bool | None, log_file: Path | None, **settings: Any
) -> int:
    """Chat with MODEL, a GGUF file; without one, with the default model.

    With --prompt, or text on standard input, it answers once and leaves: the answer goes to standard output, everything else to
    standard error. Otherwise it is a conversation; /help lists what you can do in it.
    """
    question = _question(prompt)
    if question is None and not sys.stdout.isatty():
        raise click.UsageError("a conversation needs a terminal; use --prompt TEXT, or give the text on standard input")
    from edgekv.cli.chat.client import ChatClient
    from edgekv.cli.chat.kv import KvWatch
    from edgekv.cli.chat.render import Renderer
    from edgekv.cli.chat.session import Conversation
    from edgekv.serving.server import Server, ServerOptions

    # The key keeps other users of this machine out: they could read the conversation.
    server = Server(ServerOptions(
        model_path(model), **split_kv_options(settings), api_key=secrets.token_urlsafe(), log_file=log_file,
    ))
    renderer = Renderer(KvWatch(server), footer=sys.stderr.isatty() if footer is None else footer)
    if server.context.note:
        renderer.note(f"note: {server.context.note}")
    with renderer.waiting(f"loading {server.alias}"):
        server.start()
    with server:
        conversation = Conversation(ChatClient(server.url, server.options.api_key, _sampling(settings)), system)
        try:
            if question is not None:
                return _answer_once(question, conversation, renderer, server.model.n_ctx_train)
            return _converse(server, conversation, renderer)
        except EdgeKVError:
            if server.alive:
                raise
            raise EdgeKVError(server.why_stopped()) from None


def _question(prompt: str | None) -> str | None:
    """The one question, or None for a conversation."""
    parts = [] if prompt is None else [prompt]
    if not sys.stdin.isatty():
        parts.append(sys.stdin.buffer.read().decode("utf-8", "replace"))
    if not parts:
        return None
    question = "\n\n".join(part for part in parts if part.strip())
    if not question:
        raise click.UsageError("the prompt is empty; give some text with --prompt or on standard input")
    return question


def _sampling(settings: dict[str, Any]) -> dict[str, Any]:
    names = {"temp": "temperature"}
    return {names.get(name, name): value for name, value in settings.items() if value is not None}


def _converse(server: Server, conversation: Conversation, renderer: Renderer) -> int:
    from edgekv.cli.chat.kv import mode_summary
    from edgekv.cli.chat.loop import ChatLoop

    renderer.note(f"{server.alias}: context {server.context.n_ctx:,}, KV {mode_summary(server)}. /help for help, Ctrl-D leaves")
    ChatLoop(server, conversation, renderer).run()
    return EXIT_OK


def _answer_once(question: str, conversation: Conversation, renderer: Renderer, n_ctx_train: int) -> int:
    from edgekv.cli.chat.render import overflow_advice

    conversation.draft.text = question
    try:
        with renderer.turn() as show:
            answer = conversation.send(show)
    except ContextOverflow as error:
        raise ContextOverflow(overflow_advice(error, n_ctx_train, in_session=False), error.n_prompt_tokens, error.n_ctx) from None
    renderer.footer(answer)
    return EXIT_INTERRUPTED if answer.interrupted else EXIT_OK
