// What the specifications of attend.h and of prompt.h have in common.
#pragma once

#include "kernels/attend/attend.h"

namespace edgekv {

// What one specification does otherwise than the other.
struct ReferenceRules {
    bool quantised_queries;  // where K is q8_0
    const uint8_t * dropped;
    size_t dropped_stride;
    int first_observed;  // token
};

void attend_by_rules(const AttendProblem & problem, const ReferenceRules & rules);

}  // namespace edgekv
