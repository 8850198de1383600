// The table of functions that libedgekv takes from libedgekv-cuda or libedgekv-emulated.
#include "cuda/engine/gpu_engine.h"
#include "cuda/engine/pinning.h"
#include "cuda/engine/rates.h"
#include "cuda/engine/trial.h"

#include <cstdio>
#include <memory>

namespace edgekv::gpu {
namespace {

thread_local std::string t_error;

#if defined(__CUDACC__)
constexpr edgekv_device_kind kKind = EDGEKV_DEVICE_CUDA;
#else
constexpr edgekv_device_kind kKind = EDGEKV_DEVICE_EMULATED;
#endif

constexpr int kLeastArch = 75;

bool info(int index, edgekv_device_info * out) {
    Device found;
    *out = {};
    out->kind  = kKind;
    out->index = index;
    t_error.clear();
    if (!device(index, found)) {
        return false;
    }

    std::snprintf(out->name, sizeof(out->name), "%s", found.name.c_str());
    out->arch        = found.arch;
    out->driver      = found.driver;
    out->runtime     = found.runtime;
    out->n_sm        = found.n_sm;
    out->total_bytes = found.total_bytes;
    out->free_bytes  = found.free_bytes;
    out->has_display = found.has_display;
    out->pins_later  = found.pins_later;

    std::string problem;
    if (kKind == EDGEKV_DEVICE_CUDA && found.arch < kLeastArch) {
        problem = "the card has compute capability " + std::to_string(found.arch/10) + "." + std::to_string(found.arch%10) +
                  "; EdgeKV's kernels need 7.5 or newer";
    } else if (!found.has_kernels) {
        problem = "this build has no code for compute capability " + std::to_string(found.arch/10) + "." + std::to_string(found.arch%10) +
                  "; build again on this machine with EDGEKV_CUDA=on";
    } else if (!found.maps_host) {
        problem = "its kernels cannot read pinned host memory";
    }
    out->usable = problem.empty();
    std::snprintf(out->problem, sizeof(out->problem), "%s", problem.c_str());
    return true;
}

bool rates(int index, size_t host_bytes, edgekv_rates * out) {
    Rates seen;
    t_error.clear();
    if (!measure_rates(index, host_bytes, seen)) {
        return false;
    }
    *out = { seen.link_copy, seen.link_gather, seen.link_rows, seen.link_pageable, seen.vram, seen.dram, seen.launch_us };
    return true;
}

Engine * make(int index, const EngineShape & shape, void * stream) {
    t_error.clear();
    auto plane = std::make_unique<GpuEngine>(index, shape, stream);
    return plane->init() ? plane.release() : nullptr;
}

bool pins(int index, size_t n_bytes) {
    void * p = nullptr;
    const bool pinned = use_device(index) && alloc_pinned(&p, n_bytes);
    free_pinned(p);
    return pinned;
}

bool pin_part(int index, char * p, size_t n_bytes, char * home, size_t home_bytes) {
    t_error.clear();
    return use_device(index) && pin(p, n_bytes, home, home_bytes);
}

void unpin_part(int index, char * p) {
    use_device(index);
    unpin(p);
}

bool time_parts(int index, size_t n_bytes, edgekv_pinning * out) {
    t_error.clear();
    return time_pinning(index, n_bytes, *out);
}

// tells our own sentence once: a later failure may be the device's
const char * error() {
    static thread_local std::string told;
    told = t_error.empty() ? last_error() : t_error;
    t_error.clear();
    return told.c_str();
}

}  // namespace

bool fail_with(const std::string & sentence) {
    t_error = sentence;
    return false;
}

std::string mebibytes(size_t n_bytes) { return std::to_string((n_bytes + (1u << 20) - 1) >> 20) + " MiB"; }

}  // namespace edgekv::gpu

const edgekv::DeviceLibrary * edgekv_device_library() {
    using namespace edgekv::gpu;
    static const edgekv::DeviceLibrary library = {
        edgekv::kEngineAbi, kKind, device_count, info, rates, make, is_pinned, pins, pin_part, unpin_part, time_parts, try_attend, try_store, error,
    };
    return &library;
}
