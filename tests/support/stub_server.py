"""`edgekv serve` on a stub: a server whose answers are its test's."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from support.serve_process import Served, serving
from support.stub import write_stub


def stubbed(home: Path, answers: Any, *options: str, marks: Sequence[str] | None = None, **model: Any) -> AbstractContextManager[Served]:
    """`options` of `edgekv serve`, and `model` as write_stub() takes it. `marks`: tokens of their own that texts show."""
    if marks is not None:
        model |= {"specials": ("<|im_start|>", "<|im_end|>", *marks), "control": False}
    return serving(home, str(write_stub(home / "stub.gguf", answers, **model)), *options)


def stub_server(answers: Any, *options: str, **model: Any) -> Callable[..., Served]:
    """The fixture of a file whose tests only ask: one server for all of them."""
    @pytest.fixture(scope="module")
    def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
        with stubbed(tmp_path_factory.mktemp("stub"), answers, *options, **model) as started:
            yield started

    return served
