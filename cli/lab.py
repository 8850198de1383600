"""`edgekv lab`: the laboratory's commands. They come in a wheel of their own, and nothing else here imports it."""

from typing import Any

import click

from edgekv.cli.common.examples import examples
from edgekv.cli.common.lazy_group import Commands, LazyGroup
from edgekv.common.errors import ConfigError

HOW = "the laboratory is not installed; in a clone of the repository: pip install ./edgekv/lab"


class _Laboratory(LazyGroup):
    @property
    def table(self) -> Commands:  # type: ignore[override]
        """Raises ConfigError where the wheel is not installed."""
        try:
            from edgekv.lab.commands import COMMANDS
        except ModuleNotFoundError:
            raise ConfigError(HOW) from None
        return COMMANDS

    def make_context(self, *args: Any, **settings: Any) -> click.Context:
        """Raises ConfigError where the wheel is not installed, for --help too."""
        self.list_commands(click.Context(self))
        return super().make_context(*args, **settings)


@click.group(cls=_Laboratory, epilog=examples(
    "edgekv lab quality model.gguf",
    "edgekv lab report results",
))
def lab() -> None:
    """Study the product: what a KV mode costs in quality, where attention goes, and what policies make of it.

    The commands come in a wheel of their own: pip install ./edgekv/lab, in a clone of the repository.
    """
