"""`edgekv run`: a Python program of others, whose llama_cpp.Llama is ours."""

from __future__ import annotations

import runpy
import sys

import click

import edgekv
from edgekv.cli.common.examples import examples


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}, epilog=examples(
    "edgekv run -m llama_cpp.server --model model.gguf",
    "EDGEKV_KV=exact edgekv run program.py",
))
@click.option("-m", "is_module", is_flag=True, help="PROGRAM is the name of a module, as for python -m.")
@click.argument("program")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(is_module: bool, program: str, arguments: tuple[str, ...]) -> None:
    """Run a Python program in which llama_cpp.Llama is edgekv.Llama. Its KV options are the EDGEKV_* variables."""
    edgekv.owns_process = False  # the program's errors and signals are its own
    from edgekv import install

    install()
    sys.argv = [program, *arguments]
    if is_module:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(program, run_name="__main__")
