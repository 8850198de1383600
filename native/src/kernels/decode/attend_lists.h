// Lists of rows in tiles of 64: the places of the rows, and the results of a tile.
#pragma once

#include <string.h>

#include "kernels/decode/attend_kernel.h"

namespace edgekv {
namespace {

// One query token and KV head.
struct RowList {
    const int32_t * cells;
    const float * weights;
    int n, n_tiles;
    int token, head;
};

// Lists are counted head by head: the tokens of a batch read mostly the same rows of a head, which stay in the processor's cache between tokens.
inline RowList list_of(const AttendProblem & p, int index) {
    const int token = index % p.n_tokens, head = index / p.n_tokens, list = token * p.n_head_kv + head;
    const size_t at = static_cast<size_t>(list) * p.rows.stride;
    const int n = p.rows.n_rows[list];
    return {p.rows.cells + at, p.rows.weights != nullptr ? p.rows.weights + at : nullptr, n, (n + kTileCells - 1) / kTileCells, token, head};
}

// Walks the tiles of all lists, one list after the other; claimed tiles come in ascending order.
class Tiles {
public:
    Tiles(const AttendProblem & p) : p(p), n_lists(p.n_tokens * p.n_head_kv), list(list_of(p, 0)) {}

    bool go_to(int64_t tile) {  // false: there is none
        while (tile >= before + list.n_tiles) {
            before += list.n_tiles;
            if (++index == n_lists) {
                return false;
            }
            list = list_of(p, index);
        }
        in_list = static_cast<int>(tile - before);
        return true;
    }
    int n_here() const { return list.n - in_list * kTileCells < kTileCells ? list.n - in_list * kTileCells : kTileCells; }

    const AttendProblem & p;
    int n_lists, index = 0, in_list = 0;
    int64_t before = 0;
    RowList list;
};

// Finds the rows of a tile: among the copies if they have a slot there, in the arena if their page has one, else at home.
inline void find_rows(const AttendProblem & p, const Tiles & at, const char ** k, const char ** v) {
    const int32_t * cells = at.list.cells + at.in_list * kTileCells;
    const int32_t * copies = p.copies.data != nullptr ? p.copies.slots + (cells - p.rows.cells) : nullptr;
    const int n = at.n_here();
    const char * home_k = p.k + static_cast<size_t>(at.list.head) * p.k_stride_head;
    const char * home_v = p.v + static_cast<size_t>(at.list.head) * p.v_stride_head;
    const int32_t * slots = p.arena.data != nullptr ? p.arena.slots + static_cast<size_t>(at.list.head) * p.arena.slots_stride : nullptr;
    for (int i = 0; i < n; ++i) {
        const size_t cell = static_cast<size_t>(cells[i]);
        k[i] = home_k + cell * p.k_stride_cell;
        v[i] = home_v + cell * p.v_stride_cell;
        if (copies != nullptr && copies[i] >= 0) {
            k[i] = p.copies.data + static_cast<size_t>(copies[i]) * p.copies.slot_bytes;
            v[i] = k[i] + p.copies.v_offset;
        }
        if (slots == nullptr) {
            continue;
        }
        const int page = cells[i] / p.page_tokens;
        if (slots[page] >= 0) {
            const char * slot = p.arena.data + static_cast<size_t>(slots[page]) * p.arena.slot_bytes;
            const size_t in_page = static_cast<size_t>(cells[i] - page * p.page_tokens);
            k[i] = slot + in_page * static_cast<size_t>(bytes_of_row(p.k_type, p.head_dim));
            v[i] = slot + p.arena.v_offset + in_page * static_cast<size_t>(bytes_of_row(p.v_type, p.head_dim));
        }
    }
    for (int i = n; i < kTileCells; ++i) {
        k[i] = k[n - 1];
        v[i] = v[n - 1];
    }
}

// Gathers the scales of whole strips, so that rows past the last have its logit too.
inline void gather_scales(CellType type, const char * const * rows, int n_strips, int n_blocks, float (*scale)[kTileCells]) {
    for (int b = 0; b < n_blocks; ++b) {
        alignas(64) char halves[kTileCells * 2];
        for (int i = 0; i < n_strips * kStripCells; ++i) {
            memcpy(halves + 2 * i, rows[i] + b * block_bytes(type), 2);
        }
        for (int i = 0; i < n_strips * kStripCells; i += kLanes) {
            Simd::store(scale[b] + i, Simd::load_f16(halves + 2 * i));
        }
    }
}

// The results of a tile: for each query head the largest logit, the sum of its weights, the weights, and their sum over V.
struct TilePart {
    float *max, *sum, *weights, *acc;
};

inline TilePart part_of(const AttendPlan & plan, char * workspace, int64_t tile) {
    char * at = workspace + plan.tile_offset + static_cast<size_t>(tile) * plan.tile_bytes;
    float * max = reinterpret_cast<float *>(at);
    return {max, max + plan.group, reinterpret_cast<float *>(at + plan.tile_weights), reinterpret_cast<float *>(at + plan.tile_acc)};
}

}  // namespace
}  // namespace edgekv
