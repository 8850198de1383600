"""A server's need for memory, and the batches that it leaves room for."""

from collections.abc import Sequence

from edgekv.common.enums import DeviceKind, KvMode
from edgekv.common.errors import EdgeKVError, NotPinned
from edgekv.common.machine import default_threads
from edgekv.config import KvOptions
from edgekv.models.geometry import ModelFile
from edgekv.planning.allocations import ContextRequest, Slots
from edgekv.planning.available import available_bytes
from edgekv.planning.devices import Placement
from edgekv.planning.fit import ContextChoice, kept, rounded
from edgekv.planning.home import no_home
from edgekv.planning.later import later_bytes, place_later
from edgekv.server.server_options import ServerOptions, later_options, shares_cells, takes_media

BATCH_TOKENS = 512
"""Prompt tokens between two checks for cancelled requests and reports of progress. On a device, the tokens that its plan computes at
once."""

LEAST_TOKENS = 2048
"""A halved context has at least as many. Where the system pins not even their K and V, the context stays as it was."""

TEXT_BYTES, TOKEN_BYTES, MEDIA_BYTES = 8 << 20, 64, 100 << 20
"""Most bytes of a request: at least; for each token of a context, with room for JSON, tools and texts that are cut; with images or sound."""

_EMBEDS = {"--embedding", "--embeddings", "--rerank", "--reranking"}
_GPUS = {"-sm", "--split-mode", "-ts", "--tensor-split", "-mg", "--main-gpu"}
"""llama.cpp's options that divide a model among GPUs."""


def memory_request(options: ServerOptions, file: ModelFile, placement: Placement) -> ContextRequest:
    """The context to open, and the free memory for it. If some layers lie off the GPU, the processor attends."""
    room, later, gpu_layers = placement.room, later_bytes(later_options(options)), options.n_gpu_layers
    if room is None:
        gpu_layers = 0
    elif gpu_layers is None or gpu_layers > file.geometry.n_layer:
        (room, later), gpu_layers = place_later(room, later), 0
    else:
        room = None
    return ContextRequest(
        file, options.kv, options.n_ctx, Slots(options.n_slots, shares_cells(options, file.geometry, room is not None)), available_bytes(),
        store_bytes=0 if options.store is None else options.store.ram_bytes, room=room, n_threads=options.n_threads or default_threads(),
        gpu_layers=gpu_layers or 0, later_bytes=later, from_disk=options.weights_from_disk)


def gpu_arguments(placement: Placement, extra: Sequence[str]) -> list[str]:
    """llama.cpp's options for the GPU that the model may use. Without one it is none: weights are repacked for the processor, and prompts read there."""
    if placement.kind is DeviceKind.HOST:
        return ["--device", "none"]
    chosen = placement.kind is DeviceKind.CUDA and not placement.others and not _GPUS.intersection(extra)
    return ["--device", f"CUDA{placement.index}"] if chosen else []


def embeds(options: ServerOptions) -> bool:
    """Whether the server makes embeddings or rankings, each of a text that is computed at once."""
    return bool(_EMBEDS.intersection(argument.replace("_", "-") for argument in options.extra))


def body_bytes(options: ServerOptions, n_ctx: int) -> int:
    """Most bytes of a request: media have their own size, texts are bounded by the context."""
    return MEDIA_BYTES if takes_media(options.extra) else max(TEXT_BYTES, n_ctx * TOKEN_BYTES)


def prompt_batch(options: ServerOptions, context: ContextChoice) -> int:
    """Most prompt tokens of one batch."""
    kv = options.kv
    if embeds(options):
        return context.n_ctx
    if context.device is not None:
        return context.device.n_ubatch
    if kv.mode is not KvMode.EVICT:
        return BATCH_TOKENS
    from edgekv.tiering.eviction import batch_tokens

    return batch_tokens(kept(context.n_ctx, kv), BATCH_TOKENS)


def pinned_context(asked: int | None, context: ContextChoice, placement: Placement) -> int | None:
    """Tokens for a context that nobody `asked` for, where the system refused to pin K and V of this one: half as many, or half of that, until it pins
    them. None: this one stays."""
    from edgekv._native import device_calls
    from edgekv.runtime import attachments

    if asked is not None or context.device is None or not isinstance(attachments.last_failure(), NotPinned):
        return None
    n = rounded(context.n_ctx // 2)
    while n >= LEAST_TOKENS:
        if device_calls.pins(placement.kind, placement.index, context.device.home * n // context.n_ctx):
            return n
        n = rounded(n // 2)
    return None


def failed_start(kv: KvOptions, error: EdgeKVError) -> EdgeKVError:
    """The error of a server that ended before it answered, unless its KV home could not be made."""
    from edgekv._native import core

    if kv.cache.kv_dir is not None and (why := core.home_failure()):
        return no_home(why, kv.cache.kv_dir)
    return error
