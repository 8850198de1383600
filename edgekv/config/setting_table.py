"""The one table of settings: what `edgekv chat`, `serve` and `plan` take, as options, variables and keys of a file."""

from collections.abc import Callable, Iterable
from enum import Enum
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from edgekv.common.enums import CacheCodec, CacheType, Drafting, KvMode, PromptReading, Split, WhenFull
from edgekv.common.errors import ConfigError
from edgekv.common.machine import MOST_THREADS
from edgekv.common.units import MOST_TOKENS, SWITCH, parse_bytes, parse_duration
from edgekv.config.groups import DEVICES, CacheOptions, EvictionOptions, PlacementOptions, SelectionOptions
from edgekv.config.values import Keep, parse_kv_dir, parse_sample_budget, parse_target_error, parse_token_bytes

RENAMED = {
    "keep": "evict-to", "slots": "parallel", "device": "attention-device", "type-k": "cache-type-k", "type-v": "cache-type-v",
    "page-tokens": "page-size", "resolution": "sample-budget", "prompt-resolution": "prompt-sample-budget", "error": "target-error",
    "home": "kv-dir", "draft": "spec-type", "max-gap": "max-itl",
}
"""Old name: the new one. For one release an old name ends with a sentence."""
GONE = {"sketch": "sample-budget", "attend": "sample-budget"}
"""The same for what is not asked any more: the name of what says how much a token reads instead."""
OLD = RENAMED | GONE
OLD_KEYWORDS = tuple(name.replace("-", "_") for name in OLD if not name.startswith("type"))  # llama_cpp.Llama has type_k and type_v


BOTH, EVERYWHERE, CHAT, SERVE = ("chat", "serve"), ("chat", "serve", "plan"), ("chat",), ("serve",)


def variable_of(name: str) -> str:
    """The environment variable of a setting: "evict-to" has EDGEKV_EVICT_TO."""
    return f"EDGEKV_{name.replace('-', '_').upper()}"


def keyword_of(name: str) -> str:
    """Its keyword in Python."""
    return name.replace("-", "_")


def check_renamed(given: Iterable[str], spelled: Callable[[str], str], where: str = "") -> None:
    """Raise ConfigError, which begins with `where`, if one of the names that are `given`, as `spelled` spells a setting's name, is an old one."""
    old = {spelled(name): name for name in OLD}
    for name in given:
        if (own := old.get(name)) in GONE:
            raise ConfigError(f"{where}{name} is gone: mode sparse reads what its sketches choose, and {spelled(GONE[own])} says how much")
        if own is not None:
            raise ConfigError(f"{where}{name} is now called {spelled(RENAMED[own])}")


class Number(Struct, frozen=True):
    """A number from `least` to `most`; None: no bound."""

    least: float = 0
    most: float | None = None
    whole: bool = True
    above: bool = False
    """`least` itself is not allowed."""


class Setting(Struct, frozen=True):
    """One setting, and where it is valid."""

    name: str
    """As the long option without its dashes, and the key in the file: "evict-to"."""
    kind: Any
    """Number, bool, str, Path, an Enum, a function of a text and a noun that raises ConfigError, or the name of a function that the command line has."""
    help: str
    group: str = ""
    default: Any = None
    """The value where nothing is said; None: `usual` says what happens."""
    usual: str | None = None
    unit: str | None = None
    """The placeholder of the value."""
    short: tuple[str, ...] = ()
    where: tuple[str, ...] = BOTH
    """Commands with this option; none: a variable and a keyword of Python alone."""
    keyword: str | None = None
    """The option of KvOptions that it sets: its variable is read there, for the library too. None: it is none of them."""
    brief: str = ""
    """Its line of `--help`; none: `--help-all` alone shows it."""
    many: bool = False
    """May be given several times."""
    off: bool = False
    """A switch that has a --no- form, for a default that depends."""

    @property
    def variable(self) -> str:
        return variable_of(self.name)

    @property
    def words(self) -> list[str]:
        """The values that it can have, where they are words of a list; else none."""
        is_enum = isinstance(self.kind, type) and issubclass(self.kind, Enum)
        return [one.value if isinstance(one, Enum) else one for one in self.kind] if is_enum or isinstance(self.kind, tuple) else []

    @property
    def default_text(self) -> str | None:
        """The default, as help and documentation say it."""
        if self.kind is bool and not self.off:
            return self.usual or "false"
        return self.usual if self.default is None else f"{self.default:g}" if isinstance(self.default, float) else str(self.default).lower()

    def read(self, text: str, noun: str | None = None) -> Any:
        """The value of a text, for KvOptions. noun: what had it; None: the variable. Raises ConfigError."""
        noun = noun or self.variable
        if isinstance(self.kind, Number):
            try:
                return int(text)
            except ValueError:
                raise ConfigError(f"{noun}={text} is not a whole number") from None
        if self.kind is bool:
            if text.lower() not in SWITCH:
                raise ConfigError(f"{noun}={text} is neither on nor off")
            return SWITCH[text.lower()]
        return text if isinstance(self.kind, (type, tuple)) else self.kind(text, noun)


def _described(kind: Any) -> str:
    return "; ".join(f"{one.value}: {one.description}" for one in kind)


def _context(text: str, noun: str) -> int | None:
    if text == "auto":
        return None
    number = text.lower().removesuffix("k")
    n = int(number) * (1 if number == text else 1024) if number.isdecimal() and len(number) < 20 else 0
    if not 1 <= n <= MOST_TOKENS:
        raise ConfigError(f"{noun} is {text!r}; it must be a number of tokens from 1 to {MOST_TOKENS:,}, such as 4096 or 4k, or auto")
    return n


def _amount(text: str, noun: str) -> int:
    such_as = "512MiB or 2GiB"
    n_bytes = parse_bytes(text, noun, such_as)
    if n_bytes is None:
        raise ConfigError(f"{noun} is {text!r}; write bytes such as {such_as}")
    return n_bytes


def _mebibytes(text: str, noun: str) -> int:
    """As llama.cpp's --cache-ram: a number without a unit is in MiB."""
    return _amount(f"{text}MiB" if text.strip().isdigit() else text, noun)


def _listed(group: str, *rows: Setting, where: tuple[str, ...] = BOTH, of_kv: bool = False) -> tuple[Setting, ...]:
    """The rows in a group. where: for those that do not say; of_kv: KvOptions has those that do not say otherwise."""
    return tuple(replace(one, group=group, where=where if one.where is BOTH else one.where,
                         keyword=keyword_of(one.name) if of_kv and one.keyword is None else one.keyword or None) for one in rows)


row = Setting
_OWN = "the model's own, or llama.cpp's"

SETTINGS = (
    *_listed(
        "Conversation",
        row("prompt", str, "Answer this and leave; text on standard input is put after it.", unit="TEXT", short=("-p",),
            brief="Answer this, and leave"),
        row("system", str, "The system prompt.", unit="TEXT", short=("-s",), brief="The system prompt"),
        row("resume", str, "Go on with a kept conversation; without NAME with the newest. /chats lists them.", unit="[NAME]",
            brief="Go on with a kept conversation, the newest one"),
        row("no-keep", bool, "Keep neither this conversation nor its K and V on disk.", brief="Keep neither it nor its K and V on disk"),
        row("url", str, "Talk to the OpenAI-compatible server at this address, e.g. http://127.0.0.1:8080; nothing is loaded here, and MODEL is the "
                     "name of one that it has.", unit="URL", brief="Talk to a running server; nothing is loaded here"),
        row("footer", bool, "Figures after each answer, on standard error.", usual="on a terminal", off=True),
        row("plain", bool, "On a terminal too, show answers as the model writes them: Markdown is not drawn."), where=CHAT),
    *_listed(
        "Answers",
        row("max-tokens", Number(1), "Longest answer.", unit="TOKENS", short=("-n",), usual="until the context is full", brief="Longest answer"),
        row("temp", Number(0, whole=False), "Sampling temperature; 0 always takes the best token.", usual=_OWN,
            brief="Sampling temperature; 0 takes the best token"),
        row("top-p", Number(0, 1, False), "Sample from the best tokens with this probability in all.", usual=_OWN),
        row("top-k", Number(), "Sample from this many tokens; 0 for all.", usual=_OWN),
        row("min-p", Number(0, 1, False), "Leave out tokens this much less likely than the best.", usual=_OWN),
        row("repeat-penalty", Number(0, None, False, True), "Above 1 discourages repetition.", usual=_OWN),
        row("seed", Number(0, 2**32 - 2), "Seed of the sampler.", usual="another each time"), where=CHAT),
    *_listed(
        "Server",
        row("host", str, "Address to listen on; 0.0.0.0 is every address of this machine.", default="127.0.0.1",
            brief="Address; 0.0.0.0 is every one"),
        row("port", Number(0, 65535), "Port to listen on; 0 picks a free one.", default=8080, brief="Port to listen on; 0 picks a free one"),
        row("parallel", Number(1, 16), "Requests answered at the same time; each has its own context.",
         default=1, short=("-np",), where=("serve", "plan"), brief="Requests answered at the same time"),
        row("alias", str, "Name of the model for clients.", unit="NAME", usual="the file's", brief="The model's name for clients"),
        row("mmproj", Path, "The projector that comes with MODEL, a GGUF file: with it requests may have images, or sound.", unit="FILE",
            where=("serve", "plan"), brief="MODEL's projector, for images or sound"),
        row("lora", str, "LoRA adapters of MODEL, GGUF files separated by commas.", unit="FILE[,FILE...]", where=("serve", "plan")),
        row("control-vector", str, "Control vectors of MODEL, GGUF files separated by commas.", unit="FILE[,FILE...]", where=("serve", "plan")),
        row("max-queue", Number(), "Requests that may wait for a slot; more are refused with HTTP 503 and a time to come again.",
         unit="N", usual="16, and 4 for each slot"),
        row("max-itl", Number(0, 3600, False), "Inter-token latency: the longest time, about, that a running answer waits for its next token while another "
                                            "prompt is read; 0 reads prompts at full speed.", unit="SECONDS", default=0.5),
        row("strict-fields", bool, "Refuse requests with fields that the server does not know (edgekv/server/FIELDS.md), which a header of the reply names "
                                   "otherwise."),
        row("cors", str, "Web pages that may send requests: those of localhost, of one origin such as https://example.org, of programs such as app://, "
                      "or * for any.", unit="ORIGIN", default="localhost"),
        row("allow-host", "hosts", "Host names under which clients reach the server, such as a proxy's, besides this machine's own and --host; others are "
                                "refused, because a web page may use them. Can be given several times.", unit="NAME[,NAME...]", many=True),
        row("allow-media-host", "hosts", "Hosts from which images and sound are fetched that requests name by address; an address within this network must "
                                      "be named itself. Without it they come as data URLs alone. Can be given several times.",
         unit="NAME[,NAME...]", many=True),
        row("cache-shared", bool, "Let requests with different keys share kept prefixes. By default each key has its own, and no client finds out what "
                               "others sent."), where=SERVE),
    *_listed(
        "Keys and log",
        row("api-key", str, "serve: answer only requests that carry this key. chat, with --url: the server's key. Others on this machine can see a key on the "
                         "command line: use the variable, or --api-key-file.", unit="KEY"),
        row("api-key-file", Path, "A file with keys: serve answers only requests that carry one of them, one in each line; chat, with --url, sends the "
                               "first.", unit="FILE"),
        row("log-file", Path, "Where llama.cpp's server writes its log; - for standard error.", usual="a temporary file, which is shown if the server fails")),
    *_listed(
        "Context",
        row("ctx", _context, "Context length.", unit="TOKENS|auto", short=("-c",), where=EVERYWHERE,
            usual="auto, what the model was trained for, on a GPU at most 32768, as far as memory allows; "
                  "in mode evict a million tokens",
            brief="Context length, such as 32k [as memory allows]"),
        row("when-full", WhenFull, f"When a conversation no longer fits into its context. {_described(WhenFull)}.",
         usual="stop; in chat roll, but for mode evict"),
        row("recall", "recall", "Keep what rolls out of a full context, and bring it back before a message that is near it; a quarter of the context is for "
                             "that. ram: in the memory of the prefix cache; DIR: in a folder too, which outlives the process and reveals conversations.",
         unit="ram|DIR", usual="it is gone"),
        row("spec-type", Drafting, f"Tokens to guess and check together with the next one; the answer is the same. {_described(Drafting)}.",
         usual="ngram-text in modes exact and sparse on a processor; none for models with recurrent layers, with a projector and with --model-draft"),
        row("model-draft", Path, "A smaller model with the same vocabulary, which guesses the next tokens.", unit="FILE", short=("-md",), where=EVERYWHERE)),
    *_listed(
        "Attention",
        row("kv", KvMode, f"{_described(KvMode)}.", keyword="mode", brief="exact, sparse, evict or off",
            usual="sparse; off on a GPU that `doctor --gpu` has not proven; exact on one that gains little, or without AVX2"),
        row("sample-budget", parse_sample_budget,
         "Modes sparse and evict: a token with more than 1/C of a head's attention is read for certain. The others are sampled, with weights for the unread "
         f"ones. Twice the C reads some 40 % more, with an error some 40 % smaller. Contexts of up to {SelectionOptions.exact_tokens} tokens are attended "
         "whole. Without it mode evict reads all that is kept.", unit="C", usual=f"{SelectionOptions.sample_budget:g}"),
        row("target-error", parse_target_error,
         "Mode sparse, instead of --sample-budget: the allowed error of a head's output against full attention, estimated and on average, e.g. 2%. Each layer "
         "and KV head gets a sample budget for it, by a measurement made once for a model, in the time that a prompt of 5,000 tokens takes.",
         unit="PERCENT", usual=f"none; at sample budget {SelectionOptions.sample_budget:g} a head's error is 1 to 6 %"),
        row("kv-prompts", PromptReading, f"Mode sparse: the tokens that a prompt's tokens attend. {_described(PromptReading)}.",
         keyword="prompts", usual=SelectionOptions.prompts.value),
        row("evict-to", lambda text, noun: Keep.parse(text),
         "Mode evict: how much of each conversation (slot) is kept, whatever its length, e.g. 4096 or 64MiB; its K and V take no more memory than that.",
         unit="TOKENS|BYTES", usual=str(EvictionOptions.evict_to)),
        row("split", Split, "Mode evict: the division of the kept bytes over layers.", usual=EvictionOptions.split.value, where=()),
        row("positions", Number(1), "Mode evict: gaps close before a token would be rotated by this position or a later one.",
         usual="half way from the kept tokens to the trained length", where=()),
        row("policy", str, "Modes sparse and evict: what scores pages, one or several of ema, anchor, recent, h2o, snapkv, ...: `edgekv policies` lists them.",
         unit="NAME+...", usual=PlacementOptions.policy),
        row("prefetch", str, "Mode sparse: what predicts the pages wanted next; one of none, previous, rope, random.",
         unit="NAME", usual=PlacementOptions.prefetch),
        row("observe", bool, "Attention mass is kept, for policies and observers.", usual="on", where=()),
        row("observe-prompt", bool, "In modes sparse and evict policies see the attention of a prompt's last tokens.", usual="on", where=()),
        where=EVERYWHERE, of_kv=True),
    *_listed(
        "Memory",
        row("cache-type-k", CacheType, "Element type of the K cache.",
         keyword="type_k", short=("-ctk",), usual=CacheOptions.type_k.value, brief="K in f16, q8_0 or q4_0"),
        row("cache-type-v", CacheType, "Element type of the V cache.",
         keyword="type_v", short=("-ctv",), usual=CacheOptions.type_v.value, brief="V in f16, q8_0 or q4_0"),
        row("kv-bytes", parse_token_bytes,
         "Instead of two types: the most bytes of K and V of a token, in all layers together, e.g. 24KiB; auto: as few as stay within twice stock's own noise. "
         "Each layer gets q8_0 or q4_0, by what the model loses there, which is measured once; on the processor.", unit="SIZE|auto"),
        row("kv-dir", lambda text, noun: parse_kv_dir(text),
         "A folder on a disk for K and V, for contexts that are larger than memory, in modes sparse and exact on the processor. They lie in a file without a "
         "name, whose space is taken at the start; it ends with the process.", unit="DIR", usual="memory"),
        row("kv-budget", parse_bytes, "Mode sparse with --kv-dir: memory for copies of the rows that are read most lately, e.g. 512MiB.", unit="BYTES|auto",
         usual="auto, three quarters of what is free, of which 16 MiB at least stay free, and none where K and V fit there whole"),
        row("page-size", Number(1), "Tokens of a page, a multiple of 16.", unit="TOKENS", usual=str(CacheOptions.page_size)),
        row("weights-from-disk", bool, "Load a model whose weights are larger than the free memory, which is refused otherwise: they are then read from the "
                                       "disk again for every token.", keyword=""), where=EVERYWHERE, of_kv=True),
    *_listed(
        "Processor and GPU",
        row("threads", Number(1, MOST_THREADS), "CPU threads.", short=("-t",), keyword="", usual="one for each core", brief="CPU threads"),
        row("attention-device", DEVICES,
         "Where attention runs. cuda: on the GPU, or an error that says why not; cpu: everything on the processor, the weights too; auto: on the GPU if one "
         "can be used.", usual=PlacementOptions.attention_device),
        row("kv-vram", parse_bytes,
         "GPU memory for the KV cache, e.g. 2GiB: sketches and tables of the whole context, a buffer for prompts, and copies of hot pages in the rest. All "
         "pages stay in host memory.", unit="BYTES|auto", usual="auto, the memory that the weights leave, less a margin"),
        row("gpu-layers", Number(), "Layers of the model in GPU memory, for a model that does not fit; with fewer than all of them attention runs on the "
                                 "processor.", unit="N", keyword="", usual="all of them if there is a GPU",
            brief="Layers of the model in GPU memory"), where=EVERYWHERE, of_kv=True),
    *_listed(
        "Prefix cache",
        row("cache-ram", _mebibytes, "Host memory for K and V of conversations, so that a returning conversation is not read again, in MiB or with a unit, "
                                     "e.g. 2GiB; 0 for none. It is lost when the server ends.",
         unit="MIB|SIZE", short=("-cram",), usual="1.0 GiB", where=("serve", "plan"), brief="Memory for what may come back"),
        row("cache-dir", Path, "Folder for the same, which outlives the server. Its files reveal conversations: keep it private.",
         unit="DIR", usual="none", brief="Folder for the same"),
        row("cache-disk", _amount, "Maximum size of the folder of --cache-dir; the least recently used blocks go first.", unit="SIZE", usual="10.0 GiB"),
        row("cache-ttl", parse_duration, "What nobody used for so long leaves the folder of --cache-dir, e.g. 12h or 30d, unless it is pinned.",
         unit="TIME", usual="it stays as long as there is room"),
        row("cache-url", "address", "A Redis-compatible server that several EdgeKV servers share, redis://HOST:PORT/DB. Others can see an address on the "
                                    "command line: put one with a password into the variable.", unit="URL", usual="none"),
        row("cache-codec", CacheCodec, f"Form of the rows of --cache-dir and --cache-url. {_described(CacheCodec)}.", usual=CacheCodec.AUTO.value),
        where=SERVE),
)

OF_KV = {one.keyword: one for one in SETTINGS if one.keyword is not None}
"""The settings that KvOptions has, by its names."""
