// Declarations that the files of the C API share.
#pragma once

#include "kernels/isa.h"
#include "edgekv.h"
#include "attention/plane.h"

#include <string>

namespace edgekv {

constexpr Isa kAllIsa[] = { Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512bf16, Isa::amx, Isa::neon };
constexpr int kNumIsa   = sizeof(kAllIsa) / sizeof(kAllIsa[0]);

// keeps the sentence for this thread's edgekv_last_error() and returns the status
edgekv_status fail(edgekv_status status, const std::string & sentence);

// Ends the function with the status of a call that is not EDGEKV_OK.
#define EDGEKV_TRY(call)                                                \
    do {                                                                \
        if (const edgekv_status s_ = (call); s_ != EDGEKV_OK) return s_; \
    } while (false)

edgekv_status told(const Failure & failure);  // the same with a failure's sentence, or EDGEKV_OK

edgekv_status choose_isa();  // takes the instruction set that EDGEKV_ISA names, or the best
Isa selected_isa();

edgekv_status check_thread(const edgekv_context * ctx);  // EDGEKV_INVALID while another thread computes a ubatch
edgekv_status check_params(const edgekv_params & params);
edgekv_status check_selection(const edgekv_selection & s);

}  // namespace edgekv
