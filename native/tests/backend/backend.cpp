#include "backend.h"

#include "cuda/gpu.h"
#include "ggml-edgekv-cuda.h"

#include "ggml-impl.h"

#include <atomic>
#include <cstring>

namespace emulated {

namespace gpu = edgekv::gpu;

void must(bool done, const char * what) {
    if (!done) {
        GGML_ABORT("the emulated device refused %s: %s", what, gpu::last_error());
    }
}

Counts counts = {};

namespace {

std::atomic<int> left_out{GGML_OP_COUNT};  // an operation that this backend leaves to the CPU, so that graphs are split around it

// ---- graphs ------------------------------------------------------------------------------------------------------------------

// what lies elsewhere a card cannot see
void check_places(const ggml_tensor * node) {
    const auto here = [](const ggml_tensor * t) { return t->buffer && ggml_backend_buffer_get_type(t->buffer) == device_memory(); };
    GGML_ASSERT(here(node));
    for (const ggml_tensor * source : node->src) {
        GGML_ASSERT(!source || here(source));
    }
}

int n_custom(const ggml_cgraph & graph) {
    int n = 0;
    for (int i = 0; i < graph.n_nodes; ++i) {
        n += graph.nodes[i]->op == GGML_OP_CUSTOM;
    }
    return n;
}

}  // namespace

Backend::Backend() {
    must(gpu::stream_create(&own_stream), "a stream");
    cpu = ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr);
    GGML_ASSERT(cpu);
    void * set = ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(ggml_backend_get_device(cpu)), "ggml_backend_set_n_threads");
    reinterpret_cast<ggml_backend_set_n_threads_t>(set)(cpu, 1);
}

Backend::~Backend() {
    must(gpu::stream_sync(own_stream), "to end");
    graphs.clear();
    gpu::stream_destroy(own_stream);
    ggml_backend_free(cpu);
}

void Backend::enqueue(ggml_cgraph & graph) {
    for (int i = 0; i < graph.n_nodes; ++i) {
        ggml_tensor * node = graph.nodes[i];
        if (!computes(node)) {
            continue;
        }
        check_places(node);
        if (node->op == GGML_OP_CUSTOM) {
            must(ggml_edgekv_cuda_compute(kDevice, node, own_stream), "a custom node");
            ++counts.custom;
        } else {
            enqueue_ordinary(cpu, node, own_stream);
        }
        must(!gpu::error_stands(), node->name);  // as ggml_cuda_compute_forward
    }
}

// the order is that of ggml_backend_cuda_graph_compute
void Backend::compute(ggml_cgraph & graph) {
    const bool may_record = ggml_edgekv_cuda_begin(kDevice, &graph);
    Graph & known = graphs[graph.nodes[0]];
    const Way way = may_record ? known.next(graph) : Way::direct;

    ++counts.graphs;
    counts.refused += !may_record;
    counts.served  += n_custom(graph) > 0;
    if (way == Way::direct) {
        ++counts.direct;
        enqueue(graph);
        return;
    }
    if (way == Way::record) {
        static uint64_t n_recordings = 0;
        must(gpu::emulator::capture_begin(own_stream, ++n_recordings), "to record");
        enqueue(graph);
        void * recording = gpu::emulator::capture_end(own_stream);
        must(recording, "a recording");
        known.recorded(recording);
        ++counts.recorded;
    }
    must(gpu::emulator::graph_launch(known.recording(), own_stream), "a replay");
    ++counts.replayed;
    counts.known += known.told_by_number();
}

namespace {

// ---- the backend -------------------------------------------------------------------------------------------------------------

Backend & of(ggml_backend_t backend) { return *static_cast<Backend *>(backend->context); }

const char * backend_name(ggml_backend_t) { return "EMULATED0"; }

void backend_free(ggml_backend_t backend) {
    delete &of(backend);
    delete backend;
}

void set_async(ggml_backend_t backend, ggml_tensor * tensor, const void * data, size_t offset, size_t n_bytes) {
    must(gpu::copy_async(static_cast<char *>(tensor->data) + offset, data, n_bytes, of(backend).stream()), "a copy to the device");
}

void get_async(ggml_backend_t backend, const ggml_tensor * tensor, void * data, size_t offset, size_t n_bytes) {
    must(gpu::copy_async(data, static_cast<const char *>(tensor->data) + offset, n_bytes, of(backend).stream()), "a copy from the device");
}

void synchronize(ggml_backend_t backend) { must(gpu::stream_sync(of(backend).stream()), "to compute"); }

ggml_status graph_compute(ggml_backend_t backend, ggml_cgraph * graph) {
    of(backend).compute(*graph);
    return GGML_STATUS_SUCCESS;
}

ggml_guid_t guid() {
    static ggml_guid one = { 0x65, 0x64, 0x67, 0x65, 0x6b, 0x76, 0x2d, 0x65, 0x6d, 0x75, 0x6c, 0x61, 0x74, 0x65, 0x64, 0x00 };
    return &one;
}

ggml_backend_t make_backend(ggml_backend_dev_t dev, const char *) {
    ggml_backend_i iface = {};
    iface.get_name         = backend_name;
    iface.free             = backend_free;
    iface.set_tensor_async = set_async;
    iface.get_tensor_async = get_async;
    iface.synchronize      = synchronize;
    iface.graph_compute    = graph_compute;
    return new ggml_backend{ guid(), iface, dev, new Backend };
}

// ---- the device --------------------------------------------------------------------------------------------------------------

const char * device_name(ggml_backend_dev_t) { return "EMULATED0"; }

const char * device_description(ggml_backend_dev_t) { return "the emulated device"; }

void device_bytes(ggml_backend_dev_t, size_t * free, size_t * total) {
    gpu::Device found;
    must(gpu::device(kDevice, found), "to describe itself");
    *free  = found.free_bytes;
    *total = found.total_bytes;
}

enum ggml_backend_dev_type device_type(ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_GPU; }

void device_props(ggml_backend_dev_t dev, ggml_backend_dev_props * props) {
    *props = {};
    props->name        = device_name(dev);
    props->description = device_description(dev);
    props->type        = device_type(dev);
    device_bytes(dev, &props->memory_free, &props->memory_total);
    props->caps.async       = true;
    props->caps.host_buffer = true;
}

ggml_backend_buffer_type_t memory_of(ggml_backend_dev_t) { return device_memory(); }

ggml_backend_buffer_type_t pinned_of(ggml_backend_dev_t) { return pinned_memory(); }

bool supports_op(ggml_backend_dev_t, const ggml_tensor * node) {
    if (node->op == left_out) {
        return false;
    }
    return node->op == GGML_OP_CUSTOM ? ggml_edgekv_cuda_supports(kDevice, node)
                                      : ggml_backend_dev_supports_op(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU), node);
}

bool supports_memory(ggml_backend_dev_t, ggml_backend_buffer_type_t type) { return type == device_memory(); }

// ---- the registry ------------------------------------------------------------------------------------------------------------

const char * registry_name(ggml_backend_reg_t) { return "EMULATED"; }

size_t n_devices(ggml_backend_reg_t) { return 1; }

ggml_backend_dev_t nth_device(ggml_backend_reg_t, size_t) { return device(); }

void * proc_address(ggml_backend_reg_t, const char * name) {
    if (std::strcmp(name, GGML_EDGEKV_CUDA_SET_CUSTOM) == 0) {
        return reinterpret_cast<void *>(ggml_edgekv_cuda_set_custom);
    }
    if (std::strcmp(name, GGML_EDGEKV_CUDA_STREAM) == 0) {
        return reinterpret_cast<void *>(ggml_edgekv_cuda_stream<Backend, ggml_backend>);
    }
    return nullptr;
}

ggml_backend_reg_t registry() {
    static ggml_backend_reg one = { GGML_BACKEND_API_VERSION, { registry_name, n_devices, nth_device, proc_address }, nullptr };
    return &one;
}

}  // namespace

ggml_backend_dev_t device() {
    static ggml_backend_device one = [] {
        ggml_backend_device_i iface = {};
        iface.get_name             = device_name;
        iface.get_description      = device_description;
        iface.get_memory           = device_bytes;
        iface.get_type             = device_type;
        iface.get_props            = device_props;
        iface.init_backend         = make_backend;
        iface.get_buffer_type      = memory_of;
        iface.get_host_buffer_type = pinned_of;
        iface.supports_op          = supports_op;
        iface.supports_buft        = supports_memory;
        return ggml_backend_device{ iface, registry(), nullptr };
    }();
    return &one;
}

}  // namespace emulated

#define EDGEKV_EXPORT extern "C" __attribute__((visibility("default")))

EDGEKV_EXPORT ggml_backend_reg_t ggml_backend_init();  // ggml_backend_load() calls it
EDGEKV_EXPORT void emulated_counts(emulated::Counts * out);
EDGEKV_EXPORT bool emulated_leave_out(const char * operation);  // an operation's name, "": none; false: there is no such operation
EDGEKV_EXPORT void emulated_leave_not_ready();  // as if CuPy had asked on this thread whether a copy is over

ggml_backend_reg_t ggml_backend_init() { return emulated::registry(); }

void emulated_counts(emulated::Counts * out) { *out = emulated::counts; }

void emulated_leave_not_ready() { edgekv::gpu::emulator::leave_error(edgekv::gpu::emulator::Foreign::not_ready); }

bool emulated_leave_out(const char * operation) {
    int op = 0;
    while (op < GGML_OP_COUNT && *operation && std::strcmp(ggml_op_name(static_cast<ggml_op>(op)), operation) != 0) {
        ++op;
    }
    emulated::left_out = *operation ? op : GGML_OP_COUNT;
    return !*operation || op < GGML_OP_COUNT;
}
