// Sparse prompts: the choice of the blocks of 64 cells that a work item of the prompt node attends.
//
//   1. For every kSampledTokens-th token of each conversation in the item, a scan of the sketches estimates its shares of attention.
//   2. A block's chance follows from its mean square share, in the conversation where this is largest.
//   3. Blocks with sinks, newest tokens or pins are certain.
//   4. Blocks are drawn along the running sum of their chances. Layer, head and item give the start of the draw.
//   5. A block drawn by chance has its logits raised (PromptProblem::raise), so its weight compensates for blocks that were not drawn.
//   6. If the item left out or raised a block, its tokens are labelled.
//
// The thread that chooses for an item then attends it. It reads Q, sketches, the keys of blocks that are seen in part, positions and pins. It
// writes its own prompt workspace and, by atomic operations, the plane's counters of blocks and the labels of cells.
#include "attention/cpu/nodes.h"
#include "kernels/prefill/prompt_choice.h"
#include "cache/certain.h"

#include <algorithm>
#include <numeric>

namespace edgekv {
namespace {

// The layout of a thread's memory, for one query token of a KV head at a time.
struct ChoiceSpace {
    ChoiceSpace(int head_dim, int group, int n_cells) {
        const size_t n_blocks = prompt_cell_blocks(n_cells);

        group_stride = (n_blocks + 15) / 16 * 16;
        cell_stride  = n_blocks * kGroupCells;
        cells        = align64(sketch_query_bytes(head_dim, group));
        tops         = cells + align64(group * cell_stride * sizeof(uint16_t));
        sums         = tops + align64(group * group_stride * sizeof(float));
        squares      = sums + align64(group * group_stride * sizeof(float));
        most         = squares + align64(n_blocks * sizeof(float));
        sight        = most + align64(n_blocks * sizeof(float));
        certain      = sight + align64(n_blocks * sizeof(Sight));
        raise        = certain + align64(n_blocks);
        bytes        = raise + align64(n_blocks * sizeof(float));
    }

    size_t group_stride, cell_stride, cells, tops, sums, squares, most, sight, certain, raise, bytes;
};

struct ItemChoice {
    const HostLayer & layer;
    const PromptProblem & problem;
    const PromptItem item;
    const int stream;
    const int64_t * k_idxs;  // of the stream's tokens
    const llama_edgekv_cells & view;
    const ChoiceSpace space;
    char * const memory;
    const int n_blocks;

    HostPlane & plane() const { return *layer.plane; }
    const State & ctx() const { return plane().ctx; }

    template <class T>
    T * at(size_t offset) const { return reinterpret_cast<T *>(memory + offset); }

    Seen seen(int token_block, int block) const { return problem.seen[token_block * problem.seen_stride + block]; }

    void look(int token, int token_block) const {
        const AttendProblem & p     = problem.attend;
        Sight *               sight = at<Sight>(space.sight);
        for (int b = 0; b < n_blocks; ++b) {
            const Seen how   = seen(token_block, b);
            const int  first = b * kPromptCells;
            sight[b] = {};
            if (how == Seen::all) {
                sight[b].visible = ~uint64_t{0};
            } else if (how == Seen::some) {
                sight[b].visible = visible_cells(p.mask_type, p.mask + token * p.mask_stride_token, first, std::min(first + kPromptCells, p.n_cells));
            }
        }
    }

    int64_t cell_of(int token) const { return k_idxs[token] - static_cast<int64_t>(stream) * ctx().shape.n_cells; }
    const uint64_t * sequences_of(int64_t cell) const { return view.seq + static_cast<size_t>(cell) * view.n_seq_words; }
    bool together(int token, int other) const {  // whether they belong to the same sequences
        return std::equal(sequences_of(cell_of(token)), sequences_of(cell_of(token)) + view.n_seq_words, sequences_of(cell_of(other)));
    }

    // Calls `function` with the first token of each conversation in the item. It makes no list, because no node allocates.
    template <typename Function> void each_conversation(Function function) const {
        const int begin = prompt_first_token(problem.attend.n_tokens, item.first_block);
        const int end   = prompt_first_token(problem.attend.n_tokens, item.end_block);
        for (int token = begin; token < end; ++token) {
            int earlier = begin;
            while (earlier < token && !together(earlier, token)) {
                earlier += 1;
            }
            if (earlier == token) {
                function(token);
            }
        }
    }

    void ask(int token, int token_block, float * squares) const {
        const AttendProblem & p      = problem.attend;
        const int             group  = p.n_head / p.n_head_kv;
        const Sketch          sketch = plane().sketches.of(layer.index, stream);
        const SketchKeys      keys   = { p.k_type, p.k, p.k_stride_cell, p.k_stride_head };
        const Shares          out    = { at<uint16_t>(space.cells), at<float>(space.tops), at<float>(space.sums), space.cell_stride,
                                         space.group_stride };

        look(token, token_block);
        const SketchQuery q = { p.q + token * p.q_stride_token + static_cast<size_t>(item.head) * group * p.q_stride_head,
                                p.q_stride_token, p.q_stride_head, 1, group, p.scale, p.softcap, at<Sight>(space.sight),
                                static_cast<size_t>(n_blocks) };
        sketch_query_prepare(sketch, q, memory, selected_isa());
        scan_groups({ sketch, keys, q, memory, item.head }, 0, n_blocks, out);
        for (int g = 0; g < group; ++g) {
            add_square_shares(out.tops + g * space.group_stride, out.sums + g * space.group_stride, n_blocks, squares);
        }
    }

    // Scans for every kSampledTokens-th token of each conversation in the item, counted from a block's last. Writes each block's mean square share in
    // the conversation where this is largest, so a conversation with few tokens in the item gets the same chances as alone.
    void estimate() const {
        const AttendProblem & p       = problem.attend;
        float * const         squares = at<float>(space.squares);
        float * const         most    = at<float>(space.most);

        std::fill_n(most, n_blocks, 0.0f);
        each_conversation([&](int first) {
            int n_asked = 0;
            std::fill_n(squares, n_blocks, 0.0f);
            for (int tb = item.first_block; tb < item.end_block; ++tb) {
                int n_before = 0;
                for (int token = prompt_first_token(p.n_tokens, tb + 1) - 1; token >= prompt_first_token(p.n_tokens, tb); --token) {
                    if (together(first, token) && n_before++%kSampledTokens == 0) {
                        ask(token, tb, squares);
                        n_asked += 1;
                    }
                }
            }
            const float n_queries = static_cast<float>(n_asked * (p.n_head / p.n_head_kv));
            for (int b = 0; b < n_blocks; ++b) {
                most[b] = std::max(most[b], squares[b] / n_queries);
            }
        });
    }

    // Marks blocks with pins, and with each conversation's sinks and newest tokens, before and in the item. Returns the number of blocks that some
    // token sees.
    int find_certain() const {
        const State & ctx  = this->ctx();
        const Cells &   cells       = ctx.pages.cells;
        const int32_t * newest      = cells.newest(stream);
        const int32_t * oldest      = cells.oldest(stream);
        const int       page_tokens = ctx.shape.page_tokens;
        uint8_t *       certain     = at<uint8_t>(space.certain);
        int             n_seen      = 0;

        for (int b = 0; b < n_blocks; ++b) {
            bool sees = false;
            for (int tb = item.first_block; tb < item.end_block; ++tb) {
                sees = sees || seen(tb, b) != Seen::nothing;
            }
            certain[b] = sees && ctx.pages.pins.of(stream, b) != 0;
            n_seen += sees;
        }
        each_conversation([&](int first) {
            const uint64_t * mine = sequences_of(cell_of(first));
            const auto has = certain_positions(ctx.params.selection.sink_tokens, kNewestTokens, page_tokens, cells.positions(stream)[cell_of(first)]);
            for (int part = 0; part < problem.attend.n_cells; part += 16) {  // a page has a multiple of 16 cells
                const int b = part / kPromptCells;
                if (certain[b] || !has.may_hold(oldest[part / page_tokens], newest[part / page_tokens])) {
                    continue;
                }
                bool sees = false;
                for (int tb = item.first_block; tb < item.end_block; ++tb) {
                    sees = sees || seen(tb, b) != Seen::nothing;
                }
                for (int c = part; sees && c < std::min(part + 16, problem.attend.n_cells); ++c) {
                    const uint64_t * its = sequences_of(c);
                    const bool ours = std::inner_product(mine, mine + view.n_seq_words, its, uint64_t{0}, std::bit_or<>(), std::bit_and<>()) != 0;
                    certain[b] = certain[b] || (ours && has.holds(cells.positions(stream)[c]));
                }
            }
        });
        return n_seen;
    }
};

// The start of an item's draw, 0 to 1. It differs between heads and layers, so they do not all leave out the same blocks.
float offset_of(const HostLayer & layer, const PromptItem & item) {
    uint32_t x = static_cast<uint32_t>(layer.index * 64 + item.head) * 2654435761u + static_cast<uint32_t>(item.first_block) * 2246822519u;
    x ^= x >> 15;
    x *= 2654435761u;
    x ^= x >> 13;
    return static_cast<float>(x & 0xffff) / 65536.0f;
}

}  // namespace

bool sparse_prompt(const HostPlane & plane, int n_cells) {
    return plane.ctx.params.mode == EDGEKV_MODE_SPARSE && plane.ctx.params.selection.prompt_resolution > 0.0f && n_cells >= kSparsePromptCells;
}

size_t prompt_choice_bytes(const AttendProblem & problem) {
    return ChoiceSpace(problem.head_dim, problem.n_head / problem.n_head_kv, problem.n_cells).bytes;
}

void choose_prompt_blocks(HostLayer & layer, const int64_t * k_idxs, int stream, const PromptPlan & plan, int index, PromptProblem & problem,
                          char * memory) {
    HostPlane &           plane  = *layer.plane;
    const AttendProblem & p      = problem.attend;
    const llama_edgekv_cells cells = plane.cells_of(stream);
    const ItemChoice      choice = { layer, problem, prompt_item(plan, p.n_head_kv, index), stream, k_idxs, cells,
                                     ChoiceSpace(p.head_dim, p.n_head / p.n_head_kv, p.n_cells), memory, prompt_cell_blocks(p.n_cells) };
    const ChoiceSpace & space = choice.space;

    choice.estimate();
    const int     n_seen  = choice.find_certain();
    float * const raise   = choice.at<float>(space.raise);
    const int     n_drawn = draw_blocks(choice.at<float>(space.most), 1, choice.at<uint8_t>(space.certain), choice.n_blocks,
                                        plane.ctx.params.selection.prompt_resolution, offset_of(layer, choice.item), raise);
    problem.raise = raise;
    plane.blocks.seen.fetch_add(n_seen, std::memory_order_relaxed);
    plane.blocks.attended.fetch_add(n_drawn, std::memory_order_relaxed);
    if (n_drawn < n_seen || std::any_of(raise, raise + choice.n_blocks, [](float x) { return x > 0.0f; })) {
        const int end = prompt_first_token(p.n_tokens, choice.item.end_block);
        for (int token = prompt_first_token(p.n_tokens, choice.item.first_block); token < end; ++token) {
            __atomic_fetch_or(cells.labels + choice.cell_of(token), LLAMA_EDGEKV_SPARSE_PROMPT, __ATOMIC_RELAXED);  // other heads' items write it too
        }
    }
}

}  // namespace edgekv
