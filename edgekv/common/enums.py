"""The words that several packages share, each with one meaning."""

import enum

PAGE_TOKENS = 16
"""Cells per page: the unit of score, residency and migration."""

STOCK = "off"
"""The mode that others are compared with. Timings take the faster of STOCK_KERNELS; everything else takes the first, whose cache is laid out
as in the other modes."""

STOCK_KERNELS = ("off-flash", "off-noflash")
"""Stock llama.cpp's two ways to attend. The faster one depends on the processor, the compiler and the depth."""

FULL = "exact"
"""Full attention in our kernel. A sparse mode's predictions are compared with it, and with stock."""


class Described(str, enum.Enum):
    """Words with a sentence about each: NAME = value, description."""

    _value_: str
    description: str

    def __new__(cls, value: str, description: str = ""):
        member = str.__new__(cls, value)
        member._value_, member.description = value, description
        return member


class KvMode(Described):
    """The tokens that each token attends, and the mode's promise."""

    EXACT = "exact", "each token attends every visible page, in our kernel: the answers of stock llama.cpp, faster"
    SPARSE = "sparse", "each token attends what matters and a weighted sample of the rest; nothing is lost, and the error is reported"
    EVICT = "evict", "each token attends what the policy kept; the rest is dropped for good: a hard bound on memory, however long the context"
    OFF = "off", "stock llama.cpp attention"


class MissReason(Described):
    """Why a prompt's tokens were computed, from the first that was not found. In the order of edgekv_miss_reason (native/include/edgekv_server.h)."""

    DISABLED = "disabled", "the server keeps no prefixes, or this request cannot take any: `cache_prompt: false`, embeddings, aLoRA, a draft model"
    NOT_ATTACHED = "not_attached", "EdgeKV does not serve this context"
    MODEL_UNKNOWN = "model_unknown", "the digest of a file of the model or its projector is not known, or what the context keeps cannot be put back"
    COLD = "cold", "nothing kept goes on there: the tokens are new, or were evicted"
    DIVERGED = "diverged", "a kept conversation goes on differently there, and alike within 256 tokens: something changed there, such as a date"
    OTHER_SETTINGS = "other_settings", "the tokens are kept, but were read with settings that this server does not accept"
    NO_CHECKPOINT = "no_checkpoint", "the rows are kept, but no snapshot of the windows or recurrent states behind them"
    INSIDE_MEDIA = "inside_media", "what is kept ends within an image or a sound"
    NO_CELLS = "no_cells", "other sequences fill the context"
    CHEAPER_TO_COMPUTE = "cheaper_to_compute", "by measured speeds computing is quicker than loading"
    TIER_DOWN = "tier_down", "nothing was found, and the disk or the shared server cannot be used now"
    DAMAGED = "damaged", "the rows are kept, but cannot be read"


class WhenFull(Described):
    """The treatment of a conversation that no longer fits into its context."""

    STOP = "stop", "an answer ends there, and a longer prompt is refused"
    ROLL = "roll", "whole oldest exchanges leave it; the system prompt, pinned messages and the newest exchange stay"


class Drafting(Described):
    """Where tokens come from that are guessed and checked together with the next one."""

    NGRAM = "ngram-text", "what followed the last tokens where they stood before, as long as such guesses save time"
    OFF = "none", "nothing is guessed"


class DeviceKind(str, enum.Enum):
    """The place of a context's data plane; the values are those of EDGEKV_ATTENTION_DEVICE."""

    HOST = "cpu"
    CUDA = "cuda"
    EMULATED = "emulated"
    """A device whose memory is host memory: every kernel runs on the processor, for tests."""


class PromptReading(Described):
    """The tokens that a prompt's tokens attend in mode sparse."""

    EXACT = "exact", "all visible tokens"
    SPARSE = "sparse", "the blocks of 64 tokens that most of their attention goes to, by sketches; from 2,048 tokens on"


class CacheCodec(Described):
    """The form of kept rows on disk and on a shared server."""

    NONE = "none", "as they are, and rounded rows of others are not used"
    AUTO = "auto", "in mode sparse rounded where the place is slow, else as they are; mode exact keeps and uses none that are rounded"
    ROUND = "round", "rounded to a third of their bytes, in mode exact too"


class Split(Described):
    """The division of a page budget over layers and heads."""

    POOLED = "pooled", "one budget for all layers and heads: each gets what its attention is worth"
    UNIFORM = "uniform", "the same number of pages for each layer and head"
    LAYER = "layer", "the same number of pages for each layer, shared by its heads as their pages are worth"
    PYRAMID = "pyramid", "fewer pages for each further layer, the same for each head of one"


class CacheType(str, enum.Enum):
    """Element type of the K or V cache."""

    F16 = "f16"
    Q8_0 = "q8_0"
    Q4_0 = "q4_0"

    @property
    def ggml_type(self) -> int:
        """The value of `enum ggml_type`."""
        return {"f16": 1, "q8_0": 8, "q4_0": 2}[self.value]


Kinds = str | tuple[str, ...]
"""The name of a cache type, of all layers or of each."""
