// Attention to lists of rows: threads claim tiles of 64 rows of a list. The thread that completes a head merges the tiles of its lists and
// writes mass and hits.
#pragma once

#include <atomic>

#include "kernels/decode/attend_kernel.h"
#include "kernels/decode/attend_list_error.h"
#include "kernels/decode/attend_lists.h"
#include "kernels/decode/attend_merge.h"
#include "kernels/decode/attend_observe.h"

namespace edgekv {
namespace {

// Scores become weights under the tile's largest logit.
inline void weigh_tile(float softcap, float * scores, const float * weights, int n, float & max, float & sum) {
    const int padded = (n + kStripCells - 1) / kStripCells * kStripCells;
    F top = Simd::set1(-INFINITY);
    for (int c = 0; c < padded; c += kLanes) {
        F s = Simd::load(scores + c);
        if (softcap != 0.0f) {
            s = vector_softcap(s, softcap);
            Simd::store(scores + c, s);
        }
        top = Simd::max(top, s);  // rows past the last repeat it
    }
    max = Simd::reduce_max(top);
    const F shift = Simd::set1(max);
    F total = Simd::zero();
    for (int c = 0; c < padded; c += kLanes) {
        const F e = Simd::mul(vector_exp(Simd::sub(Simd::load(scores + c), shift)), Simd::load(weights + c));
        Simd::store(scores + c, e);
        total = Simd::add(total, e);
    }
    sum = Simd::sum(total);
}

class RowRun {
public:
    RowRun(const AttendProblem & p, const AttendPlan & plan, const OfHeadDim & of, char * workspace, int ith) :
        p(p), plan(plan), of(of), workspace(workspace), queries(workspace + plan.query_offset + static_cast<size_t>(ith) * plan.query_bytes),
        masses(reinterpret_cast<float *>(queries + plan.masses_offset)),
        shift((p.page_tokens & (p.page_tokens - 1)) == 0 ? __builtin_ctz(static_cast<unsigned>(p.page_tokens)) : -1) {}

    void run() {
        if (p.mass_max != nullptr || p.mass_sum != nullptr) {
            memset(masses, 0, static_cast<size_t>(plan.group) * plan.mass_stride * sizeof(float));
        }
        Tiles at(p), ahead(p);
        Gathered tiles[2];
        for (Gathered & tile : tiles) {
            tile.head_dim = p.head_dim;
            tile.v_dim = attend_v_dim(p);
            tile.k_bytes = bytes_of_row(p.k_type, p.head_dim);
            tile.v_bytes = p.v_in_k != 0 ? 0 : bytes_of_row(p.v_type, p.head_dim);
        }
        int64_t index = claim();
        bool more = at.go_to(index);
        if (more) {
            find_rows(p, at, tiles[0].k, tiles[0].v);
            for (int i = 0; i < at.n_here(); ++i) {
                Gathered::fetch(tiles[0].k[i], tiles[0].k_bytes);
                Gathered::fetch(tiles[0].v[i], tiles[0].v_bytes);
            }
        }
        for (int turn = 0; more; turn ^= 1) {
            const int64_t next = claim();
            const bool comes = ahead.go_to(next);
            tiles[turn].next = &tiles[comes ? turn ^ 1 : turn];
            if (comes) {
                find_rows(p, ahead, tiles[turn ^ 1].k, tiles[turn ^ 1].v);
            }
            attend(at, tiles[turn], index);
            if (comes) {
                at.go_to(next);
            }
            index = next;
            more = comes;
        }
    }

private:
    int64_t claim() const { return reinterpret_cast<std::atomic<uint32_t> *>(workspace)[1].fetch_add(1, std::memory_order_relaxed); }

    void prepare(const RowList & list) {
        if (list.token == token && list.head == head) {
            return;
        }
        token = list.token;
        head = list.head;
        for (int g = 0; g < plan.group; ++g) {
            of.prepare_query(p, token, head * plan.group + g, queries + static_cast<size_t>(g) * plan.prepared_bytes);
        }
    }

    void attend(const Tiles & at, Gathered & tile, int64_t index) {
        const int n = at.n_here();
        tile.n_strips = (n + kStripCells - 1) / kStripCells;
        tile.n_visible = n;
        if (in_blocks(p.k_type)) {
            gather_scales(p.k_type, tile.k, tile.n_strips, p.head_dim / kBlock, tile.scales.k);
        }
        if (in_blocks(p.v_type)) {
            gather_scales(p.v_type, tile.v, tile.n_strips, tile.v_dim / kBlock, tile.scales.v);
        }
        alignas(64) float weights[kTileCells] = {};
        for (int i = 0; i < n; ++i) {
            weights[i] = at.list.weights != nullptr ? at.list.weights[at.in_list * kTileCells + i] : 1.0f;
        }
        prepare(at.list);
        const TilePart part = part_of(plan, workspace, index);
        const size_t acc_stride = static_cast<size_t>(plan.acc_stride);
        memset(part.acc, 0, static_cast<size_t>(plan.group) * acc_stride * sizeof(float));
        const int n_blocks = (plan.group + Simd::kQueries - 1) / Simd::kQueries;
        for (int block = 0, done = 0; block < n_blocks; ++block) {
            const int count = (plan.group - done + n_blocks - block - 1) / (n_blocks - block);  // as even as it gets
            const char * q[Simd::kQueries];
            float * out[Simd::kQueries];
            float factor[Simd::kQueries];
            for (int r = 0; r < count; ++r) {
                q[r] = queries + static_cast<size_t>(done + r) * plan.prepared_bytes;
                out[r] = part.acc + static_cast<size_t>(done + r) * acc_stride;
                factor[r] = 1.0f;
            }
            float (*scores)[kTileCells] = reinterpret_cast<float (*)[kTileCells]>(part.weights + static_cast<size_t>(done) * kTileCells);
            of.rows.qk[count - 1](tile, q, scores);
            for (int r = 0; r < count; ++r) {
                weigh_tile(p.softcap, scores[r], weights, n, part.max[done + r], part.sum[done + r]);
            }
            of.rows.pv[count - 1](tile, scores, out, factor);
            done += count;
        }
        arrive(at.list.head);
    }

    // The thread that completes a head merges the lists of all its tokens: one thread writes a head's sums, always in the same order.
    void arrive(int head) const {
        uint32_t n_tiles = 0;
        for (int token = 0; token < p.n_tokens; ++token) {
            n_tiles += static_cast<uint32_t>(list_of(p, head * p.n_tokens + token).n_tiles);
        }
        std::atomic<uint32_t> & arrived = reinterpret_cast<std::atomic<uint32_t> *>(workspace)[kArrivals + head];
        if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 != n_tiles) {
            return;
        }
        arrived.store(0, std::memory_order_relaxed);
        int64_t first = 0;
        for (int i = 0; i < p.n_tokens * p.n_head_kv; ++i) {
            const RowList list = list_of(p, i);
            if (list.head == head && list.n > 0) {
                merge(list, first);
            }
            first += list.n_tiles;
        }
    }

    // The tiles of a list, in their order.
    void merge(const RowList & list, int64_t first) const {
        const int dim = attend_v_dim(p), n_vectors = (dim + kLanes - 1) / kLanes;
        const size_t acc_stride = static_cast<size_t>(plan.acc_stride);
        float max[kMaxGroup], inverse[kMaxGroup];
        for (int g = 0; g < plan.group; ++g) {
            const int query_head = list.head * plan.group + g;
            char * out = p.out + static_cast<size_t>(list.token) * p.out_stride_token + static_cast<size_t>(query_head) * p.out_stride_head;
            float top = p.sinks != nullptr ? p.sinks[query_head] : -INFINITY;
            for (int i = 0; i < list.n_tiles; ++i) {
                const float x = part_of(plan, workspace, first + i).max[g];
                top = x > top ? x : top;
            }
            float total = p.sinks != nullptr ? expf(p.sinks[query_head] - top) : 0.0f;
            F sum[kMaxHeadDim / kLanes];
            for (int d = 0; d < n_vectors; ++d) {
                sum[d] = Simd::zero();
            }
            for (int i = 0; i < list.n_tiles; ++i) {
                const TilePart part = part_of(plan, workspace, first + i);
                const float factor = expf(part.max[g] - top);
                total += factor * part.sum[g];
                for (int d = 0; d < n_vectors; ++d) {
                    sum[d] = Simd::fma(Simd::load(part.acc + static_cast<size_t>(g) * acc_stride + d * kLanes), Simd::set1(factor), sum[d]);
                }
            }
            max[g] = top;
            inverse[g] = total > 0.0f ? 1.0f / total : 0.0f;
            for (int d = 0; d < n_vectors; ++d) {
                Simd::store_some(out + d * kLanes * 4, Simd::mul(sum[d], Simd::set1(inverse[g])), dim - d * kLanes);
            }
        }
        tell(list, first, max, inverse);
        if (p.hits != nullptr && list.weights != nullptr && p.error_every > 0 && (list.head + p.error_turn) % p.error_every == 0) {
            for (int g = 0; g < plan.group; ++g) {
                p.hits[list.head].error += list_error(p, plan, workspace, list, first, g, max[g], inverse[g]);
                p.hits[list.head].n_errors += 1.0;
            }
        }
    }

    // Mass by page, and hits. Each query head's weights on a page are summed up first.
    void tell(const RowList & list, int64_t first, const float * max, const float * inverse) const {
        const int32_t * slots = p.arena.data != nullptr ? p.arena.slots + static_cast<size_t>(list.head) * p.arena.slots_stride : nullptr;
        AttendHits sums{};
        sums.n_read = list.n;
        for (int i = 0; slots != nullptr && i < list.n; ++i) {
            sums.n_hits += slots[page_of(list.cells[i])] >= 0 ? 1 : 0;
        }
        if (p.mass_max != nullptr || p.mass_sum != nullptr) {
            for (int i = 0; i < list.n_tiles; ++i) {
                const TilePart part = part_of(plan, workspace, first + i);
                const int n = list.n - i * kTileCells < kTileCells ? list.n - i * kTileCells : kTileCells;
                for (int g = 0; g < plan.group; ++g) {
                    const float factor = expf(part.max[g] - max[g]) * inverse[g];
                    float * of_page = masses + static_cast<size_t>(g) * plan.mass_stride;
                    for (int c = 0; c < n; ++c) {
                        of_page[page_of(list.cells[i * kTileCells + c])] += part.weights[g * kTileCells + c] * factor;
                    }
                }
            }
            add_masses(list.head, slots, sums);
        }
        if (p.hits != nullptr) {
            AttendHits & hits = p.hits[list.head];
            hits.n_read += sums.n_read;
            hits.n_hits += sums.n_hits;
            hits.mass += sums.mass;
            hits.mass_hits += sums.mass_hits;
        }
    }

    int page_of(int cell) const { return shift >= 0 ? cell >> shift : cell / p.page_tokens; }

    // Adds maximum and sum over the query heads, and leaves the masses zero again.
    void add_masses(int head, const int32_t * slots, AttendHits & sums) const {
        const int n_pages = (p.n_cells + p.page_tokens - 1) / p.page_tokens;
        alignas(64) float top[kChunkPages], sum[kChunkPages];
        for (int page = 0; page < n_pages; page += kChunkPages) {
            const int n = n_pages - page < kChunkPages ? n_pages - page : kChunkPages;
            F all = Simd::zero();
            for (int i = 0; i < n; i += kLanes) {
                F most = Simd::zero(), total = Simd::zero();
                for (int g = 0; g < plan.group; ++g) {
                    float * of_page = masses + static_cast<size_t>(g) * plan.mass_stride + page + i;
                    const F x = Simd::load(of_page);
                    most = Simd::max(most, x);
                    total = Simd::add(total, x);
                    Simd::store(of_page, Simd::zero());
                }
                Simd::store(top + i, most);
                Simd::store(sum + i, total);
                all = Simd::add(all, total);
            }
            sums.mass += Simd::sum(all);
            for (int i = 0; slots != nullptr && i < n; ++i) {
                sums.mass_hits += slots[page + i] >= 0 ? sum[i] : 0.0f;
            }
            const size_t at = static_cast<size_t>(head) * p.mass_stride + static_cast<size_t>(page);
            add_chunk(p.mass_max != nullptr ? p.mass_max + at : nullptr, top, n);
            add_chunk(p.mass_sum != nullptr ? p.mass_sum + at : nullptr, sum, n);
        }
    }

    const AttendProblem & p;
    const AttendPlan & plan;
    const OfHeadDim & of;
    char * workspace;
    char * queries;
    float * masses;  // [group][mass_stride], zero between lists
    const int shift;  // of a page, if its tokens are a power of two: divisions are slow
    int token = -1, head = -1;
};

inline void clear_empty(const AttendProblem & p) {
    for (int i = 0; i < p.n_tokens * p.n_head_kv; ++i) {
        const RowList list = list_of(p, i);
        for (int g = 0; list.n == 0 && g < p.n_head / p.n_head_kv; ++g) {
            memset(p.out + static_cast<size_t>(list.token) * p.out_stride_token +
                       static_cast<size_t>(list.head * (p.n_head / p.n_head_kv) + g) * p.out_stride_head,
                   0, static_cast<size_t>(attend_v_dim(p)) * sizeof(float));
        }
    }
}

inline void finish(const AttendProblem & p, const AttendPlan & plan, char * workspace) {
    if (p.rows.stride == 0) {
        merge(p, plan, workspace);
    }
}

inline void process(const AttendProblem & given, const AttendPlan & plan, char * workspace, int ith) {
    AttendProblem problem = given;
    if (problem.v_in_k != 0) {  // one gather serves both
        problem.v = problem.k;
        problem.v_type = problem.k_type;
        problem.v_stride_cell = problem.k_stride_cell;
        problem.v_stride_head = problem.k_stride_head;
        problem.arena.v_offset = 0;
        problem.copies.v_offset = 0;
    }
    const bool usual = problem.v_in_k == 0 || (problem.head_dim == kLatent && problem.v_in_k == kLatentV);
    OfHeadDim of;
    for_head_dim(usual ? problem.head_dim : kAny, [&](auto dim) {
        of = {Products<Unit>::of<dim>(problem.k_type, problem.v_type), Products<Gathered>::of<dim>(problem.k_type, problem.v_type), prepare_query<dim>};
    });
    if (problem.rows.stride == 0) {
        process_all(problem, plan, of, workspace, ith);
        return;
    }
    if (ith == 0) {
        clear_empty(problem);
    }
    RowRun(problem, plan, of, workspace, ith).run();
}

}  // namespace
}  // namespace edgekv
