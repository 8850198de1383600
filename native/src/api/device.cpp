// The C functions of edgekv.h about devices.
#include "api/guard.h"
#include "context/context.h"
#include "attention/backends.h"
#include "attention/cuda/library.h"

using namespace edgekv;

bool edgekv_get_device(const edgekv_context * ctx, edgekv_device * out) { return ctx->plane->describe(*out); }

edgekv_status edgekv_limit_arena(edgekv_context * ctx, int n_slots) {
    if (n_slots < 0) {
        return fail(EDGEKV_INVALID, "an arena cannot have " + std::to_string(n_slots) + " slots");
    }
    return guarded([&] { return told(ctx->plane->limit_slots(n_slots)); });
}

edgekv_status edgekv_device_problem(const edgekv_context * ctx, const char ** sentence) {
    *sentence = ctx->problem.sentence.c_str();
    return ctx->problem.status;
}

const char * edgekv_device_folder() { return device_folder().path.c_str(); }

const char * edgekv_plugin_problem() { return device_folder().problem.c_str(); }

int edgekv_device_count(edgekv_device_kind kind) {
    const DeviceLibrary * library = open_device_library(kind);
    return library ? library->count() : 0;
}

namespace {

edgekv_status find_library(edgekv_device_kind kind, int index, const DeviceLibrary *& library) {
    library = open_device_library(kind);
    if (!library) {
        const std::string & problem = device_folder().problem;
        return fail(EDGEKV_UNSUPPORTED, kind == EDGEKV_DEVICE_CUDA && !problem.empty() ? problem :
                                        "this build of EdgeKV has no CUDA kernels: install it with EDGEKV_CUDA=on");
    }
    if (const int n = library->count(); index < 0 || index >= n) {
        return fail(EDGEKV_UNSUPPORTED, n == 0 ? std::string(library->last_error()[0] ? library->last_error() : "there is no GPU")
                                               : "there is no GPU " + std::to_string(index) + "; there are " + std::to_string(n));
    }
    return EDGEKV_OK;
}

}  // namespace

edgekv_status edgekv_get_device_info(edgekv_device_kind kind, int index, edgekv_device_info * out) {
    const DeviceLibrary * library;
    EDGEKV_TRY(find_library(kind, index, library));
    return library->info(index, out) ? EDGEKV_OK : fail(EDGEKV_UNSUPPORTED, library->last_error());
}

edgekv_status edgekv_try_pinning(edgekv_device_kind kind, int index, size_t n_bytes) {
    const DeviceLibrary * library;
    if (const edgekv_status status = find_library(kind, index, library); status != EDGEKV_OK) {
        return status;
    }
    return library->pins(index, n_bytes) ? EDGEKV_OK : fail(EDGEKV_NOT_PINNED, library->last_error());
}

edgekv_status edgekv_time_pinning(edgekv_device_kind kind, int index, size_t n_bytes, edgekv_pinning * out) {
    const DeviceLibrary * library;
    EDGEKV_TRY(find_library(kind, index, library));
    return library->time_pinning(index, n_bytes, out) ? EDGEKV_OK : fail(EDGEKV_NOT_PINNED, library->last_error());
}

edgekv_status edgekv_measure_rates(edgekv_device_kind kind, int index, size_t host_bytes, edgekv_rates * out) {
    const DeviceLibrary * library;
    EDGEKV_TRY(find_library(kind, index, library));
    return library->rates(index, host_bytes, out) ? EDGEKV_OK : fail(EDGEKV_UNSUPPORTED, library->last_error());
}
