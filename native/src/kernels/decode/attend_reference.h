// The common part of the specifications of attend.h and prompt.h.
#pragma once

#include "kernels/decode/attend.h"

namespace edgekv {

// The differences between the two specifications.
struct ReferenceRules {
    bool quantised_queries;  // where K is in blocks
    const uint8_t * dropped;
    size_t dropped_stride;
    int first_observed;  // token
};

void attend_by_rules(const AttendProblem & problem, const ReferenceRules & rules);

}  // namespace edgekv
