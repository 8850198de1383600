"""Drafts: tokens that are guessed, and checked in one step together with the next one. What the model says is the same, but for rounding."""

from dataclasses import replace
from pathlib import Path

from edgekv.common.enums import Drafting, KvMode
from edgekv.common.errors import ConfigError, ModelError
from edgekv.models import Geometry
from edgekv.models.reader import MetadataReader, open_gguf
from edgekv.server.server_options import ServerOptions

_MOST = 3
"""Tokens of a draft: a step of up to four has the bits that each token gets alone."""

_UPSTREAMS_MATCH = 1024
"""Tokens that upstream's own lookup must find: more than a draft has, so that it never finds any, and those of EdgeKV stand alone."""

_VOCABULARY = "tokenizer.ggml.tokens"
_MORE_TOKENS = 128
"""llama.cpp lets one vocabulary have so many tokens more than the other."""

_OTHER_DRAFTS = ("--spec-", "--model-draft", "-md", "--hf-repo-draft", "-hfd", "-hfrd", "--draft", "--mmproj", "-mm", "--fim-", "--lookup-cache")
"""Beginnings of options of llama.cpp's server that draft otherwise; with media no draft was measured."""


def chosen_draft(spec_type: str | None, model_draft: Path | None) -> Drafting | Path | None:
    """The value of ServerOptions.draft for --spec-type and --model-draft. Raises ConfigError for both."""
    if spec_type is not None and model_draft is not None:
        raise ConfigError("--spec-type guesses from the text and --model-draft by a model; give one of the two")
    return Drafting(spec_type) if spec_type is not None else model_draft


def drafting(options: ServerOptions, model: Geometry, on_host: bool) -> Drafting | Path:
    """Where drafts come from. Where the options do not say, they are guesses from the text if no text was measured to lose: with full or sparse
    attention, on a processor, for models that can take back a token (recurrent states cannot), and without other drafts among the options of
    llama.cpp's server. Raises ConfigError for drafts in mode evict."""
    if options.draft not in (None, Drafting.OFF) and options.kv.mode is KvMode.EVICT:
        raise ConfigError("--spec-type and --model-draft do not go with mode evict: what a wrong guess made it drop is gone; leave it out, or use another --kv")
    if options.draft is not None:
        return options.draft
    others = any(argument.replace("_", "-").startswith(_OTHER_DRAFTS) for argument in options.extra)
    gains = options.kv.mode in (KvMode.EXACT, KvMode.SPARSE) and on_host and not model.recurrent_bytes and not others
    return Drafting.NGRAM if gains else Drafting.OFF


def draft_arguments(chosen: Drafting | Path) -> tuple[str, ...]:
    """Options of llama.cpp's server for these drafts."""
    if chosen is Drafting.OFF:
        return ()
    if chosen is Drafting.NGRAM:
        return ("--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", str(_UPSTREAMS_MATCH), "--spec-ngram-simple-size-m", str(_MOST))
    return "--spec-type", "draft-simple", "--model-draft", str(chosen), "--spec-draft-n-max", str(_MOST)


def with_draft_model(options: ServerOptions) -> ServerOptions:
    """These options with a draft model among those of llama.cpp's server, so that memory is planned for it. Raises ModelError
    (`check_draft_model`)."""
    if not isinstance(options.draft, Path) or options.kv.mode is KvMode.EVICT:
        return options
    check_draft_model(options.draft, options.model)
    return replace(options, extra=(*draft_arguments(options.draft), *options.extra))


def check_draft_model(draft: Path, model: Path) -> None:
    """Raise ModelError if `draft` is no model file, or has another vocabulary than `model`: its guesses would be other words."""
    ours, theirs = open_gguf(model), open_gguf(draft)
    sizes = [reader.length(_VOCABULARY) for reader in (ours, theirs)]
    kinds = [reader.value("tokenizer.ggml.model") for reader in (ours, theirs)]
    if kinds[0] != kinds[1] or abs(sizes[0] - sizes[1]) > _MORE_TOKENS or not _begin_alike(ours, theirs):
        raise ModelError(f"{draft.name} has another vocabulary than {model.name} ({sizes[1]:,} tokens and {sizes[0]:,}), so it cannot draft for it; "
                         "use a smaller model of the same family")


def _begin_alike(one: MetadataReader, other: MetadataReader) -> bool:
    texts = [reader.texts(_VOCABULARY) for reader in (one, other)]
    n = min(map(len, texts))
    return (n > 0 or texts[0] == texts[1]) and texts[0][:n] == texts[1][:n]
