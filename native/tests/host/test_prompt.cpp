// Checks the prompt kernels against prompt_reference().
//   test_prompt [portable|avx2|avx512|avx512bf16|amx|emulated]
//
// Tolerances. A score in single precision is a chain of head_dim products, each rounded to u = 2^-24 of at most S = scale * |q| * |k|, so
// that it is off by at most 3.5 * sqrt(head_dim) * u * S (six standard deviations); softcap, bias and shift round it a few times more.
// Operands in bf16 are off by 2^-9 each, and their products, S / sqrt(head_dim) in the root mean square, by at most 6 * 2^-9 of that; where
// queries are large they are split into two, and off by 2^-16 of S. A weight is off by that, and by what it is rounded to (2^-9 in bf16,
// with a polynomial good to 1e-4; 2^-22 else), and values in bf16 by 2^-9. An output is off by at most twice the one and once the other,
// times max |v|. As these errors have nothing to do with each other, their root mean square over all outputs is far less: a quarter.
#include "kernels/prompt/prompt_choice.h"
#include "prompt_instance.h"
#include "spoilt_rows.h"

namespace edgekv {
extern const PromptKernels kPromptEmulated;
}

using namespace edgekv;

namespace {

struct Bounds {
    double weight, out;
};

Bounds bounds_of(const Case & c, const Instance & x, const Kernel & kernel) {
    constexpr double u = 0x1p-24;
    const double logit = (kernel.bf16_scores ? (c.large ? 0x1p-16 : 6 * 0x1p-9 / std::sqrt(c.head_dim)) : 3.5 * std::sqrt(c.head_dim) * u) * x.score + 4 * u * (x.score + x.bias_max + c.softcap + 10);
    const double weight = logit + (kernel.bf16_values ? 0x1p-9 + 1e-4 : 0x1p-22) + 3.5 * std::sqrt(c.n_cells) * u;
    return {weight, x.v_max * (2 * weight + (kernel.bf16_values ? 0x1p-9 : 0.0)) + 1e-30};
}

bool check(const Case & c, Instance & x, const Result & want, const Kernel & kernel) {
    const Result got = run(c, x, &kernel);
    const auto [weight, bound] = bounds_of(c, x, kernel);
    double worst = 0.0, squares = 0.0;
    int n = 0;
    for (int t = 0; t < c.n_tokens; ++t) {
        for (int h = 0; h < x.p.n_head; ++h) {
            for (int i = 0; i < c.head_dim; ++i) {
                const size_t at = static_cast<size_t>(t) * x.p.out_stride_token + static_cast<size_t>(h) * x.p.out_stride_head + static_cast<size_t>(i) * 4;
                float a, b;
                std::memcpy(&a, want.out.data() + at, 4);
                std::memcpy(&b, got.out.data() + at, 4);
                const double apart = std::fabs(static_cast<double>(a) - b);
                worst = apart <= worst ? worst : apart;  // NaN too
                squares += apart * apart;
                n += 1;
            }
        }
    }
    double mass = 0.0;
    for (size_t i = 0; i < want.top.size(); ++i) {
        for (const double apart : {std::fabs(want.top[i] - got.top[i]), std::fabs(want.sum[i] - got.sum[i])}) {
            mass = apart <= mass ? mass : apart;
        }
    }
    const double mass_bound = kPromptTokens * c.group * 2 * weight + 1e-6;
    const double rms = std::sqrt(squares / n);
    const bool ok = worst <= bound && rms <= bound / 4 && mass <= mass_bound;
    if (!ok) {
        std::printf("%s %s\n  worst %g rms %g of %g, mass %g of %g\n", kernel.name.c_str(), c.name().c_str(), worst, rms, bound, mass, mass_bound);
    }
    return ok;
}

// Rows that hold infinities and NaN reach nobody who does not see them.
bool check_spoilt(const Case & c, Instance & x, const Result & want, const Kernel & kernel, uint64_t seed) {
    Result got;
    AttendProblem p = x.p;
    const int n_pages = (c.n_cells + c.page_tokens - 1) / c.page_tokens;
    const auto dropped = [&](int head, int cell) { return c.dropped && x.dropped[static_cast<size_t>(head * n_pages + cell / c.page_tokens)] != 0; };
    const auto attend = [&] {
        got = run(c, x, &kernel);
        p.out = got.out.data();
    };
    const std::vector<cases::Spoilt> cells = cases::cells_to_spoil(p, seed);
    for (const bool keys : {false, true}) {
        const std::string fault = cases::spoilt_fault({p, x.k.data(), x.v.data(), dropped, attend, bounds_of(c, x, kernel).out}, cells, want.out.data(), keys);
        if (!fault.empty()) {
            std::printf("%s %s\n  %s\n", kernel.name.c_str(), c.name().c_str(), fault.c_str());
            return false;
        }
    }
    return true;
}

std::vector<Case> cases_of(int n) {
    std::vector<Case> all;
    cases::Random rng(7);
    const auto pick = [&](std::vector<int> of) { return of[rng.next() % of.size()]; };
    const int dims[] = {64, 72, 80, 96, 112, 128, 192, 256, 512};
    for (int i = 0; i < n; ++i) {
        Case c{};
        c.head_dim = dims[i % 9];
        c.group = pick({1, 2, 3, 4, 5, 7, 8, 16});
        c.n_head_kv = pick({1, 2, 3});
        c.n_tokens = pick({2, 15, 16, 17, 31, 40, 64, 100, 200});
        c.n_cells = pick({1, 17, 64, 100, 200, 257, 500});
        while (static_cast<double>(c.group * c.n_head_kv * c.n_tokens) * c.n_cells * c.head_dim > 2e7) {  // the specification is slow
            (c.n_tokens > 100 ? c.n_tokens : c.n_cells > 100 ? c.n_cells : c.group) /= 2;
        }
        c.page_tokens = pick({16, 32, 48, 64});
        c.n_threads = pick({1, 2, 8});
        const bool blocks = c.head_dim % 32 == 0;
        c.k_type = blocks && rng.next() % 2 ? CellType::q8_0 : CellType::f16;
        c.v_type = blocks && rng.next() % 2 ? CellType::q8_0 : CellType::f16;
        c.mask = static_cast<Mask>(i / 3 % static_cast<int>(Mask::count));
        c.softcap = rng.next() % 4 == 0 ? 15.0f : 0.0f;
        c.sinks = rng.next() % 3 == 0;
        c.gaps = rng.next() % 2 == 0;
        c.rising = rng.next() % 2 == 0;
        c.dropped = rng.next() % 4 == 0;
        c.observed = rng.next() % 2 == 0;
        c.large = c.softcap == 0.0f && rng.next() % 4 == 0;
        all.push_back(c);
    }
    return all;
}

// A block that is not attended is the same as one that is hidden, bit by bit, and a raise the same as a bias, but for the bias's rounding.
bool check_raise(const Kernel & kernel, const std::vector<float> & raise, double tolerance) {
    const Case c = {64, 3, 2, 40, 500, 16, 1, CellType::f16, CellType::f16, Mask::causal, 0.0f, false, false, false, false, true, false};
    Instance x(c, 5);
    std::vector<Seen> seen(static_cast<size_t>(prompt_token_blocks(c.n_tokens) * 8));
    Result got[2];
    for (int way = 0; way < 2; ++way) {
        Result & r = got[way];
        r.out.assign(static_cast<size_t>(c.n_tokens) * x.p.out_stride_token, 0);
        r.sum.assign(64, 0.0f);
        PromptProblem problem{};
        problem.attend = x.p;
        problem.attend.out = r.out.data();
        problem.attend.mass_sum = r.sum.data();
        problem.attend.mass_stride = 32;
        problem.seen = seen.data();
        problem.seen_stride = 8;
        problem.raise = way == 0 ? raise.data() : nullptr;
        std::vector<char> mask = x.mask;
        for (int t = 0; t < c.n_tokens && way == 1; ++t) {
            for (int i = 0; i < c.n_cells; ++i) {
                const float up = raise[static_cast<size_t>(i / 64)];
                char * at = mask.data() + static_cast<size_t>(t) * x.p.mask_stride_token + 2 * i;
                uint16_t bias;
                std::memcpy(&bias, at, 2);
                if (up != 0.0f && bias != 0xfc00) {
                    bias = up < 0.0f ? 0xfc00 : cases::to_half(up * std::log(2.0f));
                    std::memcpy(at, &bias, 2);
                }
            }
        }
        problem.attend.mask = mask.data();
        for (int b = 0; b < prompt_token_blocks(c.n_tokens); ++b) {
            prompt_classify(MaskType::f16, mask.data(), x.p.mask_stride_token, c.n_tokens, c.n_cells, b, seen.data() + b * 8);
        }
        const PromptPlan plan = prompt_plan(problem.attend, 1);
        std::vector<char> memory(plan.scratch_bytes + 64);
        char * scratch = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
        for (int item = 0; item < plan.n_items; ++item) {
            kernel.table->attend(problem, plan, item, scratch);
        }
    }
    double apart = 0.0;
    for (size_t i = 0; i < got[0].out.size(); i += 4) {
        float one, other;
        std::memcpy(&one, got[0].out.data() + i, 4);
        std::memcpy(&other, got[1].out.data() + i, 4);
        apart = std::max(apart, std::fabs(static_cast<double>(one) - static_cast<double>(other)) / x.v_max);
    }
    for (size_t i = 0; i < got[0].sum.size(); ++i) {
        apart = std::max(apart, std::fabs(static_cast<double>(got[0].sum[i]) - static_cast<double>(got[1].sum[i])));
    }
    if (!(apart <= tolerance)) {
        std::printf("%s: raised blocks are %g apart from a bias\n", kernel.name.c_str(), apart);
    }
    return apart <= tolerance;
}

bool check_classes() {
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
    const bool ok = seen[0][0] == Seen::all && seen[0][1] == Seen::some && seen[0][2] == Seen::some && seen[1][0] == Seen::nothing &&
                    seen[1][1] == Seen::some && seen[1][2] == Seen::some && prompt_first_token(n_tokens, 1) == 4;
    if (!ok) {
        std::printf("wrong classes\n");
    }
    return ok;
}

bool check_draw() {
    // shares of a row are those of exponentials relative to different tops; 0, 3 and 5 see nothing
    const float tops[] = {-kInf, 2.0f, 2.0f + std::log(4.0f), -kInf, 2.0f, -kInf}, sums[] = {0.0f, 1.0f, 1.0f, 0.0f, 3.0f, 0.0f};
    float squares[6] = {};
    add_square_shares(tops, sums, 6, squares);
    const float shares[] = {0.0f, 0.125f, 0.5f, 0.0f, 0.375f, 0.0f};
    bool ok = true;
    for (int b = 0; b < 6; ++b) {
        ok = ok && std::fabs(squares[b] - shares[b] * shares[b]) < 1e-6f;
    }
    const float nothing[] = {-kInf, -kInf};
    float none[2] = {1.0f, 1.0f};
    add_square_shares(nothing, sums, 2, none);
    ok = ok && none[0] == 1.0f && none[1] == 1.0f;

    // What is certain, or has more than 1/resolution, is drawn as it is; the others so often, and so raised, that the mean is right. A share of 0
    // is never drawn.
    const uint8_t certain[] = {0, 0, 0, 1, 0, 0};
    for (const float resolution : {1.0f, 2.5f, 100.0f}) {
        double mean[6] = {};
        const int n = 4096;
        for (int i = 0; i < n; ++i) {
            float raise[6];
            const int drawn = draw_blocks(squares, 1, certain, 6, resolution, (static_cast<float>(i) + 0.5f) / n, raise);
            ok = ok && drawn == 6 - std::count(raise, raise + 6, -1.0f) && raise[3] == 0.0f && raise[0] < 0.0f && raise[5] < 0.0f;
            for (int b = 0; b < 6; ++b) {
                ok = ok && !(shares[b] * resolution >= 1.0f && raise[b] != 0.0f);
                mean[b] += raise[b] < 0.0f ? 0.0 : std::exp2(static_cast<double>(raise[b])) / n;
            }
        }
        for (const int b : {1, 2, 3, 4}) {
            ok = ok && std::fabs(mean[b] - 1.0) < 0.01;
        }
    }
    // the mean over rows: 4 rows of which one has the share
    float raise[6];
    draw_blocks(squares, 4, certain, 6, 4.0f, 0.0f, raise);
    ok = ok && raise[2] == 0.0f && raise[4] != 0.0f;
    // a weight is bounded
    const float faint[] = {1e-12f, 1.0f};
    int n_faint = 0;
    for (int i = 0; i < 1024; ++i) {
        draw_blocks(faint, 1, certain, 2, 1.0f, static_cast<float>(i) / 1024.0f, raise);
        ok = ok && raise[0] <= 5.0f;
        n_faint += raise[0] >= 0.0f;
    }
    ok = ok && std::abs(n_faint - 32) <= 1;
    if (!ok) {
        std::printf("wrong draw of blocks\n");
    }
    return ok;
}

}  // namespace

int main(int argc, char ** argv) {
    std::vector<Kernel> kernels;
    for (const Isa isa : {Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512bf16, Isa::amx}) {
        if (isa_supported(isa)) {
            kernels.push_back({isa_name(isa), &prompt_kernels(isa), isa == Isa::amx, isa >= Isa::avx512bf16});
        }
    }
    if (isa_supported(Isa::avx512)) {
        kernels.push_back({"emulated", &kPromptEmulated, true, true});
    }
    kernels.erase(std::remove_if(kernels.begin(), kernels.end(), [&](const Kernel & k) { return argc > 1 && k.name != argv[1]; }), kernels.end());
    if (kernels.empty()) {
        std::printf("%s: not on this processor\n", argv[1]);
        return 77;
    }
    std::vector<int> failed;
    for (const Kernel & kernel : kernels) {
        failed.push_back(check_raise(kernel, {0.0f, -1.0f, 0.0f, -1.0f, -1.0f, 0.0f, 0.0f, 0.0f}, 0.0) ? 0 : 1);
        failed.push_back(check_raise(kernel, {0.0f, 3.0f, 0.0f, -1.0f, 1.5f, 0.0f, 4.5f, 0.0f}, 0.01) ? 0 : 1);
    }
    const std::vector<Case> all = cases_of(270);
    for (size_t i = 0; i < all.size(); ++i) {
        Instance x(all[i], i + 1);
        const Result want = run(all[i], x, nullptr);
        for (size_t k = 0; k < kernels.size(); ++k) {
            const bool asked = kernels[k].name != "emulated" || i % 5 == 0;
            failed[k] += asked && !check(all[i], x, want, kernels[k]);
            failed[k] += asked && i % 4 == 1 && !check_spoilt(all[i], x, want, kernels[k], i + 1);
        }
    }
    int n_failed = (check_classes() ? 0 : 1) + (check_draw() ? 0 : 1);
    for (size_t k = 0; k < kernels.size(); ++k) {
        std::printf("%s: %d failed\n", kernels[k].name.c_str(), failed[k]);
        n_failed += failed[k];
    }
    return n_failed == 0 ? 0 : 1;
}
