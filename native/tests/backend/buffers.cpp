// The device's memory, which holds what cudaMalloc would leave there, and pinned host memory. Copies wait, on a stream of their own.
#include "backend.h"

#include "cuda/gpu.h"

#include <cstring>

namespace emulated {
namespace {

namespace gpu = edgekv::gpu;

constexpr size_t kAlignment = 128;  // as on CUDA
constexpr int    kUnset     = 0xff;  // NaN in every floating type

// ---- buffers on the device ---------------------------------------------------------------------------------------------------

void fill(void * p, int value, size_t n_bytes) {
    gpu::emulator::enqueue_host(nullptr, [=] { std::memset(p, value, n_bytes); });
    must(gpu::stream_sync(nullptr), "a fill");
}

void buffer_free(ggml_backend_buffer_t buffer) { gpu::free_device(buffer->context); }

void * buffer_base(ggml_backend_buffer_t buffer) { return buffer->context; }

void buffer_memset(ggml_backend_buffer_t, ggml_tensor * tensor, uint8_t value, size_t offset, size_t n_bytes) {
    fill(static_cast<char *>(tensor->data) + offset, value, n_bytes);
}

void buffer_set(ggml_backend_buffer_t, ggml_tensor * tensor, const void * data, size_t offset, size_t n_bytes) {
    must(gpu::copy(static_cast<char *>(tensor->data) + offset, data, n_bytes), "a copy to the device");
}

void buffer_get(ggml_backend_buffer_t, const ggml_tensor * tensor, void * data, size_t offset, size_t n_bytes) {
    must(gpu::copy(data, static_cast<const char *>(tensor->data) + offset, n_bytes), "a copy from the device");
}

bool buffer_copy(ggml_backend_buffer_t, const ggml_tensor * from, ggml_tensor * to) {
    if (ggml_backend_buffer_get_type(from->buffer) != device_memory()) {
        return false;
    }
    must(gpu::copy(to->data, from->data, ggml_nbytes(from)), "a copy on the device");
    return true;
}

void buffer_clear(ggml_backend_buffer_t buffer, uint8_t value) { fill(buffer->context, value, buffer->size); }

constexpr ggml_backend_buffer_i kBuffer = {
    /* .free_buffer   = */ buffer_free,
    /* .get_base      = */ buffer_base,
    /* .init_tensor   = */ nullptr,
    /* .memset_tensor = */ buffer_memset,
    /* .set_tensor    = */ buffer_set,
    /* .get_tensor    = */ buffer_get,
    /* .set_tensor_2d = */ nullptr,
    /* .get_tensor_2d = */ nullptr,
    /* .cpy_tensor    = */ buffer_copy,
    /* .clear         = */ buffer_clear,
    /* .reset         = */ nullptr,
};

const char * memory_name(ggml_backend_buffer_type_t) { return "EMULATED0"; }

size_t alignment(ggml_backend_buffer_type_t) { return kAlignment; }

ggml_backend_buffer_t memory_alloc(ggml_backend_buffer_type_t type, size_t n_bytes) {
    void * p = nullptr;
    if (!gpu::alloc(&p, n_bytes)) {
        return nullptr;
    }
    fill(p, kUnset, n_bytes);
    return ggml_backend_buffer_init(type, kBuffer, p, n_bytes);
}

// ---- pinned ------------------------------------------------------------------------------------------------------------------

const char * pinned_name(ggml_backend_buffer_type_t) { return "EMULATED_Host"; }

void pinned_free(ggml_backend_buffer_t buffer) { gpu::free_pinned(buffer->context); }

ggml_backend_buffer_t pinned_alloc(ggml_backend_buffer_type_t type, size_t n_bytes) {
    void * p = nullptr;
    if (!gpu::alloc_pinned(&p, n_bytes)) {
        return ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), n_bytes);  // as ggml-cuda
    }
    ggml_backend_buffer_t buffer = ggml_backend_cpu_buffer_from_ptr(p, n_bytes);
    buffer->buft = type;
    buffer->iface.free_buffer = pinned_free;
    return buffer;
}

bool pinned_is_host(ggml_backend_buffer_type_t) { return true; }

}  // namespace

ggml_backend_buffer_type_t device_memory() {
    static ggml_backend_buffer_type type = { { memory_name, memory_alloc, alignment, nullptr, nullptr, nullptr }, device(), nullptr };
    return &type;
}

ggml_backend_buffer_type_t pinned_memory() {
    static ggml_backend_buffer_type type = { { pinned_name, pinned_alloc, alignment, nullptr, nullptr, pinned_is_host }, device(), nullptr };
    return &type;
}

}  // namespace emulated
