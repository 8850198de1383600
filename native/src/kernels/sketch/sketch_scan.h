// The scan of a KV head's groups for its queries, kLanes cells at a time, with a cell in each lane.
#pragma once

#include "kernels/sketch/sketch_build.h"
#include "kernels/sketch/sketch_keys.h"
#include "kernels/sketch/sketch_shares.h"

namespace edgekv {
namespace {

constexpr int kNever = -(1 << 30);  // far below any dot product

// Lane r: all lanes of query r in one.
template <int NQ, class Op>
inline I fold_queries(const I (&x)[NQ], Op op) {
    return Simd::fold4(x[0], x[NQ > 1 ? 1 : 0], x[NQ > 2 ? 2 : 0], x[NQ > 3 ? 3 : NQ > 1 ? 1 : 0], op);
}

// The sketches of one head.
struct SketchedHead {
    const SketchLayout & layout;
    const char * data;

    const char * codes(int group) const { return data + static_cast<size_t>(group) * static_cast<size_t>(layout.code_bytes); }
    const char * params(int group) const {
        return data + layout.params_offset + static_cast<size_t>(group) * static_cast<size_t>(layout.param_bytes);
    }
    void fetch(int group) const {
        const size_t at = static_cast<size_t>(group) * static_cast<size_t>(layout.code_bytes);
        for (int i = 0; at < layout.params_offset && i < layout.code_bytes; i += 64) {
            Simd::prefetch(data + at + i);
        }
    }
};

constexpr int kVectors = kGroupCells / kLanes;

// What is known of a group when its cells have met NQ queries: logit = base + slope * dot.
template <int NQ>
struct Dots {
    int group;
    alignas(64) float base[kLanes];
    alignas(64) float slope[kLanes];
    alignas(64) int32_t most[kLanes];  // of the dots
    alignas(64) int32_t dots[NQ][kGroupCells];
};

// Keeps the visible cells; the others become kNever.
template <int NQ>
void hide_dots(Dots<NQ> & s, uint64_t visible) {
    I most[NQ];
    for (int r = 0; r < NQ; ++r) {
        most[r] = Simd::iset1(kNever);
        for (int v = 0; v < kVectors; ++v) {
            const I seen = Simd::lanes_of(Simd::iset1(kNever), Simd::iload(s.dots[r] + v * kLanes), lane_bits(visible, v));
            Simd::istore(s.dots[r] + v * kLanes, seen);
            most[r] = Simd::imax(most[r], seen);
        }
    }
    Simd::istore(s.most, fold_queries(most, [](I x, I y) { return Simd::imax(x, y); }));
}

template <int NQ>
void share_capped(const Dots<NQ> & s, int r, float softcap, uint64_t visible, const QueryShares & out) {
    alignas(64) float logits[kGroupCells];
    for (int c = 0; c < kGroupCells; c += kLanes) {
        Simd::store(logits + c, Simd::fma(Simd::to_float(Simd::iload(s.dots[r] + c)), Simd::set1(s.slope[r]), Simd::set1(s.base[r])));
    }
    cap_and_share(logits, softcap, visible, out);
}

template <bool kWhole, int NQ>
inline I share_query(const Dots<NQ> & s, int r, float rate, uint64_t visible, uint16_t * out) {
    F sum = Simd::zero();
    EDGEKV_UNROLL
    for (int v = 0; v < kVectors; v += 2) {
        I e[2];
        EDGEKV_UNROLL
        for (int i = 0; i < 2; ++i) {
            const F below = Simd::to_float(Simd::idiff(Simd::iload(s.dots[r] + (v + i) * kLanes), Simd::iset1(s.most[r])));
            e[i] = crude_exp2(Simd::fma(below, Simd::set1(rate), Simd::set1(127.0f * 0x1p23f)));
            if constexpr (!kWhole) {
                e[i] = Simd::lanes_of(Simd::izero(), e[i], lane_bits(visible, v + i));  // a slope of 0 makes everything the same
            }
            sum = Simd::add(sum, Simd::as_float(e[i]));
        }
        Simd::store_upper_halves(out + v * kLanes, e[0], e[1]);
    }
    return Simd::as_int(sum);
}

template <int NQ>
void share(Dots<NQ> & s, float softcap, const Sight * sight, const Shares & out, int first_query) {
    const uint64_t visible = sight[s.group].visible;
    if (softcap != 0.0f) {
        for (int r = 0; r < NQ; ++r) {
            share_capped(s, r, softcap, visible, shares_of(out, first_query + r, s.group));
        }
        return;
    }
    const bool whole = visible == ~uint64_t{0};
    if (!whole) {
        hide_dots(s, visible);
    }
    alignas(64) float top[kLanes], rate[kLanes], sum[kLanes];
    const F slope = Simd::load(s.slope);
    Simd::store(top, Simd::add(Simd::load(s.base), Simd::mul(slope, Simd::to_float(Simd::iload(s.most)))));
    Simd::store(rate, Simd::mul(slope, Simd::set1(1.44269504f * 0x1p23f)));
    I sums[NQ];
    EDGEKV_UNROLL
    for (int r = 0; r < NQ; ++r) {
        const QueryShares shares = shares_of(out, first_query + r, s.group);
        sums[r] = whole ? share_query<true>(s, r, rate[r], visible, shares.cells) : share_query<false>(s, r, rate[r], visible, shares.cells);
    }
    Simd::store(sum, Simd::as_float(fold_queries(sums, [](I a, I b) { return Simd::as_int(Simd::add(Simd::as_float(a), Simd::as_float(b))); })));
    for (int r = 0; r < NQ; ++r) {
        const QueryShares shares = shares_of(out, first_query + r, s.group);
        *shares.top = top[r];
        *shares.sum = sum[r];
    }
}

// NQ queries of one token. T: triples of dwords that hold a cell's codes, or kAny.
template <int T, int NQ>
class QueriesScan {
public:
    QueriesScan(const SketchLayout & layout, const char * queries, float cap) :
        n_triples(T != kAny ? T : layout.n_dwords / 3), padded(T != kAny ? kMostPadded : layout.padded), softcap(cap) {
        for (int r = 0; r < NQ; ++r) {
            const char * query = queries + static_cast<size_t>(r) * query_bytes(padded);
            const SketchQueryHeader header = query_header(query);
            q[r] = query + kQueryOffset;
            fine[r] = header.fine * 32768.0f;
            coarse[r] = header.coarse;
            excess[r] = Simd::kBiasedK ? header.excess : 0;
        }
    }

    // Scans groups [first, end), three at a time: the factors of one, the dot products of the previous, the shares of the one before that. So
    // no stage waits for its operands. The first queries to pass over the codes prefetch them.
    void run(const SketchedHead & head, const Sight * sight, int first, int end, const Shares & out, int first_query) {
        const bool fetches = first_query == 0;
        const auto seen_from = [&](int group) {
            while (group < end && sight[group].visible == 0) {
                for (int r = 0; r < NQ; ++r) {
                    see_nothing(shares_of(out, first_query + r, group));
                }
                ++group;
            }
            return group;
        };
        Stage *before = &stages[0], *now = &stages[1], *ahead = &stages[2];
        if (fetches) {
            head.fetch(first);
            head.fetch(first + 1);
        }
        before->group = end;
        for (now->group = seen_from(first), start(head, *now, end); now->group < end;) {
            ahead->group = seen_from(now->group + 1);
            start(head, *ahead, end);
            if (fetches && ahead->group < end) {
                head.fetch(ahead->group + 1);
            }
            make_dots(head.codes(now->group), *now);
            if (before->group < end) {
                share(*before, softcap, sight, out, first_query);
            }
            Stage * const done = before;
            before = now;
            now = ahead;
            ahead = done;
        }
        if (before->group < end) {
            share(*before, softcap, sight, out, first_query);
        }
    }

private:
    static constexpr int kMostTriples = T != kAny ? T : kMaxHeadDim / 32;
    static constexpr int kMostPadded = (32 * kMostTriples + 63) / 64 * 64;
    // vectors of cells that share the loads of the factors
    static constexpr int kKeys = NQ * 4 <= Simd::kCodeChains ? 4 : NQ * 2 <= Simd::kCodeChains ? 2 : 1;
    static constexpr int kFlush = Simd::kCodeDots / 8;  // triples after which code_dot() must be summed up

    // A group at work.
    struct Stage : Dots<NQ> {
        alignas(64) char factor[NQ][kMostPadded];
    };

    inline void start(const SketchedHead & head, Stage & s, int end) const {
        if (s.group < end) {
            make_factors(head.params(s.group), s);
        }
    }

    inline void make_factors(const char * params, Stage & s) const {
        float scale[2];
        memcpy(scale, params, sizeof(scale));
        const char * low = params + kParamHeader;
        I sums[NQ];
        for (int r = 0; r < NQ; ++r) {
            sums[r] = Simd::izero();
        }
        const int n = T != kAny ? kMostPadded : padded;
        const auto scale_some = [&](int i) {
            const I lows = Simd::iload(low + i), steps = Simd::iload(low + n + i);
            EDGEKV_UNROLL
            for (int r = 0; r < NQ; ++r) {
                sums[r] = Simd::dot4_stored(sums[r], lows, Simd::iload(q[r] + 2 * n + i));
                Simd::istore(s.factor[r] + i, Simd::scale_bytes(steps, Simd::iload(q[r] + i), Simd::iload(q[r] + n + i)));
            }
        };
        if constexpr (T != kAny) {
            EDGEKV_UNROLL
            for (int i = 0; i < kMostPadded; i += 4 * kLanes) {
                scale_some(i);
            }
        } else {
            for (int i = 0; i < n; i += 4 * kLanes) {
                scale_some(i);
            }
        }
        const I sum = Simd::idiff(fold_queries(sums, [](I a, I b) { return Simd::iadd(a, b); }), Simd::iload(excess));
        Simd::store(s.base, Simd::mul(Simd::to_float(sum), Simd::mul(Simd::set1(scale[1]), Simd::load(coarse))));
        Simd::store(s.slope, Simd::mul(Simd::set1(scale[0]), Simd::load(fine)));
    }

    template <int Quad>
    inline void dot_quad(I (&acc)[kKeys][NQ], const I (&code)[kKeys], const Stage & s, int triple) const {
        EDGEKV_UNROLL
        for (int r = 0; r < NQ; ++r) {
            I f = Simd::idup4(s.factor[r] + 32 * triple + 4 * Quad);
            if constexpr (kKeys > 1) {
                Simd::in_register(f);
            }
            EDGEKV_UNROLL
            for (int k = 0; k < kKeys; ++k) {
                acc[k][r] = Simd::code_dot(acc[k][r], code[k], f);
            }
        }
    }

    inline void make_dots(const char * codes, Stage & s) const {
        const I seven = Simd::iset1(0x07070707), three = Simd::iset1(0x03030303);
        I most[NQ];
        for (int r = 0; r < NQ; ++r) {
            most[r] = Simd::iset1(kNever);
        }
        for (int v = 0; v < kVectors; v += kKeys) {
            I acc[kKeys][NQ], total[kKeys][NQ];
            EDGEKV_UNROLL
            for (int k = 0; k < kKeys; ++k) {
                EDGEKV_UNROLL
                for (int r = 0; r < NQ; ++r) {
                    acc[k][r] = total[k][r] = Simd::izero();
                }
            }
            const int triples = T != kAny ? T : n_triples;
            const auto dot_triple = [&](int t) {
                I a[kKeys], b[kKeys], c[kKeys], code[kKeys];
                const auto each = [&](auto op) {
                    EDGEKV_UNROLL
                    for (int k = 0; k < kKeys; ++k) {
                        code[k] = op(k);
                    }
                };
                EDGEKV_UNROLL
                for (int k = 0; k < kKeys; ++k) {
                    const int cell = (v + k) * kLanes;
                    const char * at = codes + (cell / kVectorCells * 3 * triples + 3 * t) * kVectorBytes + cell % kVectorCells * 4;
                    a[k] = Simd::iload(at);
                    b[k] = Simd::iload(at + kVectorBytes);
                    c[k] = Simd::iload(at + 2 * kVectorBytes);
                }
                each([&](int k) { return Simd::iand(a[k], seven); });
                dot_quad<0>(acc, code, s, t);
                each([&](int k) { return Simd::iand(Simd::right<3>(a[k]), seven); });
                dot_quad<1>(acc, code, s, t);
                each([&](int k) { return Simd::iand(b[k], seven); });
                dot_quad<2>(acc, code, s, t);
                each([&](int k) { return Simd::iand(Simd::right<3>(b[k]), seven); });
                dot_quad<3>(acc, code, s, t);
                each([&](int k) { return Simd::iand(c[k], seven); });
                dot_quad<4>(acc, code, s, t);
                each([&](int k) { return Simd::iand(Simd::right<3>(c[k]), seven); });
                dot_quad<5>(acc, code, s, t);
                each([&](int k) { return Simd::iand(Simd::select(three, Simd::right<6>(a[k]), Simd::right<4>(b[k])), seven); });
                dot_quad<6>(acc, code, s, t);
                each([&](int k) { return Simd::iand(Simd::select(three, Simd::right<6>(c[k]), Simd::right<5>(b[k])), seven); });
                dot_quad<7>(acc, code, s, t);
                if (t % kFlush == kFlush - 1 || t == triples - 1) {
                    EDGEKV_UNROLL
                    for (int k = 0; k < kKeys; ++k) {
                        EDGEKV_UNROLL
                        for (int r = 0; r < NQ; ++r) {
                            total[k][r] = Simd::code_sums(total[k][r], acc[k][r]);
                            acc[k][r] = Simd::izero();
                        }
                    }
                }
            };
            if constexpr (T != kAny) {
                EDGEKV_UNROLL
                for (int t = 0; t < T; ++t) {
                    dot_triple(t);
                }
            } else {
                for (int t = 0; t < triples; ++t) {
                    dot_triple(t);
                }
            }
            EDGEKV_UNROLL
            for (int k = 0; k < kKeys; ++k) {
                EDGEKV_UNROLL
                for (int r = 0; r < NQ; ++r) {
                    Simd::istore(s.dots[r] + (v + k) * kLanes, total[k][r]);
                    most[r] = Simd::imax(most[r], total[k][r]);
                }
            }
        }
        Simd::istore(s.most, fold_queries(most, [](I x, I y) { return Simd::imax(x, y); }));
    }

    const char * q[NQ];
    int n_triples, padded;
    float softcap;
    alignas(64) float fine[kLanes] = {};
    alignas(64) float coarse[kLanes] = {};
    alignas(64) int32_t excess[kLanes] = {};
    Stage stages[3];
};

constexpr int kBlockGroups = 16;  // groups that stay in the cache while all queries pass over them

template <int T>
void scan_head(const SketchedHead & head, const SketchQuery & query, const char * prepared, int first, int n, const Shares & out) {
    const size_t bytes = query_bytes(head.layout.padded);
    for (int from = first; from < first + n; from += kBlockGroups) {
        const int end = from + kBlockGroups < first + n ? from + kBlockGroups : first + n;
        for (int token = 0; token < query.n_tokens; ++token) {
            const Sight * sight = query.sight + static_cast<size_t>(token) * query.sight_stride;
            const int first_of_token = token * query.group;
            const int n_parts = (query.group + Simd::kQueries - 1) / Simd::kQueries;
            for (int part = 0, done = 0; part < n_parts; ++part) {
                const int count = (query.group - done + n_parts - part - 1) / (n_parts - part);  // as even as it gets
                for_count<Simd::kQueries>(count, [&](auto n) {
                    QueriesScan<T, n> scan(head.layout, prepared + static_cast<size_t>(first_of_token + done) * bytes, query.softcap);
                    scan.run(head, sight, from, end, out, first_of_token + done);
                });
                done += count;
            }
        }
    }
}

inline void scan(const Sketch & sketch, const SketchLayout & layout, const SketchQuery & query, const char * prepared, int head, int first,
                 int n, const Shares & out) {
    const SketchedHead of_head{layout, sketch.data + static_cast<size_t>(head) * layout.head_bytes};
#if !defined(EDGEKV_ANY_HEAD_DIM)
    switch (layout.n_dwords / 3) {
        case 2: return scan_head<2>(of_head, query, prepared, first, n, out);
        case 3: return scan_head<3>(of_head, query, prepared, first, n, out);
        case 4: return scan_head<4>(of_head, query, prepared, first, n, out);
        case 8: return scan_head<8>(of_head, query, prepared, first, n, out);
    }
#endif
    scan_head<kAny>(of_head, query, prepared, first, n, out);
}

}  // namespace
}  // namespace edgekv
