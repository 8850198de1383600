"""In other people's programs: a line for each llama_cpp.Llama they make. `-m seen MODULE` runs a module as `python -m` does."""

import runpy
import sys

import llama_cpp

made = llama_cpp.Llama


class Seen(made):
    """Says what serves it."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        print(getattr(self, "kv", "stock"), file=sys.stderr, flush=True)


llama_cpp.Llama = Seen
if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
