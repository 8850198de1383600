// Recording what a stream is told, and telling it again, as ggml's CUDA backend does with a decode graph.
#pragma once

#include "cuda/gpu.h"

namespace test {

#if defined(__CUDACC__)
class Recording {
public:
    explicit Recording(edgekv::gpu::Stream stream) : stream(static_cast<cudaStream_t>(stream)) {
        ok = cudaStreamBeginCapture(this->stream, cudaStreamCaptureModeRelaxed) == cudaSuccess;
    }
    ~Recording() {
        if (graph) {
            cudaGraphExecDestroy(executable);
            cudaGraphDestroy(graph);
        }
    }
    bool end() {
        return ok && cudaStreamEndCapture(stream, &graph) == cudaSuccess && cudaGraphInstantiate(&executable, graph, 0) == cudaSuccess;
    }
    bool launch() const { return cudaGraphLaunch(executable, stream) == cudaSuccess; }

private:
    cudaStream_t stream;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    bool ok = false;
};
#else
class Recording {
public:
    explicit Recording(edgekv::gpu::Stream stream) : stream(stream) {
        static uint64_t n_recordings = 0;
        ok = edgekv::gpu::emulator::capture_begin(stream, ++n_recordings);
    }
    ~Recording() {
        if (graph) {
            edgekv::gpu::emulator::graph_destroy(graph);
        }
    }
    bool end() { return ok && (graph = edgekv::gpu::emulator::capture_end(stream)) != nullptr; }
    bool launch() const { return edgekv::gpu::emulator::graph_launch(graph, stream); }

private:
    edgekv::gpu::Stream stream;
    void * graph = nullptr;
    bool ok = false;
};
#endif

}  // namespace test
