// The C functions for instruction sets: a list of them, and the choice of the kernels' set.
#include "api/internal.h"
#include "attention/cpu/product_nodes.h"

#include <cstdlib>
#include <cstring>
#include <string>

using namespace edgekv;

namespace {

Isa g_isa = Isa::portable;

}  // namespace

namespace edgekv {

edgekv_status choose_isa() {
    const char * wanted = std::getenv("EDGEKV_ISA");
    if (!wanted || !*wanted) {
        g_isa = isa_best();
        return EDGEKV_OK;
    }

    std::string names;
    for (const Isa isa : kAllIsa) {
        if (std::strcmp(wanted, isa_name(isa)) == 0) {
            if (!isa_supported(isa)) {
                return fail(EDGEKV_UNSUPPORTED, std::string("EDGEKV_ISA=") + wanted + " is not available on this machine or in this build; leave it out to use the best that is");
            }
            g_isa = isa;
            return EDGEKV_OK;
        }
        names += std::string(names.empty() ? "" : ", ") + isa_name(isa);
    }
    return fail(EDGEKV_INVALID, std::string("EDGEKV_ISA=") + wanted + " is not known; use one of: " + names);
}

Isa selected_isa() { return g_isa; }

}  // namespace edgekv

const char * edgekv_isa_name(int isa) { return isa >= 0 && isa < kNumIsa ? isa_name(kAllIsa[isa]) : nullptr; }

bool edgekv_isa_supported(int isa) { return isa >= 0 && isa < kNumIsa && isa_supported(kAllIsa[isa]); }

int edgekv_isa(void) { return static_cast<int>(selected_isa()); }

bool edgekv_multiplies(edgekv_weights kind) { return has_product(static_cast<ggml_type>(kind.type), kind.layout); }

edgekv_status edgekv_use_isa(int isa) {
    if (!edgekv_isa_supported(isa)) {
        return fail(EDGEKV_UNSUPPORTED, "there is no such instruction set here");
    }
    g_isa = kAllIsa[isa];
    return EDGEKV_OK;
}
