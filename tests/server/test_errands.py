"""The thread that decodes makes every change, also while an answer runs."""

import threading
from concurrent.futures import ThreadPoolExecutor, wait

import pytest
from support.local_server import SPARSE, complete

from edgekv.common.enums import KvMode
from edgekv.common.errors import ConfigError, EdgeKVError
from edgekv.config import KvOptions
from edgekv.server.errands import Errands
from edgekv.server.server import Server
from edgekv.server.server_options import ServerOptions

N_PROMPT = 6000


@pytest.fixture
def server(synthetic):
    with Server(ServerOptions(synthetic("llama", n_ctx_train=2 * N_PROMPT, n_layer=4), kv=SPARSE, n_ctx=2 * N_PROMPT, n_threads=1)) as server:
        yield server


def test_pins_may_be_set_while_a_batch_is_computed(server):
    """A chat sets pins right after Ctrl-C, while the batch that the answer left behind is still computed."""
    runtime, decoders, n = server.runtime, set(), 0

    def pin() -> list[tuple[int, int]]:
        decoders.add(threading.current_thread().name)
        runtime.unpin_all()
        runtime.pin(n, n + 10, ahead=True)
        return runtime.pins

    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(complete, server, 0, N_PROMPT, 3000)
        while not answer.done():
            assert server.between_batches(pin) == [(n, n + 10)]
            n += 1
        answer.result()
    assert n > 3 and len(decoders) == 1
    assert server.between_batches(pin) == [(n, n + 10)], "and where nothing is computed"


def test_what_an_errand_raises_is_passed_on_and_the_server_goes_on(server):
    def fails() -> None:
        raise ConfigError("no")

    with pytest.raises(ConfigError, match="no"):
        server.between_batches(fails)
    assert server.between_batches(lambda: 3) == 3
    complete(server, 1, 20, 2)


def test_a_server_that_is_gone_does_nothing_more(synthetic):
    with Server(ServerOptions(synthetic("llama"), kv=KvOptions(mode=KvMode.EXACT), n_ctx=512)) as server:
        assert server.between_batches(lambda: 1) == 1
    with pytest.raises(EdgeKVError):
        server.between_batches(lambda: 1)


def test_order_and_those_that_nobody_waits_for():
    errands, called = Errands(), []
    futures = [errands.ask(lambda i=i: called.append(i)) for i in range(3)]
    assert futures[1].cancel() and not futures[0].done()
    errands.run()
    assert called == [0, 2] and wait(futures).done
