// The node between an index and attention (trained selection: DSA, QSA). It lists the rows that each query token reads, from the cells that
// the index chose.
//
//   1. Thread i takes every nth token from i on.
//   2. It marks the token's chosen cells in a bitmap, except cells that the mask hides: an index always chooses the same number, even if the
//      token sees fewer.
//   3. It lists the marked cells in ascending order for each KV head.
//
// The node reads the index's choice and the mask. It writes the bitmaps, the lists and their lengths to its own value; the attend node reads them.
#include "attention/cpu/nodes.h"

#include <algorithm>
#include <cassert>

namespace edgekv {
namespace {

enum ListSource { LIST_TOP_K, LIST_MASK, LIST_K, N_LIST_SOURCES };

// The layout of a stream's part of the value, in int32.
struct ListPlan {
    ListPlan(const ggml_tensor * top_k, const ggml_tensor * k) :
        stride(top_k->ne[0]), n_tokens(top_k->ne[1]), n_head_kv(k->ne[1]), n_words((k->ne[2] + 63) / 64),
        cells_at(2 * n_tokens * n_words), n_rows_at(cells_at + n_tokens * n_head_kv * stride),
        n_ints((n_rows_at + n_tokens * n_head_kv + 1) / 2 * 2) {}

    int64_t stride, n_tokens, n_head_kv, n_words;
    int64_t cells_at, n_rows_at, n_ints;  // the bitmaps come first
};

template <class T>
T * at(const ggml_tensor * t, size_t offset) {
    return reinterpret_cast<T *>(static_cast<char *>(t->data) + offset);
}

void list_token(const ggml_tensor * dst, const ListPlan & plan, int64_t stream, int64_t token) {
    const ggml_tensor * top_k = dst->src[LIST_TOP_K];
    const ggml_tensor * mask  = dst->src[LIST_MASK];
    const char *        shown = at<char>(mask, stream * mask->nb[3] + token * mask->nb[1]);
    const int32_t *     chosen = at<int32_t>(top_k, stream * top_k->nb[3] + token * top_k->nb[1]);

    int32_t * const  own   = at<int32_t>(dst, stream * dst->nb[1]);
    uint64_t * const marks = at<uint64_t>(dst, stream * dst->nb[1]) + token * plan.n_words;
    std::fill_n(marks, plan.n_words, 0);
    for (int64_t i = 0; i < plan.stride; ++i) {
        assert(chosen[i] >= 0 && chosen[i] < mask->ne[0]);
        marks[chosen[i] / 64] |= visible_cells(mask_type(mask), shown, chosen[i], chosen[i] + 1) << chosen[i] % 64;
    }

    int32_t * const cells = own + plan.cells_at + token * plan.n_head_kv * plan.stride;
    int32_t         n     = 0;
    for (int64_t word = 0; word < plan.n_words; ++word) {
        for (uint64_t left = marks[word]; left != 0; left &= left - 1) {
            cells[n++] = static_cast<int32_t>(word * 64 + __builtin_ctzll(left));
        }
    }
    for (int64_t head = 0; head < plan.n_head_kv; ++head) {
        if (head > 0) {
            std::copy_n(cells, n, cells + head * plan.stride);
        }
        own[plan.n_rows_at + token * plan.n_head_kv + head] = n;
    }
}

void run_list(ggml_tensor * dst, int ith, int nth, void *) {
    const ListPlan plan(dst->src[LIST_TOP_K], dst->src[LIST_K]);
    for (int64_t token = ith; token < plan.n_tokens * dst->ne[1]; token += nth) {
        list_token(dst, plan, token / plan.n_tokens, token % plan.n_tokens);
    }
}

}  // namespace

AttendRows listed_rows(const ggml_tensor * list, int64_t stream) {
    const ListPlan  plan(list->src[LIST_TOP_K], list->src[LIST_K]);
    const int32_t * own = at<int32_t>(list, stream * list->nb[1]);
    return { own + plan.cells_at, nullptr, own + plan.n_rows_at, static_cast<size_t>(plan.stride) };
}

ggml_tensor * build_list(const llama_edgekv_attend & args) {
    const ListPlan plan(args.top_k, args.k);
    ggml_tensor *  sources[N_LIST_SOURCES] = { args.top_k, args.mask, args.k };
    ggml_tensor *  node =
        ggml_custom_4d(args.ctx, GGML_TYPE_I32, plan.n_ints, args.k->ne[3], 1, 1, sources, N_LIST_SOURCES, run_list, GGML_N_TASKS_MAX, nullptr);
    ggml_format_name(node, "edgekv_list-%d", args.il);
    return node;
}

}  // namespace edgekv
