"""Options of contexts that are created: those of the creating thread, or of the process."""

import ctypes
import threading

from support.contexts import Context, n_hooked

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


def test_a_stock_llama_is_served_and_a_context_that_cannot_be_is_named(synthetic, caplog):
    """Flash attention is on where a stock Llama says nothing of it, as long as the defaults attach; what is off stays off."""
    def opened(**options) -> tuple[int, int]:
        """(layers, ubatches of one that nodes of ours attended) of a stock Llama."""
        llama = llama_cpp.Llama(str(synthetic("llama")), n_ctx=512, verbose=False, **options)
        found = attachments.find(ctypes.cast(llama.ctx, ctypes.c_void_p).value)
        llama.eval([260] * 64)
        counted = len(found.layers), n_hooked(found)
        llama.close()
        return counted

    attachments.set_defaults(KvOptions(mode="sparse"))
    try:
        assert opened() == (2, 1) and "serves none" not in caplog.text
        assert opened(flash_attn=False) == (2, 0)
        context = Context(synthetic("llama"), flash_attn_type=llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED)
        context.close()
    finally:
        attachments.set_defaults(None)
    assert caplog.text.count("serves none of the 2 layers") == 2 and caplog.text.count("flash_attn=True") == 2
    llama = llama_cpp.Llama(str(synthetic("llama")), n_ctx=512, verbose=False)
    assert llama.context_params.flash_attn_type == llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
    llama.close()
