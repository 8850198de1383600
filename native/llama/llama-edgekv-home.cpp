// The home of rows in host memory: addresses for all cells, memory where tokens are. Or in a file: space for all cells.
//
// A cache on the processor lies in a mapping of its own (llama-edgekv-mapping.cpp). What holds no tokens any more is given back in whole
// pages, and reads as zeros again. Large tensors begin at a huge page, so that a stream's first tokens take one of each.
#include "llama-edgekv-access.h"
#include "llama-edgekv-mapping.h"
#include "llama-edgekv-pinned.h"
#include "llama-edgekv-places.h"

#include "llama-impl.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

namespace {

bool active() {
    const auto * hooks = llama_edgekv_get_hooks();
    return hooks && hooks->enabled();
}

// K and V of each layer that are `so`; not those that a layer shares with an earlier one
std::vector<const ggml_tensor *> rows_that(bool (*so)(const ggml_tensor * rows), const llama_kv_cache & kv) {
    std::vector<const ggml_tensor *> found;
    for (const auto & layer : llama_edgekv_access::layers(kv)) {
        for (const ggml_tensor * rows : { layer.k, layer.v }) {
            if (so(rows) && !llama_edgekv_access::v_transposed(kv)) {
                found.push_back(rows);
            }
        }
    }
    return found;
}

using span = std::pair<uintptr_t, uintptr_t>;

// Gives back the whole units of these spans of a mapping; those that only padding parts are one.
void give_back(ggml_backend_buffer_t mapping, std::vector<span> & spans, size_t unit) {
    std::sort(spans.begin(), spans.end());
    for (size_t i = 0; i < spans.size();) {
        span whole = spans[i];
        for (++i; i < spans.size() && spans[i].first < whole.second + 64; ++i) {
            whole.second = std::max(whole.second, spans[i].second);
        }
        const uintptr_t first = GGML_PAD(whole.first, unit);
        const uintptr_t end   = whole.second/unit*unit;
        if (first < end) {
            llama_edgekv_forget(mapping, first, end);
        }
    }
}

}  // namespace

//
// call sites
//

// the layer has a plain cache of its own for K and V
static bool plain_cache(const llama_hparams & hparams, int il) {
    return hparams.has_kv(il) && !hparams.is_recr(il) && !hparams.is_mla() && !hparams.is_swa(il) && !hparams.use_alibi;
}

// the device that will serve the layer; null: none
static ggml_backend_dev_t serving_device(const llama_model & model, int il) {
    const auto * hooks   = llama_edgekv_get_hooks();
    const auto & hparams = model.hparams;
    auto *       device  = model.dev_layer(il);
    if (!hooks || !plain_cache(hparams, il) || ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU) {
        return nullptr;
    }
    for (int other = 0; other < static_cast<int>(hparams.n_layer()); ++other) {
        if (plain_cache(hparams, other) && model.dev_layer(other) != device) {
            return nullptr;
        }
    }
    return hooks->home_on_host(device) ? device : nullptr;
}

bool llama_edgekv_comes_home(const llama_context * lctx) {
    const auto & model = *llama_get_model(lctx);
    const auto caches = llama_edgekv_access::caches(lctx);
    bool served = false;
    if (model.hparams.no_alloc) {
        return false;  // measures, and is never attached
    }
    for (int il = 0; il < static_cast<int>(model.hparams.n_layer()); ++il) {
        served = served || serving_device(model, il);
    }
    return served && !caches.empty() && std::none_of(caches.begin(), caches.end(), [](const auto * kv) { return llama_edgekv_access::v_transposed(*kv); });
}

ggml_backend_buffer_type_t llama_edgekv_home(const llama_model & model, int il, bool v_trans, ggml_backend_buffer_type_t buft) {
    auto * device = v_trans ? nullptr : serving_device(model, il);
    if (!device) {
        return buft;
    }

    // Pinned: as tokens come, in a mapping (llama_edgekv_growing), or all at once, if the device's backend has such memory.
    const bool grows = llama_edgekv_mapped() && llama_edgekv_get_hooks()->pins_later(device);
    auto *     host  = grows ? nullptr : ggml_backend_dev_host_buffer_type(device);

    return host ? host : ggml_backend_cpu_buffer_type();
}

ggml_backend_buffer_type_t llama_edgekv_growing(ggml_backend_buffer_type_t buft) {
    auto * type = llama_edgekv_mapped();
    return type && active() && buft == ggml_backend_cpu_buffer_type() ? type : buft;
}

void llama_edgekv_give_back(llama_kv_cache & kv) {
    llama_edgekv_pin_used(kv);
    const bool copied = llama_edgekv_access::copies_wait(kv);  // a copy of a stream may need rows of removed tokens
    if (llama_edgekv_access::is_guest(kv) || copied || llama_edgekv_access::clock(llama_edgekv_access::cells(kv, 0)).refilled) {
        return;
    }
    std::vector<const ggml_tensor *> tensors;
    std::map<size_t, std::vector<span>> spans;  // by unit
    for (uint32_t s = 0; s < llama_edgekv_access::n_streams(kv); ++s) {
        llama_kv_cells & cells = llama_edgekv_access::cells(kv, s);
        llama_edgekv_access::clock(cells).each_left([&](uint32_t i) { return cells.is_empty(i); }, [&](uint32_t first, uint32_t end) {
            if (tensors.empty()) {
                tensors = rows_that(llama_edgekv_is_mapped, kv);
            }
            for (const ggml_tensor * rows : tensors) {
                const uintptr_t base  = reinterpret_cast<uintptr_t>(rows->data), begin = base + s*rows->nb[2];
                const bool      last  = end == cells.size() && s + 1 == llama_edgekv_access::n_streams(kv);  // with the padding behind it
                spans[llama_edgekv_unit(rows)].emplace_back(begin + first*rows->nb[1], last ? base + llama_edgekv_padded(rows) : begin + end*rows->nb[1]);
            }
        });
    }
    for (auto & [unit, those] : spans) {
        give_back(tensors[0]->buffer, those, unit);  // all tensors of a cache that are mapped lie in one mapping
    }
}

bool llama_edgekv_copy_rows(
        const llama_kv_cache & kv, const std::vector<uint32_t> & from, const std::vector<uint32_t> & to, size_t i, uint32_t layer) {
    if (!active()) {
        return false;
    }
    // rows of the destination, and of those that are copied from it afterwards: its own tokens may have been removed meanwhile
    std::vector<uint32_t> reached = { to[i] };
    size_t n = llama_edgekv_access::cells(kv, to[i]).used_max_p1();
    for (size_t j = i + 1; j < to.size(); ++j) {
        if (std::find(reached.begin(), reached.end(), from[j]) != reached.end()) {
            reached.push_back(to[j]);
            n = std::max<size_t>(n, llama_edgekv_access::cells(kv, to[j]).used_max_p1());
        }
    }
    const auto & of = llama_edgekv_access::layers(kv)[layer];
    if (!llama_edgekv_is_mapped(of.k) || (of.v && (!llama_edgekv_is_mapped(of.v) || llama_edgekv_access::v_transposed(kv)))) {
        return false;
    }
    for (const ggml_tensor * rows : { of.k, of.v }) {
        if (rows) {
            char * first = static_cast<char *>(rows->data);
            std::memcpy(first + to[i]*rows->nb[2], first + from[i]*rows->nb[2], n*rows->nb[1]);
        }
    }
    return true;
}

// The backend that turns these keys of layer il: a device that serves the context, though they lie in host memory. Null: the processor does.
static ggml_backend_t turning_backend(llama_context * lctx, int il, const ggml_tensor * keys) {
    auto * device = lctx->get_model().dev_layer(il);
    const bool served = llama_edgekv_get_hooks()->plans(lctx) && ggml_backend_dev_type(device) != GGML_BACKEND_DEVICE_TYPE_CPU;
    const bool copied = ggml_is_contiguous(keys) || !ggml_is_quantized(keys->type);  // blocks of heads of which a part turns stay on the processor
    return served && copied && ggml_backend_buffer_is_host(keys->view_src->buffer) ? llama_edgekv_access::backend(lctx, device) : nullptr;
}

bool llama_edgekv_build_shift(
        const llama_kv_cache & kv, const llama_cparams & cparams, ggml_context * ctx, ggml_cgraph * gf, ggml_tensor * k, ggml_tensor * shift,
        const llama_edgekv_shift & how) {
    struct moved {
        size_t first, end;  // cells of all streams
    };
    std::vector<moved> streams;
    for (uint32_t s = 0; s < llama_edgekv_access::n_streams(kv); ++s) {
        const llama_kv_cells & cells = llama_edgekv_access::cells(kv, s);
        const auto stays = [&](uint32_t i) { return cells.is_empty(i) || cells.get_shift(i) == 0; };
        uint32_t first = cells.used_min(), end = cells.used_max_p1();
        while (first < end && stays(first)) {
            ++first;
        }
        while (first < end && stays(end - 1)) {
            --end;
        }
        if (first < end) {
            streams.push_back({ s*size_t(kv.get_size()) + first, s*size_t(kv.get_size()) + end });
        }
    }
    if (!active() || streams.empty()) {
        return false;
    }
    // A graph has room for the nodes of one shift of each layer, and for some more: for several streams, and for pieces of them, because keys that
    // are not f32 are turned as f32, 4 KiB a token where eight heads have 128 channels.
    constexpr size_t kNodes = 16, kLeast = 2048;  // nodes of a piece, and its least cells
    const size_t most = std::max<size_t>(1, ggml_graph_size(gf)/(llama_edgekv_access::layers(kv).size()*kNodes));
    if (streams.size() > most) {
        streams = { { streams.front().first, streams.back().end } };
    }
    size_t n_moved = 0;
    for (const moved & m : streams) {
        n_moved += m.end - m.first;
    }
    const size_t spare = most - streams.size(), piece = spare > 0 ? std::max(kLeast, n_moved/spare + 1) : n_moved;
    std::vector<moved> pieces;
    for (const moved & m : streams) {
        for (size_t first = m.first; first < m.end; first += piece) {
            pieces.push_back({ first, std::min(first + piece, m.end) });
        }
    }
    llama_edgekv_will_stream(k->view_src);
    const ggml_backend_t device = turning_backend(how.lctx, static_cast<int>(how.il), k);
    for (const moved & m : pieces) {
        const int64_t n = static_cast<int64_t>(m.end - m.first);
        ggml_tensor * rows  = ggml_view_3d(ctx, k, k->ne[0], k->ne[1], n, k->nb[1], k->nb[2], m.first*k->nb[2]);
        ggml_tensor * by    = ggml_view_1d(ctx, shift, n, m.first*sizeof(int32_t));
        ggml_tensor * there = device ? ggml_cont(ctx, rows) : rows;  // the scheduler brings the rows
        if (device) {
            ggml_backend_sched_set_tensor_backend(how.lctx->get_sched(), there, device);
        }
        ggml_tensor * turned = llama_edgekv_access::shifted(kv, cparams, ctx, there, by, how);
        if (device) {
            turned = ggml_cpy(ctx, turned, rows);
        }
        ggml_build_forward_expand(gf, llama_edgekv_behind_shift(how.lctx, static_cast<int>(how.il), ctx, turned));
    }
    return true;
}

//
// what is free when a cache grows
//

// `n_cells`: those that come in a stream, behind its tokens and then between them
static size_t growth_of(const llama_kv_cache & kv, uint32_t stream, int n_cells) {
    llama_kv_cells & cells = llama_edgekv_access::cells(kv, stream);
    const llama_edgekv_clock & clock = llama_edgekv_access::clock(cells);
    const uint32_t used = cells.used_max_p1(), wanted = used + static_cast<uint32_t>(n_cells), end = std::min(cells.size(), wanted);
    const uint32_t placed = std::min(clock.placed_end(used), end), holes = std::min(clock.holes(used), wanted - end);
    if (end == placed && holes == 0) {
        return 0;
    }
    const auto tensors = rows_that(llama_edgekv_grows, kv);
    return llama_edgekv_taken(tensors, end) - llama_edgekv_taken(tensors, placed) + llama_edgekv_taken(tensors, holes);
}

// Cells that come in each stream. Sequences of one cache have whole groups.
static std::map<uint32_t, int> coming(const llama_kv_cache & kv, const int * seq_ids, const int * n_tokens, int n) {
    std::map<uint32_t, int> n_cells;
    for (int i = 0; i < n && !llama_edgekv_access::is_guest(kv); ++i) {
        if (n_tokens[i] > 0 && seq_ids[i] >= 0 && seq_ids[i] < static_cast<int>(kv.get_n_seq_max())) {
            n_cells[kv.get_stream(seq_ids[i])] += n_tokens[i] + (llama_edgekv_access::mixes_sequences(kv) ? llama_edgekv_group - 1 : 0);
        }
    }
    return n_cells;
}

// the ends of streams in which cells come
static llama_edgekv_ends ends_of(const llama_kv_cache & kv, const std::map<uint32_t, int> & n_cells) {
    llama_edgekv_ends ends;
    for (const auto & [stream, n] : n_cells) {
        ends[stream] = llama_edgekv_access::cells(kv, stream).used_max_p1() + static_cast<uint32_t>(n);
    }
    return ends;
}

int64_t llama_edgekv_growth(const llama_context * lctx, const int * seq_ids, const int * n_tokens, int n) {
    int64_t sum = 0;
    for (const llama_kv_cache * kv : llama_edgekv_access::caches(lctx)) {
        if (llama_edgekv_is_pinned(*kv)) {  // in parts of whatever streams are viewed together; and what tokens left stays
            sum += static_cast<int64_t>(llama_edgekv_to_pin(*kv, ends_of(*kv, coming(*kv, seq_ids, n_tokens, n))));
            continue;
        }
        for (const auto & [stream, of_stream] : coming(*kv, seq_ids, n_tokens, n)) {
            sum += growth_of(*kv, stream, of_stream);
        }
    }
    return sum;
}

// Bytes that a program has left for everything else when a cache stops to grow: sketches, workspaces, answers. A server asks for twice as much
// before a batch, so that the batch is not refused, which would end all answers.
constexpr int64_t kBesides = int64_t{32} << 20;

bool llama_edgekv_may_take(int64_t n_bytes, bool early) {
    if (!active() || n_bytes <= 0) {
        return true;
    }
    const int64_t free = llama_edgekv_get_hooks()->free_bytes();
    return free < 0 || n_bytes + (early ? 2 : 1)*kBesides <= free;
}

static thread_local bool t_refused = false;

bool llama_edgekv_refused(void) { return t_refused; }

void llama_edgekv_refuse(size_t n_tokens, size_t n_bytes) {
    t_refused = true;
    if (n_bytes > 0) {
        LLAMA_LOG_ERROR("edgekv: K and V of %zu more tokens take %.1f MiB, and there is not so much memory\n", n_tokens, n_bytes/1048576.0);
    } else {
        LLAMA_LOG_ERROR("edgekv: the system refused to pin K and V of %zu more tokens in host memory, where the GPU reads them\n", n_tokens);
    }
}

// Whether a batch goes on where its sequence lost the rows of earlier tokens.
static bool goes_on_lost(const llama_kv_cache & kv, const llama_batch & batch) {
    std::vector<bool> lost = llama_edgekv_pins_of(llama_edgekv_access::layers(kv)[0].k->buffer)->lost;
    for (int i = 0; i < batch.n_tokens; ++i) {
        const uint32_t stream = kv.get_stream(batch.seq_id[i][0]);
        if (lost[stream] && batch.pos[i] > 0) {
            return true;
        }
        lost[stream] = false;
    }
    return false;
}

bool llama_edgekv_reaches(const llama_kv_cache & kv, const std::vector<int32_t> & streams, const std::vector<std::vector<uint32_t>> & cells) {
    if (!llama_edgekv_is_pinned(kv)) {
        return true;
    }
    llama_edgekv_ends ends;
    size_t n_tokens = 0;
    for (size_t s = 0; s < streams.size(); ++s) {
        const uint32_t stream = static_cast<uint32_t>(streams[s]);
        ends[stream] = llama_edgekv_access::cells(kv, stream).used_max_p1();
        for (const uint32_t i : cells[s]) {
            ends[stream] = std::max(ends[stream], i + 1);
        }
        n_tokens += cells[s].size();
    }
    if (!llama_edgekv_pin_cells(kv, ends, n_tokens)) {
        return false;
    }
    for (const int32_t stream : streams) {
        llama_edgekv_pins_of(llama_edgekv_access::layers(kv)[0].k->buffer)->lost[static_cast<uint32_t>(stream)] = false;
    }
    return true;
}

bool llama_edgekv_pin_tokens(const llama_context * lctx, const int * seq_ids, const int * n_tokens, int n) {
    const auto * kv = llama_edgekv_access::cache(lctx);
    if (!kv || !llama_edgekv_is_pinned(*kv)) {
        return true;
    }
    const auto n_cells = coming(*kv, seq_ids, n_tokens, n);
    auto & lost = llama_edgekv_pins_of(llama_edgekv_access::layers(*kv)[0].k->buffer)->lost;
    for (const auto & [stream, _] : n_cells) {
        if (lost[stream]) {
            lost[stream] = false;  // whoever is told so begins anew
            return false;
        }
    }
    return llama_edgekv_pin_cells(*kv, ends_of(*kv, n_cells), static_cast<size_t>(std::accumulate(n_tokens, n_tokens + n, int64_t{0})));
}

bool llama_edgekv_admits(llama_context * lctx, const llama_batch & batch) {
    llama_kv_cache * kv = llama_edgekv_access::cache(lctx);
    if (kv) {
        llama_edgekv_pin_used(*kv);  // a whole state may have come
    }
    t_refused = false;
    if (!active()) {
        return true;
    }
    if (kv && llama_edgekv_is_pinned(*kv) && goes_on_lost(*kv, batch)) {
        LLAMA_LOG_ERROR("edgekv: a sequence lost its tokens, because their rows were not pinned: begin it anew\n");
        t_refused = true;
        return false;
    }
    std::map<llama_seq_id, int> n_of;
    for (int i = 0; i < batch.n_tokens; ++i) {
        n_of[batch.seq_id[i][0]]++;
    }
    std::vector<int> seq_ids, n_tokens;
    for (const auto & [seq_id, n] : n_of) {
        seq_ids.push_back(seq_id);
        n_tokens.push_back(n);
    }
    const int64_t sum = llama_edgekv_growth(lctx, seq_ids.data(), n_tokens.data(), static_cast<int>(seq_ids.size()));
    if (llama_edgekv_may_take(sum, false)) {
        return true;
    }
    llama_edgekv_refuse(static_cast<size_t>(batch.n_tokens), static_cast<size_t>(sum));
    return false;
}
