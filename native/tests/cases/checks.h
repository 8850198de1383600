// The checks of the native tests. Each is counted; one that fails says what was compared, in which case, and what came.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

namespace test {

constexpr int kMostPrinted = 20;
inline int failures = 0;
inline long n_checks = 0;

// CHECK(condition), or CHECK(condition, format, arguments...) with the case in words.
#define CHECK(condition, ...)                                                                \
    do {                                                                                     \
        ++test::n_checks;                                                                    \
        if (!(condition) && ++test::failures <= test::kMostPrinted) {                        \
            std::printf("FAIL %s:%d: %s:", __FILE__, __LINE__, #condition);                  \
            std::printf(" " __VA_ARGS__);                                                    \
            std::printf("\n");                                                               \
        }                                                                                    \
    } while (0)

// Who computed what.
template <class Case>
struct By {
    const Case & c;
    const char * kernels;
    std::string name() const { return std::string(kernels) + " " + c.name(); }
};
template <class Case>
By(const Case &, const char *) -> By<Case>;

// Returns `ok`. name() of `of` tells the case, and who computed it.
template <class Of>
bool expect(bool ok, const Of & of, const char * what, double got = 0.0, double want = 1.0) {
    ++n_checks;
    if (!ok && ++failures <= kMostPrinted) {
        std::printf("FAIL %s: got %.9g, want %.9g [%s]\n", what, got, want, of.name().c_str());
    }
    return ok;
}

template <class Of>
bool expect_equal(const Of & of, const char * what, double got, double want) { return expect(got == want, of, what, got, want); }

// NaN is near nothing. `worst` keeps the largest error, in units of its tolerance.
template <class Of>
bool expect_near(const Of & of, const char * what, double got, double want, double tolerance, double * worst = nullptr) {
    const double error = std::fabs(got - want);
    if (worst != nullptr && tolerance > 0.0) {
        *worst = std::max(*worst, error / tolerance);
    }
    return expect(error <= tolerance, of, what, got, want);
}

// Bit by bit: a NaN is the same as itself.
template <class T>
bool same(const std::vector<T> & a, const std::vector<T> & b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// The exit status of a test.
inline int finish() {
    std::printf("%ld checks, ", n_checks);
    std::printf(failures == 0 ? "ok\n" : "%d failures\n", failures);
    return failures == 0 ? 0 : 1;
}

}  // namespace test
