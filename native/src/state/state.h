// A plane's view of its llama_context: the context itself, its settings, its layers, and its pages without their bytes.
#pragma once

#include "edgekv.h"
#include "llama-edgekv.h"
#include "cache/pages.h"
#include "state/arrivals.h"
#include "state/layer.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

namespace edgekv {

// of the library
Isa selected_isa();
bool hooks_enabled();
const void * this_thread_name();  // differs between living threads

inline bool selecting(edgekv_mode mode, const edgekv_selection & selection) {
    return mode == EDGEKV_MODE_SPARSE || (mode == EDGEKV_MODE_EVICT && selection.sample_kept);
}

struct State {
    State(llama_context * lctx, const edgekv_params & params);  // throws std::bad_alloc

    // of the ubatch
    bool may_select() const { return selecting(params.mode, params.selection); }  // rows, in steps, by sketches
    bool selects(int n_cells_view) const { return may_select() && n_cells_view > params.selection.exact_tokens; }
    bool reads_all(int token) const { return whole[token]; }  // in mode sparse: the token belongs to a prompt, and prompts are read exactly
    bool all_read_all() const { return std::find(whole.begin(), whole.end(), false) == whole.end(); }
    bool find_whole(const llama_edgekv_tokens & tokens);  // at its begin: finds the tokens that read all; true: they differ from the ubatch before

    bool cannot_attend = false;  // stock nodes would have to, for want of memory, and would take rows that were given back for zeros

    float resolution(const Layer & layer, int head) const;  // of a hooked layer's KV head

    int n_refused() const;  // layers that stock nodes attend, because ours got no memory

    llama_context * const lctx;
    edgekv_params params;  // of the ubatch
    std::atomic<edgekv_mode> wanted_mode;  // from the next ubatch on

    std::vector<float> resolutions;  // [hooked layer][head], 0: the selection's; empty: the selection's for all heads

    std::vector<int32_t> prompts;  // sequences that are prompts from the next ubatch on

    std::vector<std::unique_ptr<Layer>> layers;
    std::vector<Layer *> hooked;  // [hooked layer]
    bool sketched = false;        // some of these have sketches in mode sparse
    PageShape shape = {};
    Pages pages;
    Arrivals arrivals;

private:
    std::vector<uint8_t> whole;  // [token of the ubatch] whether it reads every visible cell
};

}  // namespace edgekv
