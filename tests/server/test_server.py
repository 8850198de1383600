"""The in-process server: its life, its sentences where it cannot live, and its context."""

import ctypes
import functools
import importlib
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from support import vision
from support.clients import shown_at, until
from support.contexts import Context
from support.stub import write_stub

from edgekv._native import http_server as native_server
from edgekv.common.errors import EXIT_DOES_NOT_FIT, EXIT_MODEL, EXIT_RUNTIME, EXIT_USAGE, ConfigError, DoesNotFit, EdgeKVError, ModelError
from edgekv.config import KvOptions
from edgekv.models.inspector import projector_bytes
from edgekv.planning import devices
from edgekv.planning.device_fit import DeviceRoom
from edgekv.runtime import attachments
from edgekv.server import server_options
from edgekv.server.log import ServerLog
from edgekv.server.server import Server, ServerOptions, active


@pytest.fixture(autouse=True)
def logs(monkeypatch, tmp_path) -> Path:
    """A failed server keeps its temporary log: tests have a folder for it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def tiny(synthetic) -> Path:
    return synthetic("llama")


def options(model: Path, **more) -> ServerOptions:
    return ServerOptions(model, n_ctx=more.pop("n_ctx", 512), n_threads=1, **more)


# ---- life ---------------------------------------------------------------------------------------------------------------


def handlers() -> list[bytes]:
    """What the kernel does at each signal (the beginning of a struct sigaction), whatever Python believes."""
    now = ctypes.create_string_buffer(1024)
    return [now.raw[:8] for number in range(1, 32) if ctypes.CDLL(None).sigaction(number, None, now) == 0]


def test_starts_and_stops_again_and_again(tiny, capfd):
    before = handlers()
    assert len(before) == 31
    for _ in range(3):
        server = Server(options(tiny))
        with server:
            assert server.alive and active() is server
            assert shown_at(server, "/health") == {"status": "ok"}
            assert handlers() == before
            log = server.log_path
            assert log.exists()
        assert not server.alive and active() is None and not log.exists()
        server.stop()  # twice is fine
    out, err = capfd.readouterr()
    assert (out, err) == ("", ""), "the server's log belongs into its file"


def test_a_load_can_begin_before_it_is_waited_for(tiny):
    server = Server(options(tiny))
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


def test_arguments_are_a_c_programs(monkeypatch):
    """argv[argc] is null, as C promises a main function."""
    from edgekv._native import _server, http_server

    seen = []

    class Lib:
        @staticmethod
        def edgekv_server_run(argc, argv, settings) -> int:
            seen[:] = [_server.ffi.string(argv[i]).decode() for i in range(argc)] + [argv[argc] == _server.ffi.NULL]
            return 0

    monkeypatch.setitem(sys.modules, "edgekv._native._server", SimpleNamespace(ffi=_server.ffi, lib=Lib))
    assert http_server.run(["llama-server", "--port", "1"]) == 0 and seen == ["llama-server", "--port", "1", True]


def test_standard_error_comes_back(tiny, capfd):
    with Server(options(tiny)):
        os.write(2, b"native words\n")
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "after\n"


def test_log_file_of_ones_own_stays(tiny, tmp_path):
    with Server(options(tiny, log_file=tmp_path / "server.log")):
        pass
    assert "model loaded" in (tmp_path / "server.log").read_text()
    with pytest.raises(ConfigError, match="cannot be written"):
        Server(options(tiny, log_file=tmp_path / "no" / "server.log")).start()


def test_contexts_of_others_are_not_the_servers(tiny):
    with Server(options(tiny)):
        pass
    context = Context(tiny)
    assert attachments.find(context.address) is None
    context.close()


def test_one_at_a_time(tiny):
    with Server(options(tiny)) as first:
        with pytest.raises(EdgeKVError, match="already running"):
            Server(options(tiny)).start()
        assert shown_at(first, "/health")


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C works also where the suite runs in the background, with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_signals_are_pythons_at_every_moment(tiny, interruptible):
    """The first signal after the server answers is Python's, also at the moment in which it becomes ready."""
    got: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: got.append(number))
    stop = threading.Event()

    def bombard() -> None:
        while not stop.wait(0.002):
            os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=bombard)
    try:
        thread.start()
        until(lambda: got)
        with Server(options(tiny)) as server:
            n_ready = len(got)
            until(lambda: len(got) > n_ready)
            assert server.alive and shown_at(server, "/health")
    finally:
        stop.set()
        thread.join()
        signal.signal(signal.SIGTERM, before)


def test_ctrl_c_belongs_to_python(tiny, interruptible):
    """The server's own SIGINT handler would stop it."""
    with Server(options(tiny)) as server:
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
        with pytest.raises(KeyboardInterrupt):  # also inside wait(), and the thread must still count as alive
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            old = signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
            try:
                server.wait()
            finally:
                signal.signal(signal.SIGALRM, old)
        assert server.alive and shown_at(server, "/health")
    assert not server.alive


# ---- what can go wrong ------------------------------------------------------------------------------------------------------


@pytest.fixture
def native(monkeypatch):
    """`native(run)` puts a function in the place of llama_server()."""
    module = importlib.import_module("edgekv._native.http_server")
    return lambda run: monkeypatch.setattr(module, "run", lambda argv, *more, **settings: run(argv))


def test_busy_port_is_refused_before_the_model_is_read(tiny, native):
    native(lambda argv: pytest.fail("the server was started"))
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} on 127.0.0.1 is in use; choose another"):
            Server(options(tiny, port=port)).start()
    assert active() is None


@pytest.mark.parametrize("host", ["1.2.3.4", "no.such.host.invalid", "..x"])
def test_foreign_host(tiny, host):
    with pytest.raises(ConfigError, match="not an address of this machine"):
        Server(options(tiny, host=host)).start()


LOGS = [
    ("0.00.1 E srv start: couldn't bind HTTP server socket, hostname: h, port: 1", "the port or host cannot be used", EXIT_USAGE),
    ("E ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 9", "do not fit in memory", EXIT_DOES_NOT_FIT),
    ("E llama_model_load: error loading model: unknown model architecture: 'wow'", r"architecture \(wow\) is newer", EXIT_MODEL),
    ("I fine\n0.00.2 E srv    load_model: failed to load model, 'x'\nI more", "gave up: failed to load model, 'x'", EXIT_RUNTIME),
    ("I only this", "gave up: only this", EXIT_RUNTIME),
    ("", "it says nothing", EXIT_RUNTIME),
]


@pytest.mark.parametrize(("log", "sentence", "code"), LOGS)
def test_a_failed_start_says_why(tiny, native, log, sentence, code):
    native(lambda argv: os.write(2, log.encode()) and 1)
    server = Server(options(tiny))
    with pytest.raises(EdgeKVError, match=sentence) as caught:
        server.start()
    assert "\n" not in str(caught.value) and str(server.log_path) in str(caught.value) and caught.value.exit_code == code
    assert server.log_path.read_text() == log, "the log of a failure is kept"
    assert active() is None
    server.log_path.unlink()


def test_a_thread_that_dies_is_noticed(tiny, native):
    def fail(argv):
        raise RuntimeError("out of luck")

    native(fail)
    with pytest.raises(EdgeKVError, match="out of luck"):
        Server(options(tiny)).start()
    assert active() is None


def test_a_server_that_ends_by_itself(tiny):
    server = Server(options(tiny)).start()
    native_server.terminate()  # as if it had failed
    with pytest.raises(EdgeKVError, match="gave up"):
        server.wait()
    server.stop()
    assert active() is None
    with Server(options(tiny)) as again:
        assert shown_at(again, "/health")


@pytest.mark.parametrize("extra", [
    ("--port", "1"), ("--model", "x"), ("-c", "5"), ("--api_key", "k"), ("--hf-repo", "a/b"),  # ours
    ("-np", "2"), ("--cors-origins", "*"), ("--cache-ram", "9"),
    ("--no-such-option",), ("--numa", "x"),  # refused by llama.cpp
    ("--chat-template", "{% if"), ("--version",),  # llama.cpp calls exit()
])
def test_extra_options_that_cannot_be(tiny, extra, native):
    native(lambda argv: pytest.fail("the server was started"))
    with pytest.raises(ConfigError) as caught:
        Server(options(tiny, extra=extra)).start()
    assert "\n" not in str(caught.value)


def test_a_template_that_does_not_parse_is_the_models_fault(tmp_path: Path) -> None:
    model = write_stub(tmp_path / "stub.gguf", "hello", "{% if x %}hello")
    with pytest.raises(ModelError, match="chat template does not parse: .*; `edgekv serve MODEL -- --chat-template NAME` takes another"):
        Server(ServerOptions(model, n_ctx=512, n_threads=1)).start()
    with Server(ServerOptions(model, n_ctx=512, n_threads=1, extra=("--chat-template", "chatml"))) as server:
        assert server.url


@pytest.mark.parametrize("name", server_options._BESIDE_OURS)
def test_what_cannot_be_passed_on_comes_by_no_variable(tiny, name, monkeypatch, native):
    """llama.cpp's server reads a variable for each option; its help names it. A prefix or keys that only it knows would keep us out for ever."""
    variable = f"LLAMA_ARG_{name[2:].replace('-', '_').upper()}"
    assert f"(env: {variable})" in option_help()
    native(lambda argv: pytest.fail("the server was started"))
    monkeypatch.setenv(variable, "1")
    with pytest.raises(ConfigError, match=f"{variable} cannot be passed on .* unset it, and use"):
        Server(options(tiny)).start()


@functools.cache
def option_help() -> str:
    return server_options.try_extra(("--help",)).stdout


def test_extra_options_are_passed_on(tiny):
    with Server(options(tiny, extra=("--metrics", "--alias", "mine"), alias="ours")) as server:
        assert [model["id"] for model in shown_at(server, "/v1/models")["data"]] == ["mine"]
        assert shown_at(server, "/slots") is not None


def test_log_to_standard_error_can_be_asked_for(tiny, capfd):
    log = ServerLog(Path("-"))
    log.open()
    log.close(keep=False)
    assert log.path is None and "above" in str(log.explain())


# ---- room on a GPU --------------------------------------------------------------------------------------------------------------

CARD = DeviceRoom("a card", 8 << 30, 7 << 30)


@pytest.mark.parametrize(("name", "share"), [("--model-draft", 1.25), ("--model_draft", 1.25), ("-md", 1.25), ("--lora", 1), ("--mmproj", 0)])
def test_an_automatic_budget_leaves_room_for_what_is_loaded_later(tiny, tmp_path, monkeypatch, name: str, share: float):
    """A draft model's file, and a quarter of it for its work; of a projector what llama.cpp says."""
    monkeypatch.setattr(devices, "place", lambda kv, model: SimpleNamespace(room=CARD, info=None, in_force=lambda kv: kv))
    later = vision.qwen2vl(tmp_path / "later.gguf")
    os.truncate(later, 1 << 30)
    alone = Server(options(tiny))
    assert alone.options.kv.placement.kv_vram is None, "what is free when the context is made"
    beside = Server(options(tiny, extra=(name, str(later))))
    assert beside.options.kv.placement.kv_vram == alone.context.device.budget - (int(share * (1 << 30)) or projector_bytes(later))
    given = Server(options(tiny, kv=KvOptions(kv_vram=1 << 30), extra=(name, str(later))))
    assert given.options.kv.placement.kv_vram == 1 << 30, "what a person says stands"
    assert Server(options(tiny, extra=(name, str(tmp_path / "none.gguf")))).options.kv.placement.kv_vram is None
    with pytest.raises(DoesNotFit):
        Server(options(tiny, kv=KvOptions(kv_vram=(6 if share else 7) << 30), extra=(name, str(later))))
