"""Where the file of options is, without what reads it: most people have none."""

import os
from pathlib import Path

import platformdirs

VARIABLE = "EDGEKV_CONFIG"
COMMANDS = ("chat", "serve")
"""Commands that read the file."""


def config_path() -> Path:
    """The path of the file, which may not exist."""
    if named := os.environ.get(VARIABLE):
        return Path(named).expanduser()
    return platformdirs.user_config_path("edgekv", appauthor=False) / "config.toml"


def is_expected() -> bool:
    """Whether the file is there, or must be: reading one that cannot be read says why."""
    try:
        config_path().stat()
    except FileNotFoundError:
        return bool(os.environ.get(VARIABLE))
    except OSError:
        pass
    return True
