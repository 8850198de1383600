#include "kernels/simd/simd_avx512.h"
// The headers below use its Simd.
#include "kernels/prefill/prompt_bf16.h"

namespace edgekv {
namespace {

// Sums over V by products of pairs in vectors. Scores stay in single precision, because split operands would need three such products.
struct ValuesPairs : ValuesBf16 {
    template <int NV>
    static void add_of(const int32_t * v, int head_dim, const Panels & p) {
        constexpr int height = Simd::prompt_height(NV);
        constexpr int n = kPromptCells / kPair;
        for (int d = 0; d < head_dim; d += height) {
            F sums[height][NV];
            EDGEKV_UNROLL
            for (int i = 0; i < height; ++i) {
                EDGEKV_UNROLL
                for (int j = 0; j < NV; ++j) {
                    float * acc = p.acc[j] + (d + i) * kLanes;
                    sums[i][j] = p.factor[j] ? Simd::mul(Simd::load(acc), Simd::load(p.factor[j])) : Simd::load(acc);
                }
            }
            for (int k = 0; k < n; ++k) {
                I w[NV];
                EDGEKV_UNROLL
                for (int j = 0; j < NV; ++j) {
                    w[j] = Simd::iload(p.scores[j] + k * kLanes);
                }
                EDGEKV_UNROLL
                for (int i = 0; i < height; ++i) {
                    const I x = Simd::iset1(v[(d + i) * n + k]);
                    EDGEKV_UNROLL
                    for (int j = 0; j < NV; ++j) {
                        sums[i][j] = _mm512_dpbf16_ps(sums[i][j], (__m512bh) x, (__m512bh) w[j]);
                    }
                }
            }
            EDGEKV_UNROLL
            for (int i = 0; i < height; ++i) {
                EDGEKV_UNROLL
                for (int j = 0; j < NV; ++j) {
                    Simd::store(p.acc[j] + (d + i) * kLanes, sums[i][j]);
                }
            }
        }
    }
    static void add(const char * v, int, int head_dim, const Panels & p) {
        for_count<Simd::kPromptPanels>(p.n, [&](auto n) { add_of<n>(reinterpret_cast<const int32_t *>(v), head_dim, p); });
    }
};

}  // namespace

const PromptKernels kPromptAvx512Bf16 = {attend_item<KeysF32, ValuesPairs>};

}  // namespace edgekv
