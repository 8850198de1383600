// Checks the prompt kernels against prompt_reference().
//   test_prompt [one case in so many, 5]
//
// Tolerances. A score in single precision is a chain of head_dim products, each rounded to u = 2^-24 of at most S = scale * |q| * |k|, so
// that it is off by at most 3.5 * sqrt(head_dim) * u * S (six standard deviations); softcap, bias and shift round it a few times more.
// Operands in bf16 are off by 2^-9 each, and their products, S / sqrt(head_dim) in the root mean square, by at most 6 * 2^-9 of that; where
// queries are large they are split into two, and off by 2^-16 of S. A weight is off by that, and by what it is rounded to (2^-9 in bf16,
// with a polynomial good to 1e-4; 2^-22 else), and values in bf16 by 2^-9. An output is off by at most twice the one and once the other,
// times max |v|. As these errors have nothing to do with each other, their root mean square over all outputs is far less: a quarter.
#include "kernel_names.h"
#include "kernels/prefill/prompt_choice.h"
#include "kernels/prefill/prompt_internal.h"
#include "kernels/simd/isa_dispatch.h"
#include "spoilt_rows.h"

namespace edgekv {
extern const PromptKernels kPromptEmulated;
}

using namespace edgekv;
using namespace test;

namespace {

struct Kernel {
    std::string name;
    const PromptKernels * table;
    bool bf16_scores, bf16_values;
};

// The classes of all blocks of tokens and cells.
struct Classes {
    size_t stride;
    std::vector<Seen> seen;

    explicit Classes(const AttendProblem & p) : stride(static_cast<size_t>(prompt_cell_blocks(p.n_cells)) + 3),
        seen(stride * static_cast<size_t>(prompt_token_blocks(p.n_tokens))) {
        for (int b = 0; b < prompt_token_blocks(p.n_tokens); ++b) {
            prompt_classify(p.mask_type, p.mask, p.mask_stride_token, p.n_tokens, p.n_cells, b, seen.data() + static_cast<size_t>(b) * stride);
        }
    }
};

void attend(const Kernel & kernel, PromptProblem problem, int n_threads) {
    const Classes classes(problem.attend);
    problem.seen = classes.seen.data();
    problem.seen_stride = classes.stride;
    const PromptPlan plan = prompt_plan(problem.attend, n_threads);
    std::vector<char> memory(plan.scratch_bytes + 64, 0x7f);
    for (int item = 0; item < plan.n_items; ++item) {
        kernel.table->attend(problem, plan, item, aligned(memory));
    }
}

// Without a kernel the specification runs.
AttendResults run(const AttendCase & c, const AttendInstance & x, AttendProblem & p, const Kernel * kernel, int n_threads) {
    AttendResults result(c, p, kernel == nullptr ? 0.0f : kNan);
    PromptProblem problem{};
    problem.attend = p;
    problem.dropped = c.dropped ? x.dropped.data() : nullptr;
    problem.dropped_stride = static_cast<size_t>(c.n_pages());
    kernel == nullptr ? prompt_reference(problem) : attend(*kernel, problem, n_threads);
    return result;
}

struct Bounds {
    double weight, out;
};

Bounds bounds_of(const AttendCase & c, const AttendInstance & x, const Kernel & kernel) {
    constexpr double u = 0x1p-24;
    const double of_scores = kernel.bf16_scores ? (c.large ? 0x1p-16 : 6 * 0x1p-9 / std::sqrt(c.head_dim)) : 3.5 * std::sqrt(c.head_dim) * u;
    const double logit = of_scores * x.score + 4 * u * (x.score + x.largest_bias + c.softcap + 10);
    const double weight = logit + (kernel.bf16_values ? 0x1p-9 + 1e-4 : 0x1p-22) + 3.5 * std::sqrt(c.n_cells) * u;
    return {weight, x.v_max * (2 * weight + (kernel.bf16_values ? 0x1p-9 : 0.0)) + 1e-30};
}

void check(const AttendRun & by, const AttendInstance & x, const AttendResults & want, const AttendResults & got, const Bounds & bounds) {
    compare(by, "out", got.out, want.out, bounds.out);
    double squares = 0.0;
    for (size_t i = 0; i < want.out.size(); ++i) {
        squares += std::pow(static_cast<double>(got.out[i]) - want.out[i], 2);
    }
    const double rms = std::sqrt(squares / (1.0 * by.c.n_tokens * x.p.n_head * by.c.head_dim));
    expect_near(by, "root mean square of the errors", rms, 0.0, bounds.out / 4);
    const double mass_bound = kPromptTokens * by.c.group * 2 * bounds.weight + 1e-6;
    compare(by, "mass_max", got.mass_max, want.mass_max, mass_bound);
    compare(by, "mass_sum", got.mass_sum, want.mass_sum, mass_bound);
}

std::vector<AttendCase> cases_of(int n) {
    std::vector<AttendCase> all;
    Random rng(7);
    const int dims[] = {64, 72, 80, 96, 112, 128, 192, 256, 512}, groups[] = {1, 2, 3, 4, 5, 7, 8, 16}, heads[] = {1, 2, 3};
    const int tokens[] = {2, 15, 16, 17, 31, 40, 64, 100, 200}, cells[] = {1, 17, 64, 100, 200, 257, 500}, pages[] = {16, 32, 48, 64};
    for (int i = 0; i < n; ++i) {
        AttendCase c{};
        c.head_dim = dims[i % 9];
        c.group = rng.pick(groups);
        c.n_head_kv = rng.pick(heads);
        c.n_tokens = rng.pick(tokens);
        c.n_cells = rng.pick(cells);
        while (c.work() > 2e7) {  // the specification is slow
            (c.n_tokens > 100 ? c.n_tokens : c.n_cells > 100 ? c.n_cells : c.group) /= 2;
        }
        c.page_tokens = rng.pick(pages);
        const bool blocks = c.head_dim % 32 == 0;
        c.k_type = blocks ? rng.pick(kCellTypes) : CellType::f16;
        c.v_type = blocks ? rng.pick(kCellTypes) : CellType::f16;
        c.mask = static_cast<Mask>(i / 5 % static_cast<int>(Mask::count));  // of every fifth case, too, each has some
        c.wide_mask = rng.one_of(4);
        c.softcap = rng.one_of(4) ? 15.0f : 0.0f;
        c.sinks = rng.one_of(3);
        c.gaps = rng.one_of(2);
        c.rising = rng.one_of(2);
        c.dropped = rng.one_of(4);
        c.observe = rng.one_of(2) ? 3 : 0;
        c.large = c.softcap == 0.0f && rng.one_of(4);
        all.push_back(c);
    }
    return all;
}

// A block that is not attended is the same as one that is hidden, bit by bit, and a raise the same as a bias, but for the bias's rounding.
void check_raise(const Kernel & kernel, const std::vector<float> & raise, double tolerance) {
    AttendCase c{};
    c.head_dim = 64;
    c.group = 3;
    c.n_head_kv = 2;
    c.n_tokens = 40;
    c.n_cells = 500;
    c.page_tokens = 16;
    c.mask = Mask::causal;
    c.observe = 2;
    const AttendInstance x(c, 5);
    Bytes biased = x.mask;
    for (int t = 0; t < c.n_tokens; ++t) {
        for (int i = 0; i < c.n_cells; ++i) {
            const float up = raise[static_cast<size_t>(i / kPromptCells)];
            if (up != 0.0f && x.bias.sees(t, i)) {
                const uint16_t half = to_half(up < 0.0f ? -kInf : up * std::log(2.0f));
                std::memcpy(biased.data() + static_cast<size_t>(t) * x.p.mask_stride_token + 2 * i, &half, 2);
            }
        }
    }
    AttendProblem p = x.p;
    AttendResults raised(c, p, 0.0f);
    PromptProblem problem{};
    problem.attend = p;
    problem.raise = raise.data();
    attend(kernel, problem, 1);
    p.mask = biased.data();
    const AttendResults by_mask = run(c, x, p, &kernel, 1);
    const AttendRun by{c, kernel.name.c_str(), 1};
    compare(by, "out of raised blocks, and of a bias", raised.out, by_mask.out, tolerance * x.v_max);
    compare(by, "mass of raised blocks, and of a bias", raised.mass_sum, by_mask.mass_sum, tolerance);
}

void check_classes() {
    const int n_tokens = 20, n_cells = 130;  // blocks of 4 and 16 tokens; of 64, 64 and 2 cells
    std::vector<uint16_t> mask(static_cast<size_t>(n_tokens * n_cells), 0);
    const auto at = [&](int t, int c) -> uint16_t & { return mask[static_cast<size_t>(t * n_cells + c)]; };
    at(3, 70) = 0xfc00;
    for (int t = 4; t < n_tokens; ++t) {
        for (int c = 0; c < 64; ++c) {
            at(t, c) = 0xfc00;
        }
    }
    at(19, 100) = 0x3c00;
    Seen seen[2][3];
    for (int b = 0; b < 2; ++b) {
        prompt_classify(MaskType::f16, reinterpret_cast<const char *>(mask.data()), n_cells * 2, n_tokens, n_cells, b, seen[b]);
    }
    const Seen want[2][3] = {{Seen::all, Seen::some, Seen::some}, {Seen::nothing, Seen::some, Seen::some}};
    for (int b = 0; b < 2; ++b) {
        for (int i = 0; i < 3; ++i) {
            CHECK(seen[b][i] == want[b][i], "tokens %d, cells %d", b, i);
        }
    }
    CHECK(prompt_first_token(n_tokens, 1) == 4);
}

void check_draw() {
    // shares of a query are those of exponentials relative to different tops; 0, 3 and 5 see nothing
    const float tops[] = {-kInf, 2.0f, 2.0f + std::log(4.0f), -kInf, 2.0f, -kInf}, sums[] = {0.0f, 1.0f, 1.0f, 0.0f, 3.0f, 0.0f};
    float squares[6] = {};
    add_square_shares(tops, sums, 6, squares);
    const float shares[] = {0.0f, 0.125f, 0.5f, 0.0f, 0.375f, 0.0f};
    for (int b = 0; b < 6; ++b) {
        CHECK(std::fabs(squares[b] - shares[b] * shares[b]) < 1e-6f, "block %d: %g", b, squares[b]);
    }
    const float nothing[] = {-kInf, -kInf};
    float none[2] = {1.0f, 1.0f};
    add_square_shares(nothing, sums, 2, none);
    CHECK(none[0] == 1.0f && none[1] == 1.0f, "%g %g", none[0], none[1]);

    // What is certain, or has more than 1/resolution, is drawn as it is; the others so often, and so raised, that the mean is right. A share of 0
    // is never drawn.
    const uint8_t certain[] = {0, 0, 0, 1, 0, 0};
    for (const float resolution : {1.0f, 2.5f, 100.0f}) {
        double mean[6] = {};
        const int n = 4096;
        for (int i = 0; i < n; ++i) {
            float raise[6];
            const int drawn = draw_blocks(squares, 1, certain, 6, resolution, (static_cast<float>(i) + 0.5f) / n, raise);
            CHECK(drawn == 6 - std::count(raise, raise + 6, -1.0f), "%d drawn, resolution %g", drawn, resolution);
            CHECK(raise[3] == 0.0f && raise[0] < 0.0f && raise[5] < 0.0f, "%g %g %g, resolution %g", raise[3], raise[0], raise[5], resolution);
            for (int b = 0; b < 6; ++b) {
                CHECK(shares[b] * resolution < 1.0f || raise[b] == 0.0f, "block %d: %g, resolution %g", b, raise[b], resolution);
                mean[b] += raise[b] < 0.0f ? 0.0 : std::exp2(static_cast<double>(raise[b])) / n;
            }
        }
        for (const int b : {1, 2, 3, 4}) {
            CHECK(std::fabs(mean[b] - 1.0) < 0.01, "block %d: %g, resolution %g", b, mean[b], resolution);
        }
    }
    // the mean over queries: 4, of which one has the share
    float raise[6];
    draw_blocks(squares, 4, certain, 6, 4.0f, 0.0f, raise);
    CHECK(raise[2] == 0.0f && raise[4] != 0.0f, "%g %g", raise[2], raise[4]);
    // a weight is bounded
    const float faint[] = {1e-12f, 1.0f};
    int n_faint = 0;
    for (int i = 0; i < 1024; ++i) {
        draw_blocks(faint, 1, certain, 2, 1.0f, static_cast<float>(i) / 1024.0f, raise);
        CHECK(raise[0] <= 5.0f, "%g", raise[0]);
        n_faint += raise[0] >= 0.0f;
    }
    CHECK(std::abs(n_faint - 32) <= 1, "%d", n_faint);
}

}  // namespace

int main(int argc, char ** argv) {
    std::vector<Kernel> kernels;
    for (const Isa isa : {Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512bf16, Isa::amx, Isa::neon}) {
        if (isa_supported(isa)) {
            kernels.push_back({isa_name(isa), &prompt_kernels(isa), isa == Isa::amx, isa == Isa::avx512bf16 || isa == Isa::amx});
        }
    }
#if EDGEKV_X86
    if (isa_supported(Isa::avx512)) {
        kernels.push_back({"emulated", &kPromptEmulated, true, true});
    }
#endif
    check_classes();
    check_draw();
    for (const Kernel & kernel : kernels) {
        check_raise(kernel, {0.0f, -1.0f, 0.0f, -1.0f, -1.0f, 0.0f, 0.0f, 0.0f}, 0.0);
        check_raise(kernel, {0.0f, 3.0f, 0.0f, -1.0f, 1.5f, 0.0f, 4.5f, 0.0f}, 0.01);
    }
    const std::vector<AttendCase> all = cases_of(270);
    const int thread_counts[] = {1, 2, 8};
    for (size_t i = 0; i < all.size(); i += one_case_in(argc, argv, 5)) {
        const AttendCase & c = all[i];
        AttendInstance x(c, i + 1);
        AttendProblem p = x.p;
        const AttendResults want = run(c, x, p, nullptr, 1);
        for (const Kernel & kernel : kernels) {
            if (kernel.name == "emulated" && i % 5 != 0) {
                continue;
            }
            const AttendRun by{c, kernel.name.c_str(), thread_counts[i / 4 % 3]};
            const Bounds bounds = bounds_of(c, x, kernel);
            check(by, x, want, run(c, x, p, &kernel, by.n_shares), bounds);
            if (i % 4 == 1) {
                check_spoilt(by, x, p, i + 1, want.out, bounds.out, [&] { return run(c, x, p, &kernel, by.n_shares).out; });
            }
        }
    }
    std::printf("%zu cases, largest error %.3f of the tolerance\n", all.size(), worst);
    return finish();
}
