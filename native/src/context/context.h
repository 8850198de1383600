// EdgeKV's part of one llama_context: its state, its ubatches, and the plane that attends its pages.
#pragma once

#include "edgekv.h"
#include "llama-edgekv.h"
#include "attention/plane.h"
#include "state/state.h"
#include "state/ubatch.h"

#include <atomic>
#include <memory>
#include <string>
#include <vector>

struct edgekv_context : edgekv::State {
    edgekv_context(llama_context * lctx, const edgekv_params & params);  // on the host plane. Throws std::bad_alloc.

    // Puts the pages where params.placement says. Called once, after the hooks know the context. On failure, `problem` says why, and the
    // context stays on the host plane.
    void place();

    // decoding thread, at the beginning and end of a ubatch
    void begin_ubatch(const llama_edgekv_tokens & tokens);
    bool end_ubatch(bool ok);  // true: the ubatch callback comes
    const char * failure();    // a final one: no further ubatch may be computed; null: none

    // decoding thread, while the graph is built
    edgekv::Layer * served_layer(int il, const ggml_tensor * k);

    // decoding thread, between ubatches
    edgekv::Failure set_mode(edgekv_mode mode);
    edgekv::Failure set_selection(const edgekv_selection & selection);

    // Whether rows may come while a ubatch is computed: every layer with a cache has nodes that wait for them.
    bool can_wait_for_rows() const;

    // Whether another thread computes a ubatch now. This thread may then touch nothing that belongs to the decoding thread.
    bool decodes_elsewhere() const;

    int bound;  // tokens of a stream whose rows fit into the memory that the cache was made for, in mode evict's defaults; 0: all that it can have

    std::atomic<const void *> decoder{nullptr};  // this_thread_name() from a ubatch's beginning to the end of its callback
    std::atomic<bool> wanted_observe;  // from the next ubatch on
    std::atomic<bool> wanted_observe_prompts;

    edgekv::Ubatches ubatches;

    struct {
        edgekv_status status = EDGEKV_OK;
        std::string sentence;
    } problem;  // why the pages are not on the device, or a failure there

    const char * thrown = nullptr;  // a sentence on an exception in a hook on the decoding thread; it lives for ever. Null: there was none

    std::unique_ptr<edgekv::Plane> plane;  // never null

private:
    std::vector<edgekv_stream_tokens> by_stream(const llama_edgekv_tokens & tokens) const;  // [stream]; empty: there is one
    bool lacks_room() const;
};
