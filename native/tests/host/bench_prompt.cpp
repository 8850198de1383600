// Times the prompt kernels: one layer, 512 tokens behind a context, one thread.
//   bench_prompt [n_cells=7680] [rounds=7] [kernel]
// Prints medians in ns for each (query, cell, query head), and the least. The kernels take turns within a round.
#include <cstdio>
#include <string>

#include "dense_problem.h"
#include "kernels/prompt/prompt_internal.h"

using namespace edgekv;
using namespace test;

int main(int argc, char ** argv) {
    const int n_cells = argc > 1 ? std::atoi(argv[1]) : 7680, rounds = argc > 2 ? std::atoi(argv[2]) : 7;
    constexpr int n_tokens = 512;
    const struct {
        const char * name;
        int head_dim, n_head, n_head_kv;
    } shapes[] = {{"64, 9 heads, 3 of K and V", 64, 9, 3}, {"128, 24 heads, 8 of K and V", 128, 24, 8}};
    for (const auto & shape : shapes) {
        for (const CellType type : {CellType::f16, CellType::q8_0}) {
            Random rng(3);
            AttendProblem p = dense_problem(shape.head_dim, shape.n_head, shape.n_head_kv, n_tokens, n_cells, type);
            const std::vector<float> q = normal_values(static_cast<size_t>(n_tokens * p.n_head * p.head_dim), rng);
            std::vector<float> out(q.size());
            const size_t n_rows = static_cast<size_t>(n_cells) * p.n_head_kv;
            const std::vector<char> k = repeated_rows(type, p.head_dim, n_rows, rng), v = repeated_rows(type, p.head_dim, n_rows, rng);
            std::vector<uint16_t> mask(static_cast<size_t>(n_tokens) * n_cells);
            for (int t = 0; t < n_tokens; ++t) {
                for (int c = n_cells - n_tokens + t + 1; c < n_cells; ++c) {
                    mask[static_cast<size_t>(t) * n_cells + c] = 0xfc00;
                }
            }
            p.q = reinterpret_cast<const char *>(q.data());
            p.k = k.data();
            p.v = v.data();
            p.mask_type = MaskType::f16;
            p.mask = reinterpret_cast<const char *>(mask.data());
            p.mask_stride_token = static_cast<size_t>(n_cells) * 2;
            p.out = reinterpret_cast<char *>(out.data());
            PromptProblem problem{};
            problem.attend = p;
            problem.seen_stride = static_cast<size_t>(prompt_cell_blocks(n_cells));
            std::vector<Seen> seen(problem.seen_stride * static_cast<size_t>(prompt_token_blocks(n_tokens)));
            for (int b = 0; b < prompt_token_blocks(n_tokens); ++b) {
                prompt_classify(p.mask_type, p.mask, p.mask_stride_token, n_tokens, n_cells, b, seen.data() + static_cast<size_t>(b) * problem.seen_stride);
            }
            problem.seen = seen.data();
            const PromptPlan plan = prompt_plan(p, 1);
            std::vector<char> memory(plan.scratch_bytes + 64);

            const std::vector<Isa> all = {Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512bf16, Isa::amx};
            std::vector<std::vector<double>> ns(all.size());
            for (int round = 0; round < rounds; ++round) {
                for (size_t i = 0; i < all.size(); ++i) {
                    if (!isa_supported(all[i]) || (argc > 3 ? std::string(isa_name(all[i])) != argv[3] : i == 0 && round > 0)) {
                        continue;
                    }
                    const double all_items = time_ns(1, [&] {
                        for (int item = 0; item < plan.n_items; ++item) {
                            prompt_kernels(all[i]).attend(problem, plan, item, aligned(memory));
                        }
                    });
                    ns[i].push_back(all_items / (static_cast<double>(n_tokens) * p.n_head * (n_cells - n_tokens / 2)));
                }
            }
            std::printf("%s, %s:", shape.name, type == CellType::f16 ? "f16" : "q8_0");
            for (size_t i = 0; i < all.size(); ++i) {
                if (!ns[i].empty()) {
                    std::printf("  %s %.3f (%.3f)", isa_name(all[i]), median(ns[i]), *std::min_element(ns[i].begin(), ns[i].end()));
                }
            }
            std::printf("\n");
        }
    }
    return 0;
}
