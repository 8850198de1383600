"""Fetches GGUF files from Hugging Face through huggingface_hub, which resumes interrupted downloads and has its own cache."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct

from edgekv.common.errors import ConfigError, EdgeKVError, ModelError
from edgekv.models.local import hub_folder

PREFERRED = ("Q4_K_M", "Q4_0", "Q4_K_S", "Q8_0", "F16", "BF16")
"""Types of weights to take by default: the first one that exists."""

SECONDS = 10.0
"""To wait for the site's answer."""

_ADDRESS = re.compile(r"(?:hf:)?(?P<repo>[\w.-]+/[\w.-]+)(?::(?P<quant>[\w.-]+))?")
_PART = re.compile(r"-\d{5}-of-\d{5}$")


class Address(Struct, frozen=True):
    """hf:user/repo[:quant]."""

    repo: str
    quant: str | None

    @classmethod
    def parse(cls, text: str) -> Address:
        """The address in a text. Raises ConfigError."""
        match = _ADDRESS.fullmatch(text.strip())
        if match is None:
            raise ConfigError(f"{text!r} is not an address of a model; write hf:USER/REPO or hf:USER/REPO:QUANT, such as "
                              "hf:bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M")
        return cls(match["repo"], match["quant"])


def choose(files: Sequence[str], quant: str | None, repo: str = "the repository") -> list[str]:
    """The files of one model, all parts in order. quant: a part of the name, in any case; None: the first of PREFERRED. Raises ModelError,
    which names the files that exist."""
    models: dict[str, list[str]] = {}
    for file in sorted(files):
        stem, suffix = os.path.splitext(file)
        if suffix.lower() == ".gguf" and "mmproj" not in stem.lower() and "imatrix" not in stem.lower():
            models.setdefault(_PART.sub("", stem), []).append(file)
    if not models:
        raise ModelError(f"{repo} has no GGUF file; look for one whose name ends in GGUF")
    named = {stem: re.split(r"[/.]|(?<=[a-z0-9])-", stem.rsplit("/", 1)[-1], flags=re.IGNORECASE) for stem in models}
    for wanted in (quant,) if quant is not None else PREFERRED:
        fitting = [stem for stem, words in named.items() if wanted.lower() in (word.lower() for word in words)]
        if fitting:
            return models[min(fitting, key=len)]
    if quant is None:
        return models[min(models, key=len)]
    raise ModelError(f"{repo} has no {quant}; it has: {', '.join(models)}")


def kept(address: Address) -> Path | None:
    """The file, or the first part, of a model that was fetched before; None: it is not here, or not whole. Without a type the address names the
    preferred one of those that are here."""
    snapshots = hub_folder() / f"models--{address.repo.replace('/', '--')}" / "snapshots"
    for snapshot in sorted(snapshots.glob("*"), key=lambda folder: -folder.stat().st_mtime):
        try:
            files = choose([path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*") if path.exists()], address.quant, address.repo)
        except ModelError:
            continue
        if len(files) == int((_PART.search(Path(files[0]).stem) or ["1"])[0].rpartition("-")[2]):
            return snapshot / files[0]
    return None


def pull(address: Address, say: Callable[[str], None] = lambda text: None, agree: Callable[[str, int], bool] = lambda name, n_bytes: True) -> Path:
    """Fetch a model and return the path of its file, or of its first part. say(line): called for each file; agree(name, bytes): called before
    anything is fetched, and says whether to; huggingface_hub shows a bar on a terminal. Raises ModelError if there is no such model, EdgeKVError if
    the site cannot be reached or nobody agrees."""
    import huggingface_hub as hub  # here: its import takes longer than most commands
    import huggingface_hub.errors

    hub.logging.set_verbosity_error()  # not a line for each of its attempts: the end has one sentence
    try:
        sizes = {file.rfilename: file.size or 0 for file in hub.HfApi().model_info(address.repo, files_metadata=True, timeout=SECONDS).siblings or []}
        files = choose(list(sizes), address.quant, address.repo)
        if not agree(files[0], sum(sizes[file] for file in files)):
            raise EdgeKVError("nothing was fetched")
        paths: list[Path] = []
        for i, file in enumerate(files, 1):
            say(f"{address.repo}: {file}" + (f" ({i} of {len(files)})" if len(files) > 1 else ""))
            paths.append(Path(hub.hf_hub_download(address.repo, file)))
    except EdgeKVError:
        raise
    except hub.errors.GatedRepoError:
        raise ModelError(f"{address.repo} is given only to people who have agreed to its terms; do so on its page, and set HF_TOKEN") from None
    except hub.errors.RepositoryNotFoundError:
        raise ModelError(f"there is no model {address.repo} on Hugging Face, or it is private and HF_TOKEN is not set") from None
    except Exception as error:
        if not isinstance(error, OSError) and "TransportError" not in (kind.__name__ for kind in type(error).__mro__):  # of httpx, whose name varies
            raise
        offline = isinstance(error, hub.errors.OfflineModeIsEnabled)
        raise EdgeKVError(f"{address.repo} cannot be fetched from Hugging Face: {'HF_HUB_OFFLINE is set' if offline else _reason(error)}; try again, "
                          "which goes on with what has come, or take a model that is here (`edgekv models list`)") from None
    return paths[0]


def _reason(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
