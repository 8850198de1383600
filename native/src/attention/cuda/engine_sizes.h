// The sizes of an engine's memory on its device. The engine allocates by these functions, and edgekv_get_device_bytes() uses them without
// an engine or a device. No CUDA. Bytes are as requested: DeviceBuffer rounds them up to a multiple of 256.
#pragma once

#include "kernels/device_sizes.h"
#include "attention/cuda/engine.h"

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

namespace edgekv {

// The device memory that an automatic budget leaves to recorded graphs and other programs, when a ubatch and a token have taken theirs; a screen needs more.
constexpr size_t least_margin(bool has_display) { return size_t{has_display ? 1024u : 512u} << 20; }
// The same before a context is made: a share of the device stands for what those two take (cuBLAS, the pool of its backend, kernels that are loaded late).
inline size_t device_margin(size_t total_bytes, bool has_display) { return std::max(least_margin(has_display), total_bytes / 20); }

// Most bytes of selection's and attention's data for tokens that are served together; a single token may take more.
constexpr size_t kTogetherBytes = 64u << 20;

// ---- in every mode -----------------------------------------------------------------------------------------------------------

constexpr int kUpdates = 1 << 14;  // most updates of one upload, of kUpdateBytes each
constexpr size_t kUpdateBytes = 8, kStepStateBytes = 8;

inline size_t engine_entries(const EngineShape & shape) { return shape.layers.size() * shape.n_heads * shape.n_pages; }
inline int engine_stream_groups(const EngineShape & shape) {  // of whole pages
    return (shape.pages_per_stream * shape.page_tokens + kGroupCells - 1) / kGroupCells;
}
// entries of the longest list, and of a query row's shares
inline size_t engine_list_stride(const EngineShape & shape) { return static_cast<size_t>(engine_stream_groups(shape)) * kGroupCells; }

// The device's mirrors of host arrays lie one after the other in one array of numbers; these are their offsets.
struct EngineMirrors {
    size_t newest, positions, slots, open, pins, resolutions, end;
};

inline EngineMirrors engine_mirrors(const EngineShape & shape) {
    const size_t n_groups = static_cast<size_t>(shape.n_stream) * engine_stream_groups(shape);
    EngineMirrors m = {};
    m.positions = shape.n_pages;
    m.slots     = m.positions + static_cast<size_t>(shape.n_stream) * shape.n_cells;
    m.open      = m.slots + engine_entries(shape);
    m.pins      = m.open + n_groups;
    m.resolutions = m.pins + 2 * n_groups;
    m.end       = m.resolutions + shape.layers.size() * shape.n_heads;
    return m;
}

struct EngineTables {
    size_t mirrors, mass, layers, totals, hits, tickets, step, stale, fresh, brought, updates;  // bytes; `updates` exists twice
};

inline EngineTables engine_tables(const EngineShape & shape) {
    const size_t n_groups = static_cast<size_t>(shape.n_stream) * engine_stream_groups(shape), n_heads = shape.layers.size() * shape.n_heads;
    EngineTables t;
    t.mirrors  = engine_mirrors(shape).end * sizeof(int32_t);
    t.mass     = 2 * engine_entries(shape) * sizeof(float);
    t.layers   = shape.layers.size() * sizeof(edgekv_device_layer);
    t.totals   = n_heads * sizeof(gpu::SampleTotals);
    t.hits     = n_heads * sizeof(AttendHits);
    t.tickets  = shape.n_heads * sizeof(uint32_t);
    t.step     = kStepStateBytes;
    t.stale    = n_groups * sizeof(EngineStale);
    t.fresh    = shape.n_pages;
    t.brought  = static_cast<size_t>(shape.n_stream) * shape.n_heads * engine_list_stride(shape) / 32 * sizeof(uint32_t);
    t.updates  = kUpdates * kUpdateBytes;
    return t;
}

// ---- sketches, staging, and the ring of mode exact ---------------------------------------------------------------------------

inline size_t engine_sketch_stream_bytes(const EngineShape & shape, int layer) {
    return sketch_bytes(shape.layers[layer].head_dim, shape.layers[layer].n_head_kv, engine_stream_groups(shape));
}

// Prompts attend a layer in pieces of some KV heads, which need not be merged. A piece has at most so many bytes of K and V, or one head.
constexpr size_t kPieceBytes = 64u << 20;

// The number of pieces of a layer, if the widest has `layer_bytes` and n_heads; and the heads of a piece of any layer.
inline int engine_pieces(size_t layer_bytes, int n_heads) {
    const size_t head_bytes = std::max<size_t>(layer_bytes / n_heads, 1);
    const int    each       = static_cast<int>(std::clamp<size_t>(kPieceBytes / head_bytes, 1, static_cast<size_t>(n_heads)));
    return (n_heads + each - 1) / each;
}
inline int engine_piece_heads(int n_heads, int n_pieces) { return (n_heads + n_pieces - 1) / n_pieces; }

// The number of staged pieces of these bytes: two if they are cheap, so that one fills while the other is read.
inline int engine_staged(size_t piece_bytes, size_t budget_bytes, size_t free_bytes) {
    return 2 * piece_bytes <= (budget_bytes ? budget_bytes : free_bytes) / 4 ? 2 : 1;
}

struct EngineRing {
    size_t pages, held;  // bytes of both halves: the pages, and a flag for each held page
};

inline EngineRing engine_ring(const EngineShape & shape, size_t free_bytes) {
    constexpr size_t kMaxHalf = 128u << 20;
    size_t widest = 0;
    for (const EngineLayer & layer : shape.layers) {
        widest = std::max(widest, layer.n_head_kv * shape.slot_bytes);
    }
    if (widest == 0) {
        return {};
    }
    const size_t pages   = shape.pages_per_stream;
    const size_t allowed = (shape.budget_bytes ? shape.budget_bytes : free_bytes) / 16;  // for each half
    const size_t half    = std::max<size_t>(std::min({ pages, allowed / widest, kMaxHalf / widest }), 1);
    return { 2 * half * widest, 2 * half * shape.n_heads };
}

// The number of pages, each with all heads of the layer, that half of the ring holds. Without a ring: a stream's pages.
inline int engine_ring_pages(const EngineShape & shape, int layer, const EngineRing & ring) {
    const size_t half = ring.pages / 2, n_heads = shape.layers[layer].n_head_kv;
    return half ? static_cast<int>(std::min(half / (n_heads * shape.slot_bytes), ring.held / 2 / n_heads)) : std::max(1, shape.pages_per_stream);
}

// ---- workspaces --------------------------------------------------------------------------------------------------------------

// The two widest views of a step: many tokens of one stream, and one token of each stream.
inline std::array<EngineView, 2> engine_widest(int n_stream, int n_cells) {
    EngineView wide = {}, many = {};
    wide.n_cells   = many.n_cells = n_cells;
    wide.n_streams = many.n_tokens = 1;
    wide.n_tokens  = kEngineTokens;
    many.n_streams = n_stream;
    return { wide, many };
}

// The sizes of a layer's problem; the engine adds addresses.
inline AttendProblem engine_problem(const EngineShape & shape, int layer, const EngineView & view) {
    const EngineLayer & r = shape.layers[layer];
    AttendProblem p = {};
    p.head_dim    = r.head_dim;
    p.n_head      = r.n_head;
    p.n_head_kv   = r.n_head_kv;
    p.n_tokens    = view.n_tokens;
    p.n_cells     = view.n_cells;
    p.page_tokens = shape.page_tokens;
    p.k_type      = r.k_type;
    p.v_type      = r.v_type;
    return p;
}

// Tokens [begin, end) of each stream from first_stream on; tokens and streams count in the view.
struct TokenGroup {
    int first_stream, n_streams, begin, end;
    bool observed;
};

// Query tokens whose rows are selected and attended together. A group has tokens of all streams, or of one if a stream has several groups.
// A token's shares, rows and logits grow with the context. In a long context fewer tokens go together, and the sketches, which lie on the
// device, are read more often.
inline std::vector<TokenGroup> engine_selected_groups(const EngineShape & shape, int layer, const EngineView & view, size_t together_bytes) {
    const EngineLayer & r        = shape.layers[layer];
    const size_t        of_list  = engine_list_stride(shape) * (2 * sizeof(int32_t) + sizeof(float));
    const size_t        of_query = engine_list_stride(shape) * (sizeof(uint16_t) + sizeof(float));
    const int           most     = static_cast<int>(std::clamp<size_t>(together_bytes / (r.n_head_kv * of_list + r.n_head * of_query), 1, kMaxQueryTokens));
    const int           n_groups = engine_groups(view.n_tokens);
    if (n_groups == 1 && view.n_tokens <= most) {
        return { { 0, view.n_streams, 0, view.n_tokens, true } };
    }

    std::vector<TokenGroup> groups;
    for (int s = 0; s < view.n_streams; ++s) {
        for (int g = 0; g < n_groups; ++g) {
            const int first   = engine_group_begin(view.n_tokens, g);
            const int n       = engine_group_begin(view.n_tokens, g + 1) - first;
            const int n_parts = (n + most - 1) / most;
            for (int part = 0; part < n_parts; ++part) {
                groups.push_back({ s, 1, first + n * part / n_parts, first + n * (part + 1) / n_parts, g + 1 == n_groups });
            }
        }
    }
    return groups;
}

// Lists have a few hundred rows at any depth. A longer list keeps its blocks busy for longer.
inline int engine_list_splits(const EngineShape & shape, const AttendProblem & p, int n_sm) {
    constexpr int kExpectedRows = 2048;
    return gpu::attend_device_splits(p, std::min(static_cast<int>(engine_list_stride(shape)), kExpectedRows) / p.page_tokens + 1, n_sm);
}

// A group of query tokens in a stream that attends every page. The groups meet each part of the ring one after the other; a group's partials
// and weights stay in the workspace, from `offset` on, until the last part.
struct WholeGroup {
    int begin, end;  // tokens
    bool observed;
    int n_splits;
    size_t offset;
};

struct WholeGroups {
    std::vector<WholeGroup> groups;
    int n_parts;     // parts of the view
    size_t n_bytes;  // the workspace of all groups
};

inline WholeGroups engine_whole_groups(const EngineShape & shape, int layer, const EngineView & view, const EngineRing & ring, int n_sm) {
    AttendProblem p        = engine_problem(shape, layer, view);
    const int     n_pages  = gpu::view_pages(p), pages = engine_ring_pages(shape, layer, ring);
    const int     n_groups = engine_groups(view.n_tokens);

    WholeGroups all = { {}, (n_pages + pages - 1) / pages, 0 };
    for (int g = 0; g < n_groups; ++g) {
        WholeGroup group = { engine_group_begin(view.n_tokens, g), engine_group_begin(view.n_tokens, g + 1), g + 1 == n_groups, 0, all.n_bytes };
        p.n_tokens     = group.end - group.begin;
        group.n_splits = gpu::attend_device_splits(p, std::min(n_pages, pages), n_sm);
        all.groups.push_back(group);
        all.n_bytes += gpu::attend_device_workspace_bytes(p, all.n_parts * group.n_splits, group.observed);
    }
    return all;
}

struct EngineWorkspace {
    size_t shares, share_tops, share_sums, lists, list_weights, list_copies, list_lengths, sample_words, sights, attend;
};

// The workspace of a layer that attends every page.
inline EngineWorkspace engine_whole_workspace(const EngineShape & shape, int layer, const EngineView & view, const EngineRing & ring, int n_sm) {
    EngineWorkspace w = {};
    w.attend = engine_whole_groups(shape, layer, view, ring, n_sm).n_bytes;
    return w;
}

// The workspace of a layer that attends rows of lists.
inline EngineWorkspace engine_list_workspace(const EngineShape & shape, int layer, const EngineView & view, size_t together_bytes, int n_sm) {
    const EngineLayer & r = shape.layers[layer];
    EngineWorkspace w = {};
    size_t n_tokens = 0;  // in the largest group, over all its streams
    for (const TokenGroup & group : engine_selected_groups(shape, layer, view, together_bytes)) {
        AttendProblem p = engine_problem(shape, layer, view);
        p.n_tokens    = group.end - group.begin;
        p.rows.stride = engine_list_stride(shape);
        n_tokens = std::max(n_tokens, static_cast<size_t>(group.n_streams) * p.n_tokens);
        w.attend = std::max(w.attend, gpu::attend_device_workspace_bytes(p, engine_list_splits(shape, p, n_sm), true));
    }
    const size_t n_lists = n_tokens * r.n_head_kv, n_queries = n_tokens * r.n_head, n_groups = engine_stream_groups(shape);
    const size_t stride  = engine_list_stride(shape);
    w.lists        = n_lists * stride * sizeof(int32_t);
    w.list_lengths = n_lists * sizeof(int32_t);
    w.sights       = static_cast<size_t>(view.n_streams) * view.n_tokens * n_groups * sizeof(Sight);
    w.sample_words   = gpu::sample_device_words_bytes(static_cast<int>(n_lists), static_cast<int>(n_groups), r.n_head / r.n_head_kv);
    w.shares         = n_queries * stride * sizeof(uint16_t);
    w.share_tops = w.share_sums = n_queries * n_groups * sizeof(float);
    w.list_weights   = n_lists * stride * sizeof(float);
    w.list_copies    = n_lists * stride * sizeof(int32_t);
    return w;
}

// ---- the arena ---------------------------------------------------------------------------------------------------------------

struct EngineArena {
    int n_slots, n_tail;
    size_t bytes(size_t slot_bytes) const { return (static_cast<size_t>(n_slots) + n_tail) * slot_bytes; }
};

// The arena in `room` bytes: at most n_slots slots and at most one for each page. If they take at most a quarter of the room, n_tail slots are
// reserved for pages that are being filled.
inline EngineArena engine_arena(const EngineShape & shape, size_t room, int n_slots, int n_tail) {
    size_t n_pages = 0;
    for (const EngineLayer & layer : shape.layers) {
        n_pages += static_cast<size_t>(layer.n_head_kv) * shape.n_pages;
    }
    EngineArena arena;
    arena.n_tail  = n_tail * shape.slot_bytes <= room / 4 ? n_tail : 0;
    room         -= arena.n_tail * shape.slot_bytes;
    arena.n_slots = static_cast<int>(std::min<size_t>({ n_pages, room / shape.slot_bytes, static_cast<size_t>(n_slots),
                                                        static_cast<size_t>(std::numeric_limits<int>::max()) / 2 }));
    return arena;
}

// Copies of rows in a part of the arena: the sets' entries, then the rows.
struct EngineRows {
    size_t offset;  // in the arena
    uint32_t n_sets;
    size_t stride, v_offset;  // of a row
    size_t entry_bytes() const { return n_sets * gpu::kHotRowSetBytes; }
    size_t bytes() const { return entry_bytes() + n_sets * gpu::kHotRowWays * stride; }
};

// They end before byte `end` of the arena and take at most `room`.
inline EngineRows engine_rows(const EngineShape & shape, size_t end, size_t room) {
    EngineRows rows = {};
    for (const EngineLayer & layer : shape.layers) {
        rows.v_offset = std::max(rows.v_offset, (layer.k_row_bytes + 15) / 16 * 16);
        rows.stride   = std::max(rows.stride, (layer.v_row_bytes + 15) / 16 * 16);
    }
    rows.stride += rows.v_offset;
    room -= std::min(room, gpu::kHotRowSetBytes);  // to align the sets
    rows.n_sets = static_cast<uint32_t>(std::min<size_t>(room / (gpu::kHotRowSetBytes + gpu::kHotRowWays * rows.stride), gpu::kMostHotRowSets));
    rows.offset = (end - rows.bytes()) / gpu::kHotRowSetBytes * gpu::kHotRowSetBytes;
    return rows;
}

}  // namespace edgekv
