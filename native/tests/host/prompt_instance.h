// What test_prompt.cpp attends, and what a run of it leaves.
#pragma once

#include <algorithm>
#include <cstdio>
#include <limits>
#include <string>
#include <vector>

#include "cache_rows.h"
#include "kernels/prompt/prompt_internal.h"

namespace edgekv {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

enum class Mask { none, causal, causal_f32, window, interleaved, biased, first_hidden, all_hidden, huge_bias, count };

struct Case {
    int head_dim, group, n_head_kv, n_tokens, n_cells, page_tokens, n_threads;
    CellType k_type, v_type;
    Mask mask;
    float softcap;
    bool sinks, gaps, rising, dropped, observed, large;
    std::string name() const {
        char s[256];
        std::snprintf(s, sizeof(s), "d%d group %d kv %d tokens %d cells %d page %d threads %d k%d v%d mask %d softcap %g sinks %d gaps %d rising %d dropped %d observed %d large %d",
                      head_dim, group, n_head_kv, n_tokens, n_cells, page_tokens, n_threads, static_cast<int>(k_type), static_cast<int>(v_type),
                      static_cast<int>(mask), softcap, sinks, gaps, rising, dropped, observed, large);
        return s;
    }
};

float mask_value(const Case & c, int t, int i, cases::Random & rng) {
    const int position = std::max(c.n_cells * 7 / 8 - c.n_tokens + t, 0);  // the last eighth is padding
    const bool causal = i <= position;
    switch (c.mask) {
        case Mask::none: return 0.0f;
        case Mask::causal:
        case Mask::causal_f32: return causal ? 0.0f : -kInf;
        case Mask::window: return causal && i > position - 100 ? 0.0f : -kInf;
        case Mask::interleaved: return causal && i * 7 / 3 % 2 == t % 2 ? 0.0f : -kInf;
        case Mask::biased: return rng.uniform() < 0.1f ? -kInf : rng.uniform() * 10.0f - 8.0f;
        case Mask::first_hidden: return t < 3 ? -kInf : 0.0f;
        case Mask::all_hidden: return -kInf;
        case Mask::huge_bias: return t == 0 || i % 5 == 0 ? -1e30f : i % 7 == 0 ? -3e38f : 0.0f;
        case Mask::count: break;
    }
    return 0.0f;
}

// Buffers end where the last element does, so that a sanitizer sees any overrun.
struct Instance {
    AttendProblem p{};
    std::vector<char> q, k, v, mask;
    std::vector<float> sinks;
    std::vector<uint8_t> dropped;
    double score = 0.0, v_max = 0.0, bias_max = 0.0;

    Instance(const Case & c, uint64_t seed) {
        cases::Random rng(seed);
        const int n_head = c.group * c.n_head_kv;
        p.head_dim = c.head_dim;
        p.n_head = n_head;
        p.n_head_kv = c.n_head_kv;
        p.n_tokens = c.n_tokens;
        p.n_cells = c.n_cells;
        p.page_tokens = c.page_tokens;
        p.k_type = c.k_type;
        p.v_type = c.v_type;
        p.scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
        p.softcap = c.softcap;
        p.mask_type = c.mask == Mask::none ? MaskType::none : c.mask == Mask::causal_f32 ? MaskType::f32 : MaskType::f16;
        const size_t value_bytes = p.mask_type == MaskType::f32 ? 4 : 2;
        p.mask_stride_token = static_cast<size_t>(c.n_cells) * value_bytes + (c.gaps ? 6 : 0);
        mask.resize(p.mask_type == MaskType::none ? 0 : p.mask_stride_token * (c.n_tokens - 1) + static_cast<size_t>(c.n_cells) * value_bytes);
        std::vector<bool> seen(static_cast<size_t>(c.n_cells));
        for (int t = 0; t < c.n_tokens; ++t) {
            for (int i = 0; i < c.n_cells; ++i) {
                const float x = mask_value(c, t, i, rng);
                seen[i] = seen[i] || x != -kInf;
                bias_max = std::max(bias_max, x == -kInf ? 0.0 : std::fabs(std::max(static_cast<double>(x), -65504.0)));
                char * at = mask.data() + static_cast<size_t>(t) * p.mask_stride_token + static_cast<size_t>(i) * value_bytes;
                if (p.mask_type == MaskType::f32) {
                    std::memcpy(at, &x, 4);
                } else if (p.mask_type == MaskType::f16) {
                    const uint16_t h = x < -65504.0f && x != -kInf ? 0xfbff : cases::to_half(x);
                    std::memcpy(at, &h, 2);
                }
            }
        }

        p.q_stride_head = static_cast<size_t>(c.head_dim) * 4 + (c.gaps ? 20 : 0);
        p.q_stride_token = p.q_stride_head * n_head + (c.gaps ? 12 : 0);
        q.resize(p.q_stride_token * (c.n_tokens - 1) + p.q_stride_head * (n_head - 1) + static_cast<size_t>(c.head_dim) * 4);
        double q_norm = 0.0;
        for (int t = 0; t < c.n_tokens; ++t) {
            for (int h = 0; h < n_head; ++h) {
                double norm = 0.0;
                for (int i = 0; i < c.head_dim; ++i) {
                    const float x = (2.0f * rng.normal() + (c.rising ? 1.0f : 0.0f)) * (c.large ? 20.0f : 1.0f);
                    std::memcpy(q.data() + t * p.q_stride_token + h * p.q_stride_head + 4 * i, &x, 4);
                    norm += x * x;
                }
                q_norm = std::max(q_norm, std::sqrt(norm));
            }
        }
        const auto rows_of = [&](CellType type) {
            return cases::RowsShape{type, c.head_dim, c.n_head_kv, c.n_cells, c.gaps ? size_t{14} : 0, c.gaps ? size_t{10} : 0};
        };
        const auto spoil_in = [&](CellType type) {
            return [&, type](int cell, char * row) {
                if (!seen[cell] && type == CellType::f16) {  // what nobody sees may be anything
                    const uint16_t nan = 0x7e00;
                    std::memcpy(row + 2 * (cell % c.head_dim), &nan, 2);
                }
            };
        };
        const auto of_key = [&](int cell, int, int) {
            // rising: later cells have larger logits, so that the maxima keep moving
            return rng.normal() + (c.rising ? 2.0f * static_cast<float>(cell) / static_cast<float>(c.n_cells) : 0.0f);
        };
        const auto of_value = [&](int, int, int) { return rng.normal(); };
        auto keys = cases::cache_rows<std::vector<char>>(rows_of(c.k_type), of_key, spoil_in(c.k_type));
        auto values = cases::cache_rows<std::vector<char>>(rows_of(c.v_type), of_value, spoil_in(c.v_type));
        k = std::move(keys.bytes);
        v = std::move(values.bytes);
        p.k_stride_cell = keys.stride_cell;
        p.k_stride_head = keys.stride_head;
        p.v_stride_cell = values.stride_cell;
        p.v_stride_head = values.stride_head;
        v_max = values.largest;
        score = p.scale * q_norm * keys.longest;
        if (c.sinks) {
            for (int h = 0; h < n_head; ++h) {
                sinks.push_back(h == 0 ? 20.0f : rng.normal());
            }
            p.sinks = sinks.data();
        }
        const int n_pages = (c.n_cells + c.page_tokens - 1) / c.page_tokens;
        for (int i = 0; c.dropped && i < n_pages * c.n_head_kv; ++i) {
            dropped.push_back(rng.uniform() < 0.4f);
        }
        p.q = q.data();
        p.k = k.data();
        p.v = v.data();
        p.mask = mask.data();
        p.out_stride_head = static_cast<size_t>(c.head_dim) * 4 + (c.gaps ? 8 : 0);
        p.out_stride_token = p.out_stride_head * n_head;
    }
};

struct Result {
    std::vector<char> out;
    std::vector<float> top, sum;
};

struct Kernel {
    std::string name;
    const PromptKernels * table;
    bool bf16_scores, bf16_values;
};

Result run(const Case & c, Instance & x, const Kernel * kernel) {
    Result result;
    AttendProblem p = x.p;
    const size_t n_pages = static_cast<size_t>((c.n_cells + c.page_tokens - 1) / c.page_tokens);
    result.out.assign(p.out_stride_token * (c.n_tokens - 1) + p.out_stride_head * (p.n_head - 1) + static_cast<size_t>(c.head_dim) * 4, 0x55);
    result.top.assign(n_pages * c.n_head_kv, 1.0f);
    result.sum.assign(n_pages * c.n_head_kv, 2.0f);
    p.out = result.out.data();
    if (c.observed) {
        p.mass_max = result.top.data();
        p.mass_sum = result.sum.data();
        p.mass_stride = n_pages;
    }
    PromptProblem problem{};
    problem.attend = p;
    problem.dropped = c.dropped ? x.dropped.data() : nullptr;
    problem.dropped_stride = n_pages;
    if (kernel == nullptr) {
        prompt_reference(problem);
        return result;
    }
    problem.seen_stride = static_cast<size_t>(prompt_cell_blocks(c.n_cells)) + 3;
    std::vector<Seen> seen(problem.seen_stride * static_cast<size_t>(prompt_token_blocks(c.n_tokens)));
    for (int b = 0; b < prompt_token_blocks(c.n_tokens); ++b) {
        prompt_classify(p.mask_type, p.mask, p.mask_stride_token, c.n_tokens, c.n_cells, b, seen.data() + static_cast<size_t>(b) * problem.seen_stride);
    }
    problem.seen = seen.data();
    const PromptPlan plan = prompt_plan(p, c.n_threads);
    std::vector<char> memory(plan.scratch_bytes + 64, 0x7f);
    char * scratch = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
    for (int item = 0; item < plan.n_items; ++item) {
        kernel->table->attend(problem, plan, item, scratch);
    }
    return result;
}

}  // namespace
}  // namespace edgekv
