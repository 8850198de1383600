// Whether this processor and its kernel allow tiles (AMX), bf16 products, and AVX-VNNI.
#pragma once

namespace edgekv {

bool tiles_usable();  // AMX_TILE and AMX_BF16; asks the kernel for them once, for all threads of the process
bool has_avx512_bf16();
bool has_avx_vnni();

}  // namespace edgekv
