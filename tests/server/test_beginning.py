"""A server begins to load before anybody waits for it."""

import pytest

from edgekv.common.errors import EdgeKVError
from edgekv.server.server import Server, ServerOptions, active


def test_a_load_can_begin_before_it_is_waited_for(synthetic):
    server = Server(ServerOptions(synthetic(), n_ctx=512, n_threads=1))
    server.begin()
    with pytest.raises(EdgeKVError, match="already running"):
        server.begin()
    with server.start():
        assert server.ready and server.runtime is not None
        with pytest.raises(EdgeKVError, match="already running"):
            server.start()
    server.begin()
    with server:
        assert server.ready
    server.begin()
    server.stop()  # waits for the load
    assert not server.alive and active() is None
