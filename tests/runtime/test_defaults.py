"""Options of contexts that are created: those of the creating thread, or of the process."""

import threading

from support.contexts import Context

from edgekv import KvOptions, Llama
from edgekv.common.enums import KvMode
from edgekv.runtime import attachments

import llama_cpp


def test_threads_that_open_models_at_once_get_what_they_asked_for(synthetic, monkeypatch):
    """All four have named their options before one of them creates its context."""
    asked = {"off": {}, "exact": {}, "sparse": {}, "evict": {"evict_to": 256}}
    everyone, found, stock = threading.Barrier(len(asked)), {}, llama_cpp.Llama.__init__

    def create(self, *arguments, **options):
        everyone.wait()
        stock(self, *arguments, **options)

    def open_one(mode: str, more: dict) -> None:
        llama = Llama(synthetic("llama"), kv=mode, n_ctx=1024, verbose=False, **more)
        found[mode] = llama.kv.mode.value, llama.kv.options.mode.value, llama.kv.cells.n_cells
        llama.close()

    monkeypatch.setattr(llama_cpp.Llama, "__init__", create)
    threads = [threading.Thread(target=open_one, args=one) for one in asked.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {mode: one[:2] for mode, one in found.items()} == {mode: (mode, mode) for mode in asked}
    assert [found[mode][2] for mode in ("off", "exact", "sparse")] == [1024] * 3


def test_a_llama_leaves_the_defaults_of_the_process(synthetic):
    attachments.set_defaults(KvOptions(mode="exact"))
    try:
        Llama(synthetic("llama"), kv="off", n_ctx=512, verbose=False).close()
        context = Context(synthetic("llama"))
        assert attachments.find(context.address).mode is KvMode.EXACT
        context.close()
    finally:
        attachments.set_defaults(None)
    context = Context(synthetic("llama"))
    assert attachments.find(context.address) is None
    context.close()
