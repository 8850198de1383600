// Linked with each program: a run that is cut says how far it came.
#include "checks.h"

namespace {

struct AtEnd {
    ~AtEnd() { std::fprintf(stderr, "PTX CHECKS: %ld, %d failures\n", test::n_checks, test::failures); }
} at_end;

}  // namespace
