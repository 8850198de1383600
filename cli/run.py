"""`edgekv run`: a Python program of others, whose llama_cpp.Llama is ours."""

import importlib.util
import runpy
import sys
from pathlib import Path

import click

import edgekv
from edgekv.cli.common.examples import examples


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}, epilog=examples(
    "edgekv run -m llama_cpp.server --model model.gguf",
    "EDGEKV_KV=exact edgekv run program.py",
))
@click.argument("program", nargs=-1, type=click.UNPROCESSED, required=True, metavar="PROGRAM|-m MODULE [ARGUMENTS]...")
def run(program: tuple[str, ...]) -> None:
    """Run a Python program, a file or as `python -m` a module, in which llama_cpp.Llama is edgekv.Llama. Its KV options are the EDGEKV_* variables."""
    is_module = program[0] == "-m"
    if is_module and len(program) == 1:
        raise click.UsageError("-m wants the name of a module, as for python -m")
    if not is_module and not Path(program[0]).exists():
        raise click.UsageError(f"there is no program {program[0]}; name a file, or -m and a module")
    edgekv.owns_process = False  # the program's errors and signals are its own
    from edgekv import install

    install()
    sys.argv = list(program[is_module:])
    sys.path[0] = "" if is_module else str(Path(program[0]).resolve().parent)  # as Python does
    if is_module and not _is_found(program[1]):
        raise click.UsageError(f"there is no module {program[1]}; name one that `python -m` finds")
    if is_module:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")


def _is_found(module: str) -> bool:
    """Whether runpy finds it, or the __main__ of a package. What goes wrong in packages around it is theirs to say."""
    try:
        spec = importlib.util.find_spec(module)
        return spec is not None and (spec.submodule_search_locations is None or importlib.util.find_spec(f"{module}.__main__") is not None)
    except (ImportError, ValueError) as error:
        name = getattr(error, "name", None)
        if name is None or f"{module}.".startswith(f"{name}."):
            return False
        raise
