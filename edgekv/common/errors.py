"""All errors that a person can meet, with their exit codes.

Messages are one sentence that says what was wrong, what is allowed, and what to do. The command line prints them without a traceback.
"""

EXIT_OK = 0
EXIT_RUNTIME = 1
EXIT_USAGE = 2
EXIT_MODEL = 3
EXIT_DOES_NOT_FIT = 4
EXIT_LIBRARY = 5
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


class EdgeKVError(Exception):
    """Any error that EdgeKV reports on purpose."""

    exit_code = EXIT_RUNTIME


class ConfigError(EdgeKVError, ValueError):
    """An option, environment variable or argument has a value that is not allowed."""

    exit_code = EXIT_USAGE


class ModelError(EdgeKVError, ValueError):
    """The model file is missing, damaged, or of a kind that cannot do what was asked."""

    exit_code = EXIT_MODEL


class ContextOverflow(EdgeKVError):
    """A prompt is longer than the context; `n_prompt_tokens` and `n_ctx` are in tokens."""

    def __init__(self, message: str, n_prompt_tokens: int | None = None, n_ctx: int | None = None):
        super().__init__(message)
        self.n_prompt_tokens = n_prompt_tokens
        self.n_ctx = n_ctx


class BrokenOff(EdgeKVError):
    """The stream of an answer ended before the server said that the answer had."""


class DoesNotFit(EdgeKVError, MemoryError):
    """The request needs more memory than the machine or the budget has."""

    exit_code = EXIT_DOES_NOT_FIT


class TierError(EdgeKVError):
    """A memory tier could not be set up or a copy between tiers failed."""


class NativeError(EdgeKVError):
    """The native library refused or failed; the message is its own."""

    exit_code = EXIT_LIBRARY


class AbiMismatch(NativeError):
    """Two libraries of different versions met."""


class CudaUnavailable(NativeError):
    """A GPU was asked for and cannot be used."""


class NotPinned(CudaUnavailable):
    """The KV cache was not pinned in host memory, so that the GPU cannot read it."""
