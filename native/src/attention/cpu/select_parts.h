// The four parts of the select node: TokenSights finds the cells that each token sees, ShareScan estimates their shares of its attention,
// RowLister lists the rows that it reads, HeadClaims gives the work to the threads. They share SelectPlan and SelectThread.
#pragma once

#include "attention/cpu/nodes.h"
#include "kernels/select/sample.h"

#include <atomic>

namespace edgekv {

enum SelectSource { SELECT_Q, SELECT_K, SELECT_MASK, SELECT_K_IDXS, SELECT_SINKS, N_SELECT_SOURCES };

constexpr int kChunkGroups = 16;  // a thread scans so many at once: 1,024 cells

// The sizes of one run's selection and the layout of its workspace, which all layers use in turn: HeadClaims' counters; shares [KV head][token][head
// of the group]; then for each thread the prepared queries of a KV head, the scratch of sampling, the tokens' sights, and those of a KV head in mode evict.
struct SelectPlan {
    SelectPlan(const HostLayer & layer, const ggml_tensor * k, const TokenRun & run, int n_threads);
    // n_heads: the maximum over layers
    SelectPlan(const edgekv_layer & info, int n_tokens, int n_cells, bool scans, bool keeps, int n_heads, int n_threads);

    int n_tokens, n_head_kv, group, n_cells, n_groups, n_queries, n_chunks;
    bool scans;  // by sketches: mode sparse, and mode evict where it samples what is kept
    bool keeps;  // mode evict: heads have dropped pages
    size_t cell_stride, group_stride, shares_offset, tops_offset, sums_offset, threads_offset, scratch_offset, sight_offset, kept_offset, thread_bytes, bytes;
    size_t sight_bytes;  // of the run's sights, in HostPlane::sights and in each thread's part of the workspace
};

// One thread's view of the run that it selects for.
struct SelectThread {
    HostLayer & layer;
    const ggml_tensor * node;
    const SelectPlan & plan;
    const TokenRun & run;
    const int64_t first;  // the run's first token in the graph
    const int stream;     // of the cache
    const int ith;

    HostPlane & plane() const { return *layer.plane; }
    const State & ctx() const { return layer.plane->ctx; }
    bool leaves(int token) const { return run.left >> token & 1; }
    int64_t cell_of(int token) const {
        return static_cast<const int64_t *>(node->src[SELECT_K_IDXS]->data)[first + token] - static_cast<int64_t>(stream) * ctx().shape.n_cells;
    }
    int32_t position(int token) const { return ctx().pages.cells.positions(stream)[cell_of(token)]; }

    char * workspace() const { return plane().select_workspaces[run.workspace].data(); }
    char * own() const { return workspace() + plan.threads_offset + ith * plan.thread_bytes; }
    Shares shares(int head, int token) const;  // of the token's query heads
};

// The cells that each token of a run sees: [n_tokens][n_groups], empty for a token that the run leaves out. The leading layer reads the mask;
// the others read its result.
class TokenSights {
public:
    explicit TokenSights(const SelectThread & thread);

    const Sight * of(int token) const { return all + static_cast<size_t>(token) * n_groups; }
    int n_visible(int token) const;
    // Whether no token sees more than `exact_tokens` cells: all that they see is listed, and nothing is scanned.
    bool are_few() const { return few; }

private:
    const Sight * all;
    const int n_groups;
    bool few;
};

// The sights of a KV head's tokens in groups [first, end): in mode evict without the pages that the head has dropped.
const Sight * sights_of_head(const SelectThread & thread, const TokenSights & sights, int head, int first, int end);

// Estimates shares of attention by the sketches.
class ShareScan {
public:
    ShareScan(const SelectThread & thread, const TokenSights & sights) : thread(thread), sights(sights) {}

    void scan(int head, int chunk);

private:
    void scan_kept(const HeadScan & scan, int first, int end, const Shares & out) const;

    const SelectThread & thread;
    const TokenSights & sights;
    int prepared = -1;  // the KV head of the queries in the thread's memory
};

// Lists the rows that the tokens of a run read in a KV head, and adds to the head's sums. One thread lists a head.
class RowLister {
public:
    RowLister(const SelectThread & thread, const TokenSights & sights) :
        thread(thread), sights(sights), lists(thread.plane().lists_of(thread.layer, thread.run)), cells(thread.plane().cells_of(thread.stream)) {}

    void list(int head) const;

private:
    int sequence_of(int token) const;
    SampleResult every(int token, const Sight * sight, int32_t * rows) const;  // all visible cells that the head has not dropped
    SampleResult sample(int head, int token, const Sight * sight, int32_t * rows, float * weights) const;

    const SelectThread & thread;
    const TokenSights & sights;
    const RowLists & lists;
    const llama_edgekv_cells cells;
};

// Threads claim chunks as they come free, head by head, each thread beginning with a head of its own: threads of different heads write to
// different lines of memory. The thread that completes the last chunk of a head lists it. The counters lie at the begin of the workspace, by
// KV head as many as any layer needs, so that none lies where another layer keeps numbers; they are zero between nodes.
class HeadClaims {
    struct alignas(64) Head {
        std::atomic<int> next, done;  // chunks
    };

public:
    static size_t bytes(int n_heads) { return (1 + n_heads) * sizeof(Head); }

    HeadClaims(const SelectPlan & plan, char * workspace, int ith, int nth) :
        left(reinterpret_cast<Head *>(workspace)->next), heads(reinterpret_cast<Head *>(workspace) + 1), n_chunks(plan.n_chunks), n_heads(plan.n_head_kv),
        n_threads(nth), h(static_cast<int>(static_cast<int64_t>(n_heads) * ith / nth)) {}

    bool claim();
    int head() const { return h; }
    int chunk() const { return c; }
    bool completes_head() const { return heads[h].done.fetch_add(1, std::memory_order_acq_rel) + 1 == n_chunks; }
    void leave();  // each thread once, behind its last claim

private:
    std::atomic<int> & left;  // threads
    Head * const heads;
    const int n_chunks, n_heads, n_threads;
    int h, c = 0, n_tried = 0;
};

}  // namespace edgekv
