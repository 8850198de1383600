// Prints what the operations of one instruction set give, for a comparison with those of another: compiled with -DVECTORS="kernels/simd/simd_....h",
// for one of eight lanes.
#include VECTORS

#include <cmath>
#include <cstdio>
#include <cstring>

#include "kernels/simd/simd_exp.h"

using namespace edgekv;

namespace {

static_assert(kLanes == 8, "the values below");

// Of floats only such as all instruction sets sum and multiply without rounding.
alignas(64) float numbers[8][8];
alignas(64) int8_t bytes[8][32], few[32];
alignas(64) int16_t factors[2][16];
alignas(64) uint16_t halves[16];

template <class T>
void print(const char * operation, const T * x, int n) {
    std::printf("%s:", operation);
    for (int i = 0; i < n; ++i) {
        std::printf(" %.9g", static_cast<double>(x[i]));
    }
    std::printf("\n");
}
void show(const char * operation, F x) {
    float to[8];
    Simd::store(to, x);
    print(operation, to, 8);
}
void show(const char * operation, I x) {
    int32_t to[8];
    Simd::istore(to, x);
    print(operation, to, 8);
}
void show(const char * operation, double x) { print(operation, &x, 1); }

void fill() {
    unsigned state = 1;
    const auto random = [&] { return state = state * 1664525u + 1013904223u, state >> 16; };
    for (int i = 0; i < 8; ++i) {
        for (int j = 0; j < 8; ++j) {
            numbers[i][j] = static_cast<float>(static_cast<int>(random() % 4001) - 2000) / 16.0f;
        }
        for (int8_t & x : bytes[i]) {
            const int value = static_cast<int>(random() % 255) - 127;
            x = static_cast<int8_t>(i == 0 && value == 0 ? -128 : value);
        }
    }
    for (int i = 0; i < 32; ++i) {
        few[i] = static_cast<int8_t>(random() % 16);
        factors[i / 16][i % 16] = static_cast<int16_t>(static_cast<int>(random() % 32513) - 16256);
    }
    const uint16_t some[16] = {0, 0x8000, 1, 0x8001, 0x3ff, 0x400, 0x3c00, 0xbc01, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x3555, 0x4248, 0x0200, 0xd640};
    std::memcpy(halves, some, sizeof(some));
}

void floats() {
    const F a = Simd::load(numbers[0]), b = Simd::load(numbers[1]), c = Simd::load(numbers[2]), d = Simd::load(numbers[3]);
    show("add", Simd::add(a, b));
    show("sub", Simd::sub(a, b));
    show("mul", Simd::mul(a, b));
    show("div", Simd::div(a, Simd::set1(0.25f)));
    show("fma", Simd::fma(a, b, c));
    show("min", Simd::min(a, b));
    show("max", Simd::max(a, b));
    show("reduce_max", static_cast<double>(Simd::reduce_max(a)));
    show("sum", static_cast<double>(Simd::sum(a)));
    show("round", Simd::round(a));
    show("to_int", Simd::to_int(a));
    show("scale2", Simd::scale2(a, Simd::round(Simd::mul(b, Simd::set1(0.125f)))));
    show("zero_below", Simd::zero_below(a, b, c));
    show("where_positive", Simd::where_positive(a, b, c));
    show("any_above", Simd::any_above(a, b) + 2.0 * Simd::any_above(a, Simd::set1(1e9f)));
    show("all_same", Simd::all_same(a) + 2.0 * Simd::all_same(Simd::set1(3.0f)));
    show("quad", Simd::quad(a, b, c, d));
    const F parts[2] = {a, b};
    show("join", Simd::join(parts));
    const F bias = Simd::load_f16(reinterpret_cast<const char *>(halves + 8));  // has -inf and a number beside +inf
    show("visible_bits", static_cast<double>(Simd::visible_bits(bias)));
    show("add_bias", Simd::add_bias(Simd::where_positive(a, Simd::set1(std::nanf("")), a), Simd::set1(-INFINITY)));
    show("add_bias of numbers", Simd::add_bias(a, bias));
    show("softcap", vector_softcap(a, 30.0f));
    show("exp", vector_exp(Simd::sub(Simd::mul(a, Simd::set1(0.5f)), Simd::set1(10.0f))));
    show("exp of nothing", vector_exp(Simd::set1(-INFINITY)));
    F x[8];
    for (int i = 0; i < 8; ++i) {
        x[i] = Simd::load(numbers[i]);
    }
    Simd::transpose(x);
    for (const F & row : x) {
        show("transpose", row);
    }
}

void stored() {
    const char * h = reinterpret_cast<const char *>(halves), * codes = reinterpret_cast<const char *>(bytes[0]);
    show("load_f16", Simd::load_f16(h));
    show("load_f16", Simd::load_f16(h + 16));
    show("gather_f16", Simd::gather_f16(h, 4));
    show("dup_f16", Simd::dup_f16(h + 26));
    show("load_i8", Simd::load_i8(codes));
    show("load_q4", Simd::load_q4(codes, false));
    show("load_q4", Simd::load_q4(codes, true));
    show("load_upper_halves", Simd::load_upper_halves(h));
    uint16_t upper[16];
    Simd::store_upper_halves(upper, Simd::iload(bytes[0]), Simd::iload(bytes[1]));
    print("store_upper_halves", upper, 16);
    uint8_t low[8];
    Simd::store_low_bytes(low, Simd::iload(bytes[2]));
    print("store_low_bytes", low, 8);
}

void integers() {
    const I a = Simd::iload(bytes[0]), b = Simd::iload(bytes[1]), small = Simd::right<20>(a), n = Simd::icount(5);
    show("icount", n);
    show("iadd", Simd::iadd(small, n));
    show("isub", Simd::isub(small, 7));
    show("idiff", Simd::idiff(small, n));
    show("imax", Simd::imax(a, b));
    show("iand", Simd::iand(a, b));
    show("left", Simd::left<3>(n));
    show("right", Simd::right<0>(a));
    show("select", Simd::select(a, b, n));
    show("iprefix", Simd::iprefix(small));
    show("ilast", Simd::ilast(a));
    show("lanes_of", Simd::lanes_of(a, b, 0x95));
    show("lanes_differ", static_cast<double>(Simd::lanes_differ(a, Simd::lanes_of(a, b, 0x36))));
    show("where_bits", Simd::where_bits(a, Simd::iset1(2), Simd::set1(1.0f), Simd::set1(2.0f)));
    int32_t rows[8] = {};
    const int appended = Simd::append(rows, a, 0xb2);
    print("append", rows, appended);
    show("fold4", Simd::fold4(small, n, Simd::right<21>(b), Simd::right<19>(b), [](I x, I y) { return Simd::iadd(x, y); }));
    I k[4];
    for (int i = 0; i < 4; ++i) {
        k[i] = Simd::iload(bytes[i]);
    }
    Simd::turn4(k);
    for (const I & row : k) {
        show("turn4", row);
    }
    I sums[2];
    Simd::block_sums(k, sums);
    show("block_sums", sums[0]);
    Simd::turn_groups<2>(k, sums);
    show("turn_groups", sums[0]);
    show("turn_groups", sums[1]);
    show("groups_at", Simd::groups_at([](int g) { return g == 0 ? reinterpret_cast<const char *>(bytes[3]) : nullptr; }));
}

void products() {
    const I a = Simd::iload(bytes[0]), q = Simd::iload(bytes[1]), codes = Simd::iload(few);
    if (!Simd::kBiasedK) {
        show("dot4", Simd::dot4(Simd::icount(3), a, q));
        show("dot4_stored", Simd::dot4_stored(Simd::icount(3), a, q));
    }
    I acc = Simd::izero();
    for (int i = 0; i < 8; ++i) {
        acc = Simd::code_dot(acc, codes, Simd::iload(bytes[i]));
    }
    show("code_sums", Simd::code_sums(Simd::icount(1), acc));
    show("scale_bytes", Simd::scale_bytes(a, Simd::iload(factors[0]), Simd::iload(factors[1])));
}

}  // namespace

int main() {
    fill();
    floats();
    stored();
    integers();
    products();
}
