"""`edgekv doctor --gpu`: tests EdgeKV's attention on the GPU, and says what came of it."""

import json
from pathlib import Path
from typing import Any

import click

from edgekv.cli.common.tables import Column, print_json, print_rows
from edgekv.common.errors import EXIT_OK, EXIT_RUNTIME

STEPS = ("facts", "rates", "kernels", "plane", "memory", "speed")
"""`edgekv.proof.steps.STEPS`, which `--help` does not import."""

COLUMNS = [Column("step", "step", right=False), Column("case", "case", right=False), Column("outcome", "outcome", right=False), Column("said", "", right=False)]


class Output(click.Choice):
    """A format, or any other word as a file."""

    name = "output"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if isinstance(value, Path) else super().convert(value, param, ctx) if value in self.choices else Path(value)


def prove_gpu(model: Path | None, output: str | Path, only: tuple[str, ...], quick: bool) -> int:
    """Print the table and the sentence, or with "json" the report; returns the exit code."""
    import platformdirs

    from edgekv.proof.run import find_device, prove
    from edgekv.proof.steps import Outcome

    device = find_device()
    path = output if isinstance(output, Path) else Path(platformdirs.user_cache_dir("edgekv")) / "doctor-gpu.json"
    rows, said = prove(device, model, path, only or STEPS, quick, lambda title: click.echo(title, err=True))
    if output == "json":
        print_json(json.loads(path.read_text(encoding="utf-8")))
    else:
        print_rows(rows, COLUMNS, "table")
        click.echo(f"\n{said}.\nreport: {path}")
    return EXIT_RUNTIME if any(Outcome(row["outcome"]).fails for row in rows) else EXIT_OK


def replay_gpu(path: Path) -> int:
    """Print the table of a report's cases on the emulated device; returns the exit code."""
    from edgekv.proof.run import replay
    from edgekv.proof.steps import Outcome

    rows, said = replay(path, lambda title: click.echo(title, err=True))
    print_rows(rows, COLUMNS, "table")
    click.echo(f"\n{said}.")
    return EXIT_RUNTIME if any(Outcome(row["outcome"]).fails for row in rows) else EXIT_OK
