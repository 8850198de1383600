"""The options of a server, and checks against those that would make llama.cpp's server end the process."""

import errno
import hashlib
import math
import os
import socket
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from edgekv.common.enums import Drafting, KvMode, WhenFull
from edgekv.common.errors import ConfigError, ModelError
from edgekv.config import KvOptions
from edgekv.models.geometry import Geometry
from edgekv.models.inspector import check_projector
from edgekv.planning.fit import in_tokens, unifies
from edgekv.planning.later import DRAFTS, PROJECTOR
from edgekv.prefix_cache.settings import RecallSettings, StoreSettings
from edgekv.server.llama_settings import entries, files
from edgekv.server.log import bare_message
from edgekv.server.sites import is_public, parse_origin

LOOPBACK = "127.0.0.1"
MOST_SLOTS = 16
_LLAMA_KEYS = "LLAMA_API_KEY"
LOCALHOST = "localhost"
"""The CORS origin for pages of this machine, on any port."""

# Options that only the server object may set; the right-hand side says what to use instead.
_OWNED = {
    **dict.fromkeys(("-m", "--model", "-mu", "--model-url", "-hf", "-hfr", "--hf-repo", "-hff", "--hf-file", "-dr", "--docker-repo"), "MODEL"),
    "--host": "--host before the --", "--port": "--port before the --",
    "--api-key": "--api-key before the --", "--api-key-file": "--api-key-file before the --", "--cors-origins": "--cors",
    "-c": "--ctx", "--ctx-size": "--ctx", **dict.fromkeys(("-np", "--parallel"), "--parallel before the --"),
    **dict.fromkeys(("-cram", "--cache-ram"), "--cache-ram before the --"),
    **dict.fromkeys(("-ctk", "--cache-type-k"), "--cache-type-k before the --"), **dict.fromkeys(("-ctv", "--cache-type-v"), "--cache-type-v before the --"),
    **dict.fromkeys(("-ngl", "--gpu-layers", "--n-gpu-layers"), "--gpu-layers before the --"),
    **dict.fromkeys(("-dev", "--device"), "--attention-device, and CUDA_VISIBLE_DEVICES to choose one of several GPUs"),
    **dict.fromkeys(("--api-prefix", "--ssl-key-file", "--ssl-cert-file", "--reuse-port"), "a reverse proxy in front of EdgeKV"),
    **dict.fromkeys(("--models-dir", "--models-preset"), "one EdgeKV for each model"),
    **dict.fromkeys(("--log-disable", "--log-file"), "--log-file before the --"),
}

_BESIDE_OURS = ("--api-key-file", "--api-prefix", "--device", "--docker-repo", "--hf-file", "--hf-repo", "--log-file", "--model-url", "--models-dir",
                "--models-preset", "--n-gpu-layers", "--reuse-port", "--ssl-cert-file", "--ssl-key-file")
"""Options of _OWNED that our command line does not always name: where it does not, llama.cpp's server takes their variables."""

_NOT_IN_FILES = {*_BESIDE_OURS, "--api-key"} - {"--device", "--n-gpu-layers"}
"""The same for llama.cpp's own files, which are for all its programs."""

_LIVES = "the process outlived llama_server()"
_TRIAL = f"""
import sys
sys.path[:] = {{}}
from edgekv import _native
from edgekv._native import http_server
_native.prepare()
http_server.run(sys.argv[1:])
print({_LIVES!r})
"""


@dataclass(frozen=True)
class ServerLimits:
    """What one request may ask for, and cost others."""

    max_gap_s: float = 0.5
    """Longest wait of a running answer for its next token while a prompt is read, in seconds, as far as 16 prompt tokens at a time allow;
    0: prompts are read at full speed."""
    max_queue: int | None = None
    """Most requests that wait for a slot; further ones are refused. None: `queue_for` the slots."""
    strict_fields: bool = False
    """Refuse fields that FIELDS.md does not have, instead of naming them in a header of the reply."""

    def __post_init__(self) -> None:
        if not 0 <= self.max_gap_s < math.inf:
            raise ConfigError(f"the longest gap is {self.max_gap_s!r}; it must be a number of seconds, or 0 for no limit")
        if self.max_queue is not None and self.max_queue < 0:
            raise ConfigError(f"the queue holds {self.max_queue!r} requests; it must hold 0 or more")

    def queue_for(self, n_slots: int) -> int:
        return 16 + 4 * n_slots if self.max_queue is None else self.max_queue


@dataclass(frozen=True)
class ServerOptions:
    """The model to serve, and the address. `port` 0 picks a free one; `n_ctx` is the context of each of the `n_slots` slots."""

    model: Path
    kv: KvOptions = field(default_factory=KvOptions)
    n_ctx: int | None = None  # tokens; None: see edgekv.planning.context.choose_context
    n_threads: int | None = None  # None: one for each core
    n_gpu_layers: int | None = None  # layers in GPU memory; None: all, if there is a GPU
    weights_from_disk: bool = False  # weights larger than the free memory are read again for every token instead of being refused
    alias: str | None = None  # the model's name for clients; None: the file's
    host: str = LOOPBACK
    port: int = 0
    n_slots: int = 1  # requests answered at the same time
    limits: ServerLimits = ServerLimits()
    when_full: WhenFull = WhenFull.STOP
    store: StoreSettings | None = None  # None: a prompt that no slot holds is read again
    recall: RecallSettings | None = None  # None: what rolls out of a full context is gone
    api_key: str | None = None
    api_key_file: Path | None = None  # more keys, one per line; # begins a comment
    cache_shared: bool = False  # requests with different keys begin with each other's tokens
    draft: Drafting | Path | None = Drafting.OFF  # a path: a draft model; None: guesses from the text where no text loses (drafts.drafting)
    cors: str = LOCALHOST  # the origin whose pages may send requests, as edgekv.server.sites.parse_origin takes it
    allow_host: tuple[str, ...] = ()  # further names that requests may use, as edgekv.server.sites.parse_hosts returns them
    allow_media_host: tuple[str, ...] = ()  # hosts from which media of requests are fetched, in the same form
    sampling: tuple[str, ...] = ()  # options of llama.cpp's server for requests that do not say how to sample
    extra: tuple[str, ...] = ()  # options of llama.cpp's server, last on its command line
    log_file: Path | None = None  # None: a temporary file; "-": standard error

    def __post_init__(self) -> None:
        if not 1 <= self.n_slots <= MOST_SLOTS:
            raise ConfigError(f"there cannot be {self.n_slots} slots; use 1 to {MOST_SLOTS}")
        parse_origin(self.cors)

    def api_keys(self) -> tuple[str, ...]:
        """Every key of the server; empty if requests need none. Raises ConfigError if the file of keys cannot be used."""
        keys = [] if self.api_key is None else [self.api_key]
        if self.api_key_file is not None:
            keys += _keys_in(self.api_key_file)
        for key in keys:
            if not key or not key.isascii() or not key.isprintable() or key != key.strip() or set(key) & set(',"'):
                raise ConfigError("an API key must be printable ASCII without commas, quotes and spaces around it; choose another")
        return tuple(keys)

    @property
    def has_chat_page(self) -> bool:
        """Whether a browser finds llama.cpp's chat page at `/`, and not the live page."""
        from edgekv._native import http_server

        return http_server.has_ui() and not {"--no-ui", "--no-webui"} & set(self.extra)

    @property
    def shows_texts(self) -> bool:
        """Whether the page may show what a conversation says: to the key that it belongs to, or without keys to this machine alone."""
        if self.api_keys() or llama_has_keys():
            return not self.cache_shared
        return not is_public(self.host) and not self.allow_host


def spaces_of(keys: Iterable[str]) -> dict[str, str]:
    """The namespace of each key, including keys that llama.cpp takes from LLAMA_API_KEY: hexadecimal, and the same at each start. A namespace does
    not reveal its key."""
    all_keys = [*keys, *os.environ.get(_LLAMA_KEYS, "").split(",")]
    return {key: hashlib.blake2b(key.encode(), digest_size=16, person=b"edgekv-space").hexdigest() for key in all_keys if key}


def llama_has_keys() -> bool:
    """Whether a variable gives keys to llama.cpp's server."""
    return bool(os.environ.get(_LLAMA_KEYS))


def _keys_in(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"the file of API keys {path} cannot be read: {reason}; name a text file with one key in each line") from None
    keys = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if not keys:
        raise ConfigError(f"the file of API keys {path} has no key; write one in each line")
    return keys


_NOT_WHILE_EVICTING = {
    **dict.fromkeys(("--context-shift", "--cache-reuse"), "they move the remaining tokens to other positions"),
    **dict.fromkeys(("-b", "--batch-size", "-ub", "--ubatch-size"), "--evict-to sets it"),
    **dict.fromkeys(("-md", "--model-draft", "--spec-draft-model"), "a draft model's cache has no bound"),
    **dict.fromkeys(("-kvu", "--kv-unified"), "each slot keeps tokens of its own"),
}

_ONE_CACHE, _OWN_CACHES = ("--kv-unified", "-kvu"), ("--no-kv-unified", "-no-kvu")


def later_options(options: "ServerOptions") -> tuple[str, ...]:
    """Those of llama.cpp's server, which name what it loads after the model, for `planning.later`."""
    return (*options.extra, *((DRAFTS[0], str(options.draft)) if isinstance(options.draft, Path) else ()))


def with_files(named: tuple[str, ...], extra: tuple[str, ...]) -> tuple[str, ...]:
    """Options of llama.cpp's server with files that our own options name. Raises ConfigError if both name a projector."""
    if takes_media(named) and takes_media(extra):
        raise ConfigError("--mmproj is given before and after the --; give one file")
    return *named, *extra


def takes_media(extra: tuple[str, ...]) -> bool:
    """Whether these options name a file that makes embeddings of images and sound."""
    return bool(set(PROJECTOR) & {argument.replace("_", "-") for argument in extra})


def shares_cells(options: ServerOptions, model: Geometry, on_gpu: bool) -> bool:
    """Whether the tokens of all slots lie in one cache: as the last option among `extra` says, else where `unifies` does."""
    said = [argument.replace("_", "-") in _ONE_CACHE for argument in options.extra if argument.replace("_", "-") in (*_ONE_CACHE, *_OWN_CACHES)]
    return said[-1] if said else unifies(model, options.kv, options.n_slots, on_gpu)


def one_cache(n_ctx: int) -> tuple[str, ...]:
    """Options of llama.cpp's server: all slots share one cache, and each has a context of `n_ctx` tokens, as with a cache of its own."""
    return "--kv-unified", "--kv-unified-per-slot", str(n_ctx)


def check_evict(options: ServerOptions) -> None:
    """Raise ConfigError for options that mode evict cannot serve."""
    if options.kv.mode is not KvMode.EVICT:
        return
    if options.when_full is WhenFull.ROLL:
        raise ConfigError("mode evict drops tokens by itself, and what it keeps cannot move; use --when-full stop, or another --kv")
    for argument in options.extra:
        name = argument.replace("_", "-") if argument.startswith("--") else argument
        if name in _NOT_WHILE_EVICTING:
            raise ConfigError(f"{name} does not go with mode evict: {_NOT_WHILE_EVICTING[name]}; leave it out, or use another --kv")


def bounded(options: ServerOptions, model: Geometry) -> ServerOptions:
    """These options with `keep` in tokens; in mode evict without a prefix store, because dropped tokens cannot be kept. Raises ConfigError."""
    return replace(options, kv=in_tokens(model, options.kv), store=None if options.kv.mode is KvMode.EVICT else options.store)


def check_recall(options: ServerOptions, model: Geometry) -> None:
    """Raise ConfigError for options beside which nothing can be recalled, ModelError for such a model."""
    recall = options.recall
    if recall is None:
        return
    if options.kv.mode is KvMode.EVICT:
        raise ConfigError("--recall brings back whole exchanges, and mode evict drops tokens one by one; use --when-full roll and another --kv")
    if options.when_full is not WhenFull.ROLL:
        raise ConfigError("--recall brings back what rolls out of a full context, and nothing does; add --when-full roll")
    if recall.folder is None and (options.store is None or not options.store.ram_bytes):
        raise ConfigError("--recall ram keeps exchanges in the memory of --cache-ram, and there is none; give it some, or name a folder")
    named = {argument.replace("_", "-") for argument in options.extra} | ({"--model-draft"} if isinstance(options.draft, Path) else set())
    if named & {*DRAFTS, *PROJECTOR}:
        what = "a projector, beside which tokens do not move" if named & set(PROJECTOR) else "a draft model, which would not know what comes back"
        raise ConfigError(f"--recall does not go with {what}; leave one of them out")
    if model.mla:
        raise ModelError(f"{model.path.name} keeps compressed rows, without the values by which --recall finds exchanges; leave it out")


def check_extra(extra: tuple[str, ...]) -> None:
    """Raise ConfigError for options that cannot be passed on, also by llama.cpp's variables and files, and for values that would end the process."""
    for name in _BESIDE_OURS:
        if (variable := f"LLAMA_ARG_{name[2:].replace('-', '_').upper()}") in os.environ:
            raise ConfigError(f"{variable} cannot be passed on to llama.cpp's server; unset it, and use {_OWNED[name]}")
    if os.environ.get("AIP_MODE") == "PREDICTION":
        raise ConfigError("AIP_MODE=PREDICTION would move llama.cpp's server to another port; unset it")
    if "LLAMA_SERVER_ROUTER_PORT" in os.environ:
        raise ConfigError("LLAMA_SERVER_ROUTER_PORT would make llama.cpp's server another one's child; unset it")
    for path in files():
        for key, _ in entries(path):
            name = f"--{key.lower().removeprefix('llama_arg_').removeprefix('llama_').replace('_', '-')}"
            if name in _NOT_IN_FILES:
                raise ConfigError(f"{key} in llama.cpp's own file {path} cannot be passed on to its server; remove it there, and use {_OWNED[name]}")
    for argument in extra:
        name = argument.replace("_", "-") if argument.startswith("--") else argument
        if name in _OWNED:
            raise ConfigError(f"{name} cannot be passed on to llama.cpp's server; use {_OWNED[name]}")
    if not extra:
        return
    for name, value in pairwise(extra):
        if name.replace("_", "-") in PROJECTOR:
            check_projector(Path(value))
    trial = try_extra(extra)
    said = [bare_message(line) for line in trial.stderr.splitlines() if line.strip()]
    refusals = [line for line in said if line.startswith(("error: ", "error while handling "))]
    if _LIVES not in trial.stdout or refusals:
        reason = (refusals or said or ["it gives no reason"])[0].removeprefix("error: ")
        raise ConfigError(f"llama.cpp's server does not take {' '.join(extra)}: {reason}")


def try_extra(extra: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """Let a child process parse the options: some make llama.cpp's server print a text and call exit()."""
    argv = ["llama-server", "--model", "no such file", "--host", LOOPBACK, "--port", "0", "--offline", "--no-ui", *extra]
    command = [sys.executable, "-c", _TRIAL.format(sys.path), *argv]
    return subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)


def free_port(host: str, port: int) -> int:
    """A port that can be bound now: `port`, or a free one for 0. Raises ConfigError."""
    no_address = f"{host} is not an address of this machine; use --host {LOOPBACK}, or 0.0.0.0 for all of its addresses"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (socket.gaierror, UnicodeError):
        raise ConfigError(no_address) from None
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
            if port:  # with SO_REUSEADDR a bind can succeed despite a listener
                probe.listen(1)
        except PermissionError:
            raise ConfigError(f"port {port} is reserved for the system; use one from 1024 on") from None
        except OverflowError:
            raise ConfigError(f"there is no port {port}; ports go from 1 to 65535") from None
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise ConfigError(f"port {port} on {host} is in use; choose another with --port, or 0 for a free one") from None
            raise ConfigError(no_address) from None
        return probe.getsockname()[1]


def with_measured(options: ServerOptions) -> ServerOptions:
    """These options, with the types by layer if bytes of K and V are set, and the errors of the model's heads if an error is; what is missing is
    measured. Raises the errors of `edgekv.Llama`."""
    machine: dict[str, Any] = {"n_threads": options.n_threads, "n_threads_batch": options.n_threads, "n_gpu_layers": options.n_gpu_layers}
    given = {name: value for name, value in machine.items() if value is not None}
    if options.kv.cache.lacks_types:
        from edgekv.cache_types import with_layer_types  # with llama_cpp, which other options do not need

        options = replace(options, kv=with_layer_types(options.model, options.kv, n_threads=options.n_threads))
    if options.kv.mode is not KvMode.SPARSE or not options.kv.selection.lacks_head_errors:
        return options
    from edgekv.llama import with_head_errors

    return replace(options, kv=with_head_errors(options.model, options.kv, weights_from_disk=options.weights_from_disk, **given))
