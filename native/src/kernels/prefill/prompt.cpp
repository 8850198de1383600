// Cuts a prompt into items, classifies its mask, and chooses the kernel.
#include "kernels/prefill/prompt_internal.h"

#include <cassert>
#include <cstring>

#include "kernels/simd/isa_dispatch.h"
#include "kernels/simd/subnormals.h"

namespace edgekv {
namespace {

// An item's queries and their sums stay in a core's second-level cache while the cells pass by.
constexpr int kItemQueries = 512;
constexpr int kItemFloats = 32 * 1024;

int round_up(int n, int to) { return (n + to - 1) / to * to; }

// Whether any bit and whether all bits of `hidden` are set in n values; `other`: any that is neither hidden nor zero.
template <class T>
void look(const char * mask, int n, T hidden, bool & any_hidden, bool & any_visible, bool & other) {
    unsigned some = 0, all = 1, more = 0;
    for (int i = 0; i < n; ++i) {
        T x;
        std::memcpy(&x, mask + sizeof(T) * static_cast<size_t>(i), sizeof(T));
        some |= x == hidden;
        all &= x == hidden;
        more |= x != hidden && static_cast<T>(x << 1) != 0;
    }
    any_hidden = any_hidden || some;
    any_visible = any_visible || !all;
    other = other || more;
}

}  // namespace

void prompt_classify(MaskType type, const char * mask, size_t stride_token, int n_tokens, int n_cells, int block, Seen * seen) {
    const int first = prompt_first_token(n_tokens, block), end = prompt_first_token(n_tokens, block + 1);
    for (int b = 0; b < prompt_cell_blocks(n_cells); ++b) {
        const int cell = b * kPromptCells;
        const int n = n_cells - cell < kPromptCells ? n_cells - cell : kPromptCells;
        bool hidden = n < kPromptCells, visible = type == MaskType::none, other = false;
        for (int t = first; t < end && type != MaskType::none; ++t) {
            const char * of_token = mask + static_cast<size_t>(t) * stride_token;
            if (type == MaskType::f16) {
                look<uint16_t>(of_token + static_cast<size_t>(cell) * 2, n, 0xfc00, hidden, visible, other);
            } else {
                look<uint32_t>(of_token + static_cast<size_t>(cell) * 4, n, 0xff800000, hidden, visible, other);
            }
        }
        seen[b] = !visible ? Seen::nothing : hidden || other ? Seen::some : Seen::all;
    }
}

PromptPlan prompt_plan(const AttendProblem & p, int n_threads) {
    PromptPlan plan{};
    plan.group = p.n_head / p.n_head_kv;
    plan.n_token_blocks = prompt_token_blocks(p.n_tokens);
    plan.n_cell_blocks = prompt_cell_blocks(p.n_cells);

    // Long items cost less. Short ones serve when long ones are too few for the threads to share evenly.
    const int block_queries = kPromptQueries * plan.group;
    const int queries = kItemQueries < kItemFloats / p.head_dim ? kItemQueries : kItemFloats / p.head_dim;
    plan.item_blocks = queries / block_queries > 1 ? queries / block_queries : 1;
    const auto items = [&] { return (plan.n_token_blocks + plan.item_blocks - 1) / plan.item_blocks; };
    while (n_threads > 1 && plan.item_blocks > 1 && items() * p.n_head_kv < 4 * n_threads) {
        plan.item_blocks = (plan.item_blocks + 1) / 2;
    }
    plan.n_token_items = items();
    plan.n_items = plan.n_token_items * p.n_head_kv;
    plan.scratch_bytes = prompt_layout(p, plan).bytes;
    return plan;
}

PromptItem prompt_item(const PromptPlan & plan, int n_head_kv, int item) {
    const int end = plan.n_token_blocks - item / n_head_kv * plan.item_blocks;
    return {item % n_head_kv, end > plan.item_blocks ? end - plan.item_blocks : 0, end};
}

PromptLayout prompt_layout(const AttendProblem & p, const PromptPlan & plan) {
    PromptLayout at{};
    at.block_queries = kPromptQueries * plan.group;
    at.n_queries = at.block_queries * plan.item_blocks;
    at.k_channels = round_up(p.head_dim, 32);
    at.v_channels = round_up(p.head_dim, 16);
    const size_t queries = static_cast<size_t>(at.n_queries);
    const auto take = [&](size_t n_values) {
        const size_t offset = at.bytes;
        at.bytes += align64(4 * n_values);
        return offset;
    };
    at.q = take(queries * static_cast<size_t>(at.k_channels));
    at.acc = take(queries * static_cast<size_t>(at.v_channels));
    at.max = take(queries);
    at.sum = take(queries);
    at.k = take(static_cast<size_t>(kPromptCells * at.k_channels));
    at.v = take(static_cast<size_t>(kPromptCells * at.v_channels));
    at.scores = take(static_cast<size_t>(kPromptPanels * kPromptCells * kPromptQueries));
    at.bias = take(static_cast<size_t>(kPromptCells * kPromptQueries));
    if (p.mass_max != nullptr || p.mass_sum != nullptr) {
        const size_t blocks = static_cast<size_t>(plan.n_cell_blocks) * static_cast<size_t>(at.block_queries);
        at.strip_sums = take(blocks * (kPromptCells / 16));
        at.block_max = take(blocks);
    }
    return at;
}

// By instruction set.
constexpr const PromptKernels * kTables[] = {
    &kPromptPortable,
#if EDGEKV_X86
    EDGEKV_BUILT(avx2, kPromptAvx2), EDGEKV_BUILT(avx512, kPromptAvx512), EDGEKV_BUILT(avx512bf16, kPromptAvx512Bf16),
    EDGEKV_BUILT(amx, kPromptAmx),
#elif EDGEKV_ARM64
    nullptr, nullptr, nullptr, nullptr, &kPromptNeon,
#endif
};

const PromptKernels & prompt_kernels(Isa isa) { return *kTables[static_cast<int>(isa)]; }

void prompt_attend(const PromptProblem & problem, const PromptPlan & plan, int item, char * scratch, Isa isa) {
    assert(prompt_supports(problem.attend.head_dim, problem.attend.k_type, problem.attend.v_type));
    const SubnormalsAreZero fast;
    prompt_kernels(isa).attend(problem, plan, item, scratch);
}

bool prompt_supports(int head_dim, CellType k_type, CellType v_type) {
    return head_dim >= 16 && head_dim <= 512 && head_dim % 8 == 0 && holds_row(k_type, head_dim) && holds_row(v_type, head_dim);
}

}  // namespace edgekv
