"""Speed as llama-bench measures it, of stock and of EdgeKV's modes, in one run.

A model is loaded once. Its contexts are filled once to each depth, from the shallowest on; there, for each test, the modes take turns.
Stock is measured with flash attention and without, and the faster one is what the others are compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

from edgekv import _native
from edgekv.errors import ConfigError, ModelError
from edgekv.lab.engine import peer
from edgekv.lab.engine.meter import Meter
from edgekv.lab.engine.request import BenchRequest
from edgekv.lab.engine.row import Row
from edgekv.lab.questions.speed import Group, Setting
from edgekv.models.geometry import open_model


def run(request: BenchRequest, where: Row, meter: Meter, warn: Callable[[str], None] = lambda text: None) -> Iterator[list[Row]]:
    """Yield the rows of one test at a time, of every mode; where: the environment.

    What cannot be measured is a row that says why under `note`. Raises ModelError for a file that cannot be loaded, when the models before
    it are done. Where it is interrupted it yields what the test had come to, and raises KeyboardInterrupt.
    """
    if not _native.info()["enabled"]:
        raise ConfigError("EDGEKV=0 is set, so there is only stock attention to measure; unset it")
    if request.peer:
        peer.check(request.peer)
    for path in request.models:
        if not path.exists():
            raise ModelError(f"there is no file {path}; name a GGUF file with -m")
    for path in request.models:
        file = open_model(path)
        n_most = max(test.depth + test.n_tokens for depth in request.depths for test in request.tests(depth))
        if n_most > file.geometry.n_ctx_train:
            warn(f"{path.name} was trained for {file.geometry.n_ctx_train:,} tokens: beyond them only the times mean something")
        for n_batch, n_ubatch, (type_k, type_v) in product(request.batches, request.ubatches, request.cache_types):
            setting = Setting(file, n_batch, min(n_ubatch, n_batch), type_k, type_v)
            yield from Group(request, setting, where, meter).rows()
