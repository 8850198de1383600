// What AVX2 and AVX-512 say in the same words. Each Simd includes it, after macros that make the names: MM(x) is _mm256_x or _mm512_x, MM_SI(x) is
// _mm256_x_si256 or _mm512_x_si512, and MM_VNNI(x), where the translation unit has such instructions, is _mm256_x_avx_epi32 or _mm512_x_epi32.

static F zero() { return MM(setzero_ps)(); }
static F set1(float x) { return MM(set1_ps)(x); }
static F load(const void * p) { return MM(loadu_ps)(static_cast<const float *>(p)); }
static void store(void * p, F a) { MM(storeu_ps)(static_cast<float *>(p), a); }
static F add(F a, F b) { return MM(add_ps)(a, b); }
static F sub(F a, F b) { return MM(sub_ps)(a, b); }
static F mul(F a, F b) { return MM(mul_ps)(a, b); }
static F div(F a, F b) { return MM(div_ps)(a, b); }
static F fma(F a, F b, F c) { return MM(fmadd_ps)(a, b, c); }
static F min(F a, F b) { return MM(min_ps)(a, b); }
static F max(F a, F b) { return MM(max_ps)(a, b); }
static void prefetch(const char * p) { _mm_prefetch(p, _MM_HINT_T1); }

// Every 128-bit group of the result is [sum a, sum b, sum c, sum d] over that group of the inputs.
static F quad(F a, F b, F c, F d) {
    const F ab = add(MM(unpacklo_ps)(a, b), MM(unpackhi_ps)(a, b));
    const F cd = add(MM(unpacklo_ps)(c, d), MM(unpackhi_ps)(c, d));
    return add(MM(shuffle_ps)(ab, cd, 0x44), MM(shuffle_ps)(ab, cd, 0xee));
}

static I izero() { return MM_SI(setzero)(); }
static I iload(const void * p) { return MM_SI(loadu)(static_cast<const I *>(p)); }
static void istore(void * p, I a) { MM_SI(storeu)(static_cast<I *>(p), a); }
static I iset1(int x) { return MM(set1_epi32)(x); }
static I idup4(const char * p) { return iset1(four_bytes(p)); }  // to every lane
static I dup16(const void * p) { return dup_group(_mm_loadu_si128(static_cast<const __m128i *>(p))); }
static I iadd(I a, I b) { return MM(add_epi32)(a, b); }
static I idiff(I a, I b) { return MM(sub_epi32)(a, b); }
static I isub(I a, int b) { return idiff(a, iset1(b)); }
static I imax(I a, I b) { return MM(max_epi32)(a, b); }
static I min_bytes(I a, I b) { return MM(min_epu8)(a, b); }
static I iand(I a, I b) { return MM_SI(and)(a, b); }
static I ior(I a, I b) { return MM_SI(or)(a, b); }
static I ixor(I a, I b) { return MM_SI(xor)(a, b); }
static F to_float(I a) { return MM(cvtepi32_ps)(a); }
static I to_int(F a) { return MM(cvtps_epi32)(a); }  // nearest, ties to even
template <int N>
static I left(I a) { return MM(slli_epi32)(a, N); }
template <int N>
static I right(I a) { return N == 0 ? a : MM(srli_epi32)(a, N); }  // without sign
static I right_by(I a, int n) { return MM(srl_epi32)(a, _mm_cvtsi32_si128(n)); }
static I shuffle_bytes(I a, I which) { return MM(shuffle_epi8)(a, which); }  // in every group
template <int N>
static F fourth(F a) { return MM(permute_ps)(a, N * 0x55); }  // the N-th lane of every group, to all its lanes

// 16 bytes at each of the addresses at(group); zeros for null.
template <class At>
[[gnu::always_inline]] static I groups_at(At at) {
    return lanes16([&](int g) {
        const char * p = at(g);
        return p != nullptr ? _mm_loadu_si128(reinterpret_cast<const __m128i *>(p)) : _mm_setzero_si128();
    });
}

// Transposes 4 x 4 dwords in every 128-bit group.
static void turn4(I * k) {
    const I ab0 = MM(unpacklo_epi32)(k[0], k[1]), ab1 = MM(unpackhi_epi32)(k[0], k[1]);
    const I cd0 = MM(unpacklo_epi32)(k[2], k[3]), cd1 = MM(unpackhi_epi32)(k[2], k[3]);
    k[0] = MM(unpacklo_epi64)(ab0, cd0);
    k[1] = MM(unpackhi_epi64)(ab0, cd0);
    k[2] = MM(unpacklo_epi64)(ab1, cd1);
    k[3] = MM(unpackhi_epi64)(ab1, cd1);
}

// dot4(): acc + the dot products of 4 int8 in every dword; with kBiasedK it sees k + 128.
// code_dot(): four u8 codes <= 7 times four i8, summed in a form that code_sums() turns into one int per lane. At most kCodeDots in a row, with codes <= 15
// eight; kCodeChains chains hide the latency of one.
// scaled_sums(): adds what code_dot() summed, at most 2^15, times i16 factors: one in the low half of each int, with kWideSums 0 in the high half, else the
// same again.
#ifdef MM_VNNI
static constexpr bool kBiasedK = true, kWideSums = true;
static constexpr int kCodeDots = 1 << 20;
static I dot4(I acc, I k, I q) { return MM_VNNI(dpbusd)(acc, k, q); }
static I code_dot(I acc, I codes, I q) { return dot4(acc, codes, q); }
static I code_sums(I total, I acc) { return iadd(total, acc); }
static I scaled_sums(I total, I acc, I factors) { return MM_VNNI(dpwssd)(total, acc, factors); }
#else
static constexpr bool kBiasedK = false, kWideSums = false;
static constexpr int kCodeDots = 16;
static I dot4(I acc, I k, I q) { return scaled_sums(acc, MM(maddubs_epi16)(MM(abs_epi8)(k), with_signs(q, k)), MM(set1_epi16)(1)); }
static I code_dot(I acc, I codes, I q) { return MM(add_epi16)(acc, MM(maddubs_epi16)(codes, q)); }
static I code_sums(I total, I acc) { return scaled_sums(total, acc, MM(set1_epi16)(1)); }
static I scaled_sums(I total, I acc, I factors) { return iadd(total, MM(madd_epi16)(acc, factors)); }
#endif
static I flipped(I bytes) { return ixor(bytes, MM(set1_epi8)(-128)); }
// Into the form that dot4() takes.
static void transpose4(I * k) {
    turn4(k);
    for (int i = 0; kBiasedK && i < 4; ++i) {
        k[i] = flipped(k[i]);
    }
}
// Like dot4(), but for values stored as value + 128: with kBiasedK, each call adds 128 * (sum of q).
static I dot4_stored(I acc, I k, I q) { return dot4(acc, kBiasedK ? k : flipped(k), q); }
// u8 times i16 / 2^15, rounded, as i8; of each 16 channels the first eight factors are in `lo`, the others in `hi`.
static I scale_bytes(I a, I lo, I hi) {
    const I first = MM(mulhrs_epi16)(MM(unpacklo_epi8)(a, izero()), lo);
    return MM(packs_epi16)(first, MM(mulhrs_epi16)(MM(unpackhi_epi8)(a, izero()), hi));
}

#undef MM
#undef MM_SI
#undef MM_VNNI
