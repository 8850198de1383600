// What hangs on one llama_context: who it is, its layers, its ubatches, what is known of its pages, and the plane that attends them.
#pragma once

#include "context/arrivals.h"
#include "context/layer.h"
#include "context/ubatch.h"
#include "edgekv.h"
#include "llama-edgekv.h"
#include "pages/pages.h"
#include "plane/plane.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

namespace edgekv {

Isa selected_isa();
bool hooks_enabled();
const void * this_thread_name();  // another for each thread that lives

}  // namespace edgekv

struct edgekv_context {
    edgekv_context(llama_context * lctx, const edgekv_params & params);  // on the host plane; throws std::bad_alloc

    // Puts the pages where params.placement says, once, after the context is known to the hooks. Where that fails `problem` says why, and
    // the context stays on the host plane.
    void place();

    // decoding thread, at the begin and end of a ubatch
    void begin_ubatch(const llama_edgekv_tokens & tokens);
    bool end_ubatch(bool ok);  // whether the ubatch callback comes
    const char * failure();    // for good: no ubatch may be computed any more; null: none

    // decoding thread, while the graph is built
    edgekv::Layer * served_layer(int il, const ggml_tensor * k);

    // decoding thread, between ubatches
    edgekv::Failure set_mode(edgekv_mode mode);
    edgekv::Failure set_selection(const edgekv_selection & selection);

    // of the ubatch
    bool sketches() const;  // it builds and reads them
    bool selects(int n_cells_view) const { return params.mode == EDGEKV_MODE_SPARSE && n_cells_view > params.selection.exact_tokens; }
    bool reads_all(int token) const { return exact[token]; }  // it is a prompt's, and prompts are read exactly; mode sparse
    bool all_read_all() const { return std::find(exact.begin(), exact.end(), false) == exact.end(); }

    int n_refused() const;  // layers that stock nodes attend, because there is no memory for ours

    // whether rows can come while a ubatch is computed: nodes that wait for them serve every layer that has any
    bool can_wait_for_rows() const;

    // whether a ubatch is under way on another thread than this: then nothing of the decoding thread's may be touched
    bool decodes_elsewhere() const;

    llama_context * const lctx;
    edgekv_params params;  // of the ubatch

    std::atomic<const void *> decoder{nullptr};  // this_thread_name() from a ubatch's begin to the end of its callback
    std::atomic<edgekv_mode> wanted_mode;        // from the next ubatch on
    std::atomic<bool> wanted_observe;
    std::atomic<bool> wanted_observe_prompts;

    std::vector<int32_t> prompts;  // sequences whose tokens are a prompt's, from the next ubatch on

    std::vector<std::unique_ptr<edgekv::Layer>> layers;
    std::vector<edgekv::Layer *> rows;  // the hooked ones
    edgekv::PageShape shape = {};
    edgekv::Pages pages;
    edgekv::Arrivals arrivals;
    edgekv::Ubatches ubatches;

    struct {
        edgekv_status status = EDGEKV_OK;
        std::string sentence;
    } problem;  // why it is not placed, or what failed there

    const char * thrown = nullptr;  // by a hook, decoding thread: a sentence that lives for ever; null: nothing

    std::unique_ptr<edgekv::Plane> plane;  // never null

private:
    bool find_exact(const llama_edgekv_tokens & tokens);  // whether they are others than in the ubatch before
    bool lacks_room() const;

    std::vector<uint8_t> exact;  // [token of the ubatch]
};
