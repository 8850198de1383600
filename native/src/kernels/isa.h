// The instruction sets that have kernels, and this processor's support for them.
#pragma once

namespace edgekv {

// avx512bf16 and amx are for prompts; if they lack a kernel, avx512's runs. neon: AArch64.
enum class Isa : int { portable = 0, avx2 = 1, avx512 = 2, avx512bf16 = 3, amx = 4, neon = 5 };

bool isa_supported(Isa isa);  // compiled in and present on this CPU
Isa isa_best();
const char * isa_name(Isa isa);

}  // namespace edgekv
