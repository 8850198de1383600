"""The command line of llama.cpp's server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgekv.common.enums import Drafting, KvMode
from edgekv.planning.fit import rounded
from edgekv.server.drafts import draft_arguments
from edgekv.server.room import embeds, gpu_arguments, prompt_batch
from edgekv.server.server_options import one_cache
from edgekv.server.sites import parse_origin

if TYPE_CHECKING:
    from edgekv.server.server import Server

_DAWDLE_S = 30
"""The server waits so long for a client that neither sends the rest of its request nor takes its answer, also when stopping."""


def command_line(server: Server, keys: Sequence[str]) -> list[str]:
    """What the server is started with, its name first; keys: those whose requests are answered, none: all are."""
    options, kv, n_batch = server.options, server.options.kv, str(prompt_batch(server.options, server.context))
    argv = [
        "llama-server", "--model", str(options.model), "--alias", server.alias,
        "--host", options.host, "--port", str(server.port), "--parallel", str(options.n_slots),
        "--ctx-size", str(server.context.n_ctx * options.n_slots), "--batch-size", n_batch,
        "--cache-type-k", kv.cache.type_k.value, "--cache-type-v", kv.cache.type_v.value,
        "--flash-attn", "on",  # the attention hook needs it, and quantised V does too
        "--fit", "off",  # never fewer layers or tokens than requested: an error instead
        "--cache-ram", "0", "--offline", "--ui" if options.has_chat_page else "--no-ui", "--no-warmup", "--cors-origins", parse_origin(options.cors),
        "--metrics",  # costs nothing without requests
        "--timeout", str(_DAWDLE_S), "--threads", str(server.request.n_threads),
        "--poll", "0", "--poll-batch", "0",  # its threads sleep between two graphs, as those of other contexts do
    ]
    argv += one_cache(rounded(server.context.n_ctx)) if server.request.slots.unified else ()
    argv += ["--no-repack"] if options.weights_from_disk else []  # otherwise repacked weights would be a copy in memory
    if options.n_gpu_layers is not None:
        argv += ["--gpu-layers", str(options.n_gpu_layers)]
    if keys:
        argv += ["--api-key", ",".join(keys)]
    if kv.mode is KvMode.EVICT or server.context.device is not None or embeds(options):
        argv += ["--ubatch-size", n_batch]
    argv += draft_arguments(server.draft) if server.draft is Drafting.NGRAM else ()
    return [*argv, *gpu_arguments(server.placement, options.extra), *options.sampling, *options.extra]
