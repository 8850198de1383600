// The scan of 1- and 2-bit codes, kLanes strips at a time, with a strip in each lane.
#pragma once

#include "sketch_box.h"

namespace edgekv {
namespace {

// What belongs in one loop must become one, however large; without vector registers that is too large, and a part is enough.
#if !defined(__GNUC__)
#define EDGEKV_INLINE inline
#define EDGEKV_APART
#elif defined(__AVX2__)
#define EDGEKV_INLINE __attribute__((always_inline)) inline
#define EDGEKV_APART __attribute__((noinline))
#else
#define EDGEKV_INLINE __attribute__((flatten)) inline
#define EDGEKV_APART __attribute__((noinline))
#endif

constexpr int kKeys = 2;  // keys of a strip that share the loads of the factors

// ln(x) for x > 0, off by less than 1e-4 + 1e-6 |ln x|.
inline F vector_log(F x) {
    // The bits of a float, as an integer, are 2^23 * (127 + log2 x) but for a function of the fraction alone.
    const F y = Simd::fma(Simd::to_float(Simd::as_int(x)), Simd::set1(0x1p-23f), Simd::set1(-127.0f));
    const F f = Simd::sub(y, Simd::round(Simd::sub(y, Simd::set1(0.5f))));
    F p = Simd::fma(Simd::set1(0.0821306446f), f, Simd::set1(-0.239058182f));
    p = Simd::fma(p, f, Simd::set1(0.438725733f));
    p = Simd::mul(p, Simd::mul(f, Simd::sub(Simd::set1(1.0f), f)));
    return Simd::mul(Simd::add(y, p), Simd::set1(0.693147181f));
}

// Three things take turns, so that the multipliers never wait: while the codes of one vector of strips are multiplied, the
// factors of the next vector are made and the exponentials of the last one are summed up.
template <int D, int Bits, int NR>
struct CodeScan {
    static constexpr int kQuads = D / 4;
    static constexpr int kPerDword = 8 / Bits;  // quads
    static constexpr int kKeyVectors = (kQuads + kPerDword - 1) / kPerDword;
    static constexpr int kMask = Bits == 2 ? 0x03030303 : 0x01010101;
    static constexpr int kFlush = 32 / kPerDword;  // vectors after which code_dot() must be summed up

    struct Stage {
        const char * block;
        float * estimates;
        alignas(64) char factors[kQuads][NR][sizeof(I)];  // query times step, as i8
        alignas(64) int32_t dots[kSketchStripCells][NR][kLanes];
        F base[NR];  // the logit of code 0 everywhere
        I top[NR];
    };

    const Scan & scan;
    const char * q[NR];
    SketchRow header[NR];
    Stage stages[3];

    explicit CodeScan(const Scan & s) : scan(s) {
        for (int r = 0; r < NR; ++r) {
            const char * row = scan.rows + static_cast<size_t>(r) * scan.row_bytes;
            header[r] = row_header(row);
            q[r] = row + kRowQ;
        }
    }

    static EDGEKV_INLINE void make_factor(Stage & stage, const char * const * q, int quad, I * sums) {
        const char * params = stage.block + (3 + 2 * quad) * kVectorBytes;
        const I low = Simd::iload(params);
        const I step = Simd::iload(params + kVectorBytes);
        EDGEKV_UNROLL
        for (int r = 0; r < NR; ++r) {
            sums[r] = Simd::dot4_stored(sums[r], low, Simd::idup4(q[r] + 2 * D + 4 * quad));
            Simd::istore(stage.factors[quad][r], Simd::scale_bytes(step, Simd::idup8(q[r] + 8 * quad)));
        }
    }

    EDGEKV_INLINE void make_base(Stage & stage, const I * sums) {
        const F scale = Simd::load(stage.block + kVectorBytes);
        EDGEKV_UNROLL
        for (int r = 0; r < NR; ++r) {
            const F sum = Simd::to_float(Simd::isub(sums[r], Simd::kBiasedK ? header[r].excess : 0));
            stage.base[r] = Simd::mul(sum, Simd::mul(scale, Simd::set1(header[r].coarse)));
        }
    }

    template <int S>
    static EDGEKV_INLINE void dot_quad(const I * codes, const char (*factor)[sizeof(I)], I (*acc)[NR]) {
        const I mask = Simd::iset1(kMask);
        I c[kKeys];
        EDGEKV_UNROLL
        for (int t = 0; t < kKeys; ++t) {
            c[t] = Simd::template code_bits<Bits * S>(codes[t], mask);
        }
        EDGEKV_UNROLL
        for (int r = 0; r < NR; ++r) {
            I f = Simd::iload(factor[r]);
            Simd::in_register(f);
            EDGEKV_UNROLL
            for (int t = 0; t < kKeys; ++t) {
                acc[t][r] = Simd::code_dot(acc[t][r], c[t], f);
            }
        }
    }

    template <int S = 0>
    static EDGEKV_INLINE void dot_vector(const I * codes, int v, const char (*factors)[NR][sizeof(I)], I (*acc)[NR]) {
        if constexpr (S < kPerDword) {
            if (kQuads % kPerDword == 0 || v * kPerDword + S < kQuads) {
                dot_quad<S>(codes, factors[v * kPerDword + S], acc);
                dot_vector<S + 1>(codes, v, factors, acc);
            }
        }
    }

    // What a dot counts in a logit.
    F slope(const Stage & stage, int r) const {
        return Simd::mul(Simd::load(stage.block), Simd::set1(header[r].fine * 32768.0f));
    }

    // Sums up exp(slope * (dot - top)) over the keys t0 .. t0 + kKeys. The exponential is the one that reading an integer as a
    // float gives: 2^n * (1 + f) for 2^(n + f), too large by up to 6.15 %; centred, that leaves an error of 0.0304 at most.
    static EDGEKV_INLINE void add_exps(const Stage & stage, int t0, const F * rate, F * sums) {
        EDGEKV_UNROLL
        for (int t = 0; t < kKeys; ++t) {
            EDGEKV_UNROLL
            for (int r = 0; r < NR; ++r) {
                const F below = Simd::to_float(Simd::idiff(Simd::iload(stage.dots[t0 + t][r]), stage.top[r]));
                const F bits = Simd::fma(below, rate[r], Simd::set1(127.0f * 0x1p23f));
                sums[r] = Simd::add(sums[r], Simd::as_float(Simd::to_int(Simd::max(bits, Simd::zero()))));
            }
        }
    }

    void store(const Stage & stage, int r, F x) {
        const F share = Simd::load(stage.block + 2 * kVectorBytes);
        float * out = stage.estimates + static_cast<size_t>(r) * scan.stride;
        Simd::store(out, Simd::where_positive(share, x, Simd::set1(-INFINITY)));
    }

    EDGEKV_INLINE void start_exps(const Stage & last, F * rate, F * sums) const {
        EDGEKV_UNROLL
        for (int r = 0; r < NR; ++r) {
            rate[r] = Simd::mul(slope(last, r), Simd::set1(1.44269504f * 0x1p23f));
            sums[r] = Simd::zero();
        }
    }

    // The dots of `now`, meanwhile the factors of `next` and the exponentials of `last`. Compiled on its own, it keeps more of
    // them in registers.
    EDGEKV_APART void turn(Stage & last, Stage & now, Stage & next, NextBlock & ahead) {
        I lows[NR], top[NR];
        F rate[NR], sums[NR];
        const char * rows[NR];
        EDGEKV_UNROLL
        for (int r = 0; r < NR; ++r) {
            rows[r] = q[r];
            lows[r] = Simd::izero();
            top[r] = Simd::iset1(INT32_MIN);
        }
        start_exps(last, rate, sums);
        const char * codes = now.block + (3 + 2 * kQuads) * kVectorBytes;
        int quad = 0;
        for (int t0 = 0; t0 < kSketchStripCells; t0 += kKeys) {
            add_exps(last, t0, rate, sums);
            for (const int end = kQuads * (t0 + kKeys) / kSketchStripCells; quad < end; ++quad) {
                make_factor(next, rows, quad, lows);
            }
            I acc[kKeys][NR], total[kKeys][NR];
            EDGEKV_UNROLL
            for (int t = 0; t < kKeys; ++t) {
                EDGEKV_UNROLL
                for (int r = 0; r < NR; ++r) {
                    acc[t][r] = total[t][r] = Simd::izero();
                }
            }
            for (int v = 0; v < kKeyVectors; ++v) {
                I c[kKeys];
                EDGEKV_UNROLL
                for (int t = 0; t < kKeys; ++t) {
                    c[t] = Simd::iload(codes + ((t0 + t) * kKeyVectors + v) * kVectorBytes);
                }
                dot_vector(c, v, now.factors, acc);
                ahead.fetch();
                if (v % kFlush == kFlush - 1 && v != kKeyVectors - 1) {
                    EDGEKV_UNROLL
                    for (int t = 0; t < kKeys; ++t) {
                        EDGEKV_UNROLL
                        for (int r = 0; r < NR; ++r) {
                            total[t][r] = Simd::code_sums(total[t][r], acc[t][r]);
                            acc[t][r] = Simd::izero();
                        }
                    }
                }
            }
            EDGEKV_UNROLL
            for (int t = 0; t < kKeys; ++t) {
                EDGEKV_UNROLL
                for (int r = 0; r < NR; ++r) {
                    const I dot = Simd::code_sums(total[t][r], acc[t][r]);
                    Simd::istore(now.dots[t0 + t][r], dot);
                    top[r] = Simd::imax(top[r], dot);
                }
            }
        }
        EDGEKV_UNROLL
        for (int r = 0; r < NR; ++r) {
            now.top[r] = top[r];
        }
        make_base(next, lows);
        finish(last, sums);
    }

    EDGEKV_INLINE void finish(const Stage & last, const F * sums) {
        const F share = Simd::load(last.block + 2 * kVectorBytes);
        EDGEKV_UNROLL
        for (int r = 0; r < NR; ++r) {
            const F tail = Simd::add(vector_log(Simd::mul(sums[r], share)), Simd::set1(-0.0298f));
            store(last, r, Simd::add(Simd::fma(Simd::to_float(last.top[r]), slope(last, r), last.base[r]), tail));
        }
    }

    void first(Stage & stage) {
        I lows[NR];
        for (int r = 0; r < NR; ++r) {
            lows[r] = Simd::izero();
        }
        for (int quad = 0; quad < kQuads; ++quad) {
            make_factor(stage, q, quad, lows);
        }
        make_base(stage, lows);
    }

    void exps(Stage & last) {
        F rate[NR], sums[NR];
        start_exps(last, rate, sums);
        for (int t = 0; t < kSketchStripCells; t += kKeys) {
            add_exps(last, t, rate, sums);
        }
        finish(last, sums);
    }

    void capped(const Stage & stage) {
        const F share = Simd::load(stage.block + 2 * kVectorBytes);
        for (int r = 0; r < NR; ++r) {
            const F scale = slope(stage, r);
            F logit[kSketchStripCells];
            F top = Simd::set1(-INFINITY);
            for (int t = 0; t < kSketchStripCells; ++t) {
                logit[t] = Simd::fma(Simd::to_float(Simd::iload(stage.dots[t][r])), scale, stage.base[r]);
                logit[t] = vector_softcap(logit[t], scan.softcap);
                top = Simd::max(top, logit[t]);
            }
            F sum = Simd::zero();
            for (int t = 0; t < kSketchStripCells; ++t) {
                sum = Simd::add(sum, vector_exp(Simd::sub(logit[t], top)));
            }
            store(stage, r, Simd::add(top, vector_log(Simd::mul(sum, share))));
        }
    }

    void run(const char * block, int block_bytes, int n_blocks) {
        constexpr int passes = kSketchBlockStrips / kLanes;
        const int n = n_blocks * passes;
        if (n == 0) {
            return;
        }
        const auto enter = [&](int i, int at) {
            Stage & stage = stages[at];
            stage.block = block + i / passes * static_cast<size_t>(block_bytes) + i % passes * kLanes * 4;
            stage.estimates = scan.estimates + static_cast<size_t>(i) * kLanes;
        };
        enter(0, 0);
        first(stages[0]);
        // The first turn's exponentials and the last one's factors are of no use; the next turn overwrites what they leave.
        memset(&stages[2], 0, sizeof(stages[2]));
        stages[2].block = stages[0].block;
        stages[2].estimates = stages[0].estimates;
        // As evenly as it gets: the multiplications hide a few fetches at a time, not many. Two blocks ahead, as the factors are
        // made from the next one already. The lines that a rounded share has too many are the first ones of the block after.
        constexpr int shares = kSketchStripCells / kKeys * kKeyVectors * passes;
        const int share = (block_bytes / 64 + shares - 1) / shares * 64;
        for (int i = 0; i < n; ++i) {
            enter(i + 1 < n ? i + 1 : 0, (i + 1) % 3);
            const char * fetched = block + (i / passes + 2) * static_cast<size_t>(block_bytes);
            NextBlock ahead{fetched + i % passes * (shares / passes) * share, share};
            Stage & last = stages[(i + 2) % 3];
            turn(last, stages[i % 3], stages[(i + 1) % 3], ahead);
            if (scan.softcap != 0.0f) {
                capped(last);
            }
        }
        scan.softcap != 0.0f ? capped(stages[(n - 1) % 3]) : exps(stages[(n - 1) % 3]);
    }
};

}  // namespace
}  // namespace edgekv
