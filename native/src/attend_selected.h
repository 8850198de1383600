// The same over lists of pages: one list for each query token and KV head, read from the arena where a page has a slot.
#pragma once

#include "attend_kernel.h"
#include "attend_merge.h"
#include "attend_observe.h"

namespace edgekv {
namespace {

// Where the strips of one list lie.
struct PageList {
    const int32_t * pages;
    int n_strips;
    int token, head;
};

inline PageList list_of(const AttendProblem & p, int token, int head) {
    const size_t list = static_cast<size_t>(token * p.n_head_kv + head);
    return {p.selection.pages + list * p.selection.stride, p.selection.n_pages[list] * (p.page_tokens / kStripCells), token, head};
}

inline int tiles_of(const PageList & list) { return (list.n_strips + kTileStrips - 1) / kTileStrips; }

struct Place {
    const char *k, *v;
    size_t k_stride, v_stride;
    int first_cell;
    int n_cells;  // 0: the page ends with the view before this strip
};

template <int D>
Place place_of(const AttendProblem & p, const PageList & list, int strip) {
    constexpr size_t q8_row = D / kBlock * kBlockBytes;
    const size_t k_row = p.k_type == CellType::q8_0 ? q8_row : 2 * D;
    const size_t v_row = p.v_type == CellType::q8_0 ? q8_row : 2 * D;
    const int per_page = p.page_tokens / kStripCells;
    const int page = list.pages[strip / per_page];
    const int in_page = strip % per_page * kStripCells;
    const int cell = page * p.page_tokens + in_page;
    const int left = p.n_cells - cell;
    const int n_cells = left < 0 ? 0 : left < kStripCells ? left : kStripCells;
    const int slot = p.arena.data != nullptr ? p.arena.slots[static_cast<size_t>(list.head) * p.arena.slots_stride + page] : -1;
    if (slot >= 0) {
        const char * k = p.arena.data + static_cast<size_t>(slot) * p.arena.slot_bytes;
        return {k + in_page * k_row, k + p.arena.v_offset + in_page * v_row, k_row, v_row, cell, n_cells};
    }
    const size_t at = static_cast<size_t>(n_cells > 0 ? cell : page * p.page_tokens);
    return {p.k + at * p.k_stride_cell + static_cast<size_t>(list.head) * p.k_stride_head,
            p.v + at * p.v_stride_cell + static_cast<size_t>(list.head) * p.v_stride_head, p.k_stride_cell, p.v_stride_cell, cell,
            n_cells};
}

// Tile `index` of a list; false: its token sees nothing of it.
template <int D>
bool prepare_selected(const AttendProblem & p, const PageList & list, int index, Tile & tile, Unit & unit) {
    const int first = index * kTileStrips;
    unit.n_strips = list.n_strips - first < kTileStrips ? list.n_strips - first : kTileStrips;
    tile.n_tokens = 1;
    tile.tokens[0] = list.token;
    tile.n_visible = 0;
    float * bias = tile.bias[list.token];
    for (int s = 0; s < unit.n_strips; ++s) {
        const Place place = place_of<D>(p, list, first + s);
        unit.k[s] = place.k;
        unit.v[s] = place.v;
        unit.k_stride[s] = place.k_stride;
        unit.v_stride[s] = place.v_stride;
        unit.cells[s] = place.n_cells > 0 ? place.n_cells : 1;
        fill_bias(p, list.token, place.first_cell, place.n_cells, kStripCells, bias + s * kStripCells);
    }
    for (int c = 0; c < unit.n_strips * kStripCells; c += kLanes) {
        unsigned bits = Simd::visible_bits(Simd::load(bias + c));
        for (; bits != 0; bits &= bits - 1) {
            tile.visible[tile.n_visible++] = static_cast<uint8_t>(c + __builtin_ctz(bits));
        }
    }
    unit.visible = tile.visible;
    unit.n_visible = tile.n_visible;
    if (p.k_type == CellType::q8_0) {
        load_scales(unit, unit.k, unit.k_stride, D / kBlock, unit.k_scale);
    }
    if (p.v_type == CellType::q8_0) {
        load_scales(unit, unit.v, unit.v_stride, D / kBlock, unit.v_scale);
    }
    return tile.n_visible > 0;
}

// Walks the tiles of all lists, one list after the other.
class TileCursor {
public:
    TileCursor(const AttendProblem & p, int64_t tile) : p(p), n_lists(p.n_tokens * p.n_head_kv), pages(list_of(p, 0, 0)) {
        for (index = static_cast<int>(tile); i < n_lists && index >= tiles_of(pages); index -= tiles_of(pages), next_list()) {
        }
    }

    bool done() const { return i == n_lists; }

    void advance() {
        for (++index; i < n_lists && index >= tiles_of(pages); index = 0) {
            next_list();
        }
    }

private:
    void next_list() {
        if (++i < n_lists) {
            pages = list_of(p, i / p.n_head_kv, i % p.n_head_kv);
        }
    }

    const AttendProblem & p;
    int n_lists, i = 0;

public:
    PageList pages;
    int index;
};

// What to prefetch meanwhile: the rows of a tile further on; where there is none, the tile's own rows again.
template <int D>
void prefetch_selected(const AttendProblem & p, const TileCursor & ahead, Unit & unit) {
    const int row_bytes_k = static_cast<int>(p.k_type == CellType::q8_0 ? D / kBlock * kBlockBytes : 2 * D);
    const int row_bytes_v = static_cast<int>(p.v_type == CellType::q8_0 ? D / kBlock * kBlockBytes : 2 * D);
    for (int s = 0; s < unit.n_strips; ++s) {
        const int strip = ahead.index * kTileStrips + s;
        if (ahead.done() || strip >= ahead.pages.n_strips) {
            unit.next_k[s] = {unit.k[s], 0, row_bytes_k};
            unit.next_v[s] = {unit.v[s], 0, row_bytes_v};
            continue;
        }
        const Place place = place_of<D>(p, ahead.pages, strip);
        unit.next_k[s] = {place.k, static_cast<int>(place.k_stride), row_bytes_k};
        unit.next_v[s] = {place.v, static_cast<int>(place.v_stride), row_bytes_v};
    }
}

template <int D>
void process_selected(const AttendProblem & p, const AttendPlan & plan, char * workspace, int ith) {
    constexpr int kTilesAhead = 2;  // pages lie apart, so that each of their rows is waited for in full
    int64_t n_tiles = 0;
    for (int i = 0; i < p.n_tokens * p.n_head_kv; ++i) {
        n_tiles += tiles_of(list_of(p, i / p.n_head_kv, i % p.n_head_kv));
    }
    const int64_t begin = n_tiles * ith / plan.n_threads;
    const int64_t end = n_tiles * (ith + 1) / plan.n_threads;

    Share<D> share(p, plan, workspace, ith);
    Tile tile;
    Unit unit;
    TileCursor ahead(p, begin);
    unit.n_strips = kTileStrips;
    for (int s = 0; s < kTileStrips; ++s) {
        unit.k[s] = p.k;
        unit.v[s] = p.v;
    }
    for (int i = 0; i < kTilesAhead && begin + i < end; ++i, ahead.advance()) {
        prefetch_selected<D>(p, ahead, unit);
        for (int s = 0; s < kTileStrips; ++s) {
            for (int c = 0; c < kStripCells; ++c) {
                prefetch(unit.next_k[s], c);
                prefetch(unit.next_v[s], c);
            }
        }
    }
    TileCursor at(p, begin);
    for (int64_t u = begin; u < end; ++u, at.advance(), ahead.advance()) {
        const int first_strip = at.index * kTileStrips;
        const bool seen = prepare_selected<D>(p, at.pages, at.index, tile, unit);
        if (seen) {
            prefetch_selected<D>(p, ahead, unit);
            share.attend(tile, unit, at.pages.head, first_strip);
            continue;
        }
        for (int g = 0; share.observed && g < plan.group; ++g) {
            clear_strips(plan, workspace, at.pages.head * plan.rows_per_kv + at.pages.token * plan.group + g, first_strip, unit.n_strips);
        }
    }
}

// Mass and hits of one list from the sums of its strips; run behind the merge by the thread that merged.
inline void observe_list(const AttendProblem & p, const AttendPlan & plan, const char * workspace, const PageList & list) {
    const float * strip_sum = reinterpret_cast<const float *>(workspace + plan.strip_sum_offset);
    const float * strip_max = reinterpret_cast<const float *>(workspace + plan.strip_max_offset);
    const float * final_of_row = reinterpret_cast<const float *>(workspace + plan.final_offset);
    const int per_page = p.page_tokens / kStripCells;
    const int n_pages = list.n_strips / per_page;
    const int first_row = list.head * plan.rows_per_kv + list.token * plan.group;
    const int32_t * slots = p.arena.data != nullptr ? p.arena.slots + static_cast<size_t>(list.head) * p.arena.slots_stride : nullptr;
    float * mass_max = p.mass_max != nullptr ? p.mass_max + static_cast<size_t>(list.head) * p.mass_stride : nullptr;
    float * mass_sum = p.mass_sum != nullptr ? p.mass_sum + static_cast<size_t>(list.head) * p.mass_stride : nullptr;

    // the heads of a token share its mask: all of them saw something, or none
    const bool observed = (mass_max != nullptr || mass_sum != nullptr) && final_of_row[2 * first_row + 1] != 0.0f;

    float n_hits = 0.0f, mass = 0.0f, mass_hits = 0.0f;
    alignas(64) float one[kChunkPages], top[kChunkPages], sum[kChunkPages];
    for (int first = 0; first < n_pages; first += kChunkPages) {
        const int n = n_pages - first < kChunkPages ? n_pages - first : kChunkPages;
        for (int g = 0; observed && g < plan.group; ++g) {
            const int row = first_row + g;
            const size_t strips = static_cast<size_t>(row) * plan.strip_stride;
            const float covered =
                p.selection.coverage != nullptr ? p.selection.coverage[list.token * p.n_head + list.head * plan.group + g] : 1.0f;
            float * into = g == 0 ? sum : one;
            page_masses(per_page, list.n_strips, first, n, strip_sum + strips, strip_max + strips, final_of_row[2 * row],
                        final_of_row[2 * row + 1] * covered, into);
            for (int i = 0; i < n; i += kLanes) {
                const F x = Simd::load(into + i);
                Simd::store(top + i, g == 0 ? x : Simd::max(Simd::load(top + i), x));
                if (g > 0) {
                    Simd::store(sum + i, Simd::add(Simd::load(sum + i), x));
                }
            }
        }
        for (int i = 0; i < n; ++i) {
            const int page = list.pages[first + i];
            const bool hit = slots != nullptr && slots[page] >= 0;
            n_hits += hit ? 1.0f : 0.0f;
            if (!observed) {
                continue;
            }
            if (mass_max != nullptr) {
                mass_max[page] += top[i];
            }
            if (mass_sum != nullptr) {
                mass_sum[page] += sum[i];
            }
            mass += sum[i];
            mass_hits += hit ? sum[i] : 0.0f;
        }
    }
    if (p.hits != nullptr) {
        AttendHits & hits = p.hits[list.head];
        hits.n_selected += n_pages;
        hits.n_hits += n_hits;
        hits.mass += mass;
        hits.mass_hits += mass_hits;
    }
}

inline void finish(const AttendProblem & p, const AttendPlan & plan, char * workspace) {
    merge(p, plan, workspace);
    for (int i = 0; p.selection.pages != nullptr && i < p.n_tokens * p.n_head_kv; ++i) {
        observe_list(p, plan, workspace, list_of(p, i / p.n_head_kv, i % p.n_head_kv));
    }
}

inline void process(const AttendProblem & problem, const AttendPlan & plan, char * workspace, int ith) {
    const bool selected = problem.selection.pages != nullptr;
    switch (problem.head_dim) {
        case 64: return selected ? process_selected<64>(problem, plan, workspace, ith) : process_rows<64>(problem, plan, workspace, ith);
        case 80: return selected ? process_selected<80>(problem, plan, workspace, ith) : process_rows<80>(problem, plan, workspace, ith);
        case 96: return selected ? process_selected<96>(problem, plan, workspace, ith) : process_rows<96>(problem, plan, workspace, ith);
        case 128:
            return selected ? process_selected<128>(problem, plan, workspace, ith) : process_rows<128>(problem, plan, workspace, ith);
        case 256:
            return selected ? process_selected<256>(problem, plan, workspace, ith) : process_rows<256>(problem, plan, workspace, ith);
    }
}

}  // namespace
}  // namespace edgekv
