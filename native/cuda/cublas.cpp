// cuBLAS, opened when ggml-cuda first calls it: 600 MB that many models do without. These are the functions that it calls, linked in place of the
// library (libraries.cmake). Without the library ggml's first call, which makes a handle, fails, and the status has our sentence for its text.
#include <cublas_v2.h>
#include <dlfcn.h>

#include <cstdio>
#include <string>

#define TEXT_OF(number) #number
#define TEXT(number) TEXT_OF(number)
#define LIBRARY "libcublas.so." TEXT(CUBLAS_VER_MAJOR)
#if CUBLAS_VER_MAJOR >= 13
#define PACKAGE "nvidia-cublas==" TEXT(CUBLAS_VER_MAJOR) ".*"
#else
#define PACKAGE "nvidia-cublas-cu" TEXT(CUBLAS_VER_MAJOR)
#endif

namespace {

struct Library {
    void *      handle;
    std::string problem;
};

const Library & library() {
    // By name: the loader looks where the library that this is a part of looks for CUDA's, in pip's packages and the toolkit, and where the system does.
    // Never closed: ggml frees its handles when the process ends.
    static const Library * const opened = [] {
        auto * found = new Library{ dlopen(LIBRARY, RTLD_LAZY | RTLD_LOCAL), "" };
        if (!found->handle) {
            const char * said = dlerror();
            found->problem    = std::string("cuBLAS cannot be opened (") + (said ? said : LIBRARY) + "); pip install \"" PACKAGE "\" brings it";
        }
        return found;
    }();
    return *opened;
}

void * symbol(const char * name) { return library().handle ? dlsym(library().handle, name) : nullptr; }

// The arguments' types are those of the function's parameters, which the header knows.
template <class... Arguments>
cublasStatus_t call(void * function, Arguments... arguments) {
    return function ? reinterpret_cast<cublasStatus_t (*)(Arguments...)>(function)(arguments...) : CUBLAS_STATUS_NOT_INITIALIZED;
}

}  // namespace

#define FORWARD(...)                              \
    static void * const found = symbol(__func__); \
    return call(found, __VA_ARGS__)

extern "C" {

// Opens cuBLAS. Why it cannot be opened, as a clause; null: it can.
__attribute__((visibility("default"))) const char * edgekv_cublas_problem();

const char * edgekv_cublas_problem() { return library().handle ? nullptr : library().problem.c_str(); }

#pragma GCC visibility push(hidden)  // calls of others in the process are not ours

const char * cublasGetStatusString(cublasStatus_t status) {
    static const auto found = reinterpret_cast<decltype(&cublasGetStatusString)>(symbol(__func__));
    if (found) {
        return found(status);
    }
    // ggml logs the text, where few look, and ends the process
    std::fprintf(stderr, "edgekv: %s\n", library().problem.c_str());
    return library().problem.c_str();
}

cublasStatus_t cublasCreate_v2(cublasHandle_t * handle) { FORWARD(handle); }

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) { FORWARD(handle); }

cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) { FORWARD(handle, mode); }

cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) { FORWARD(handle, stream); }

cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void * workspace, size_t n_bytes) { FORWARD(handle, workspace, n_bytes); }

cublasStatus_t cublasSgemm_v2(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k, const float * alpha,
        const float * a, int lda, const float * b, int ldb, const float * beta, float * c, int ldc) {
    FORWARD(handle, op_a, op_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

cublasStatus_t cublasSgemmBatched(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k, const float * alpha,
        const float * const a[], int lda, const float * const b[], int ldb, const float * beta, float * const c[], int ldc, int n_batch) {
    FORWARD(handle, op_a, op_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, n_batch);
}

cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k,
        const float * alpha, const float * a, int lda, long long stride_a, const float * b, int ldb, long long stride_b, const float * beta, float * c,
        int ldc, long long stride_c, int n_batch) {
    FORWARD(handle, op_a, op_b, m, n, k, alpha, a, lda, stride_a, b, ldb, stride_b, beta, c, ldc, stride_c, n_batch);
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k, const void * alpha,
        const void * a, cudaDataType type_a, int lda, const void * b, cudaDataType type_b, int ldb, const void * beta, void * c, cudaDataType type_c,
        int ldc, cublasComputeType_t compute, cublasGemmAlgo_t algo) {
    FORWARD(handle, op_a, op_b, m, n, k, alpha, a, type_a, lda, b, type_b, ldb, beta, c, type_c, ldc, compute, algo);
}

cublasStatus_t cublasGemmBatchedEx(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k, const void * alpha,
        const void * const a[], cudaDataType type_a, int lda, const void * const b[], cudaDataType type_b, int ldb, const void * beta, void * const c[],
        cudaDataType type_c, int ldc, int n_batch, cublasComputeType_t compute, cublasGemmAlgo_t algo) {
    FORWARD(handle, op_a, op_b, m, n, k, alpha, a, type_a, lda, b, type_b, ldb, beta, c, type_c, ldc, n_batch, compute, algo);
}

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k,
        const void * alpha, const void * a, cudaDataType type_a, int lda, long long stride_a, const void * b, cudaDataType type_b, int ldb,
        long long stride_b, const void * beta, void * c, cudaDataType type_c, int ldc, long long stride_c, int n_batch, cublasComputeType_t compute,
        cublasGemmAlgo_t algo) {
    FORWARD(handle, op_a, op_b, m, n, k, alpha, a, type_a, lda, stride_a, b, type_b, ldb, stride_b, beta, c, type_c, ldc,
            stride_c, n_batch, compute, algo);
}

cublasStatus_t cublasStrsmBatched(cublasHandle_t handle, cublasSideMode_t side, cublasFillMode_t fill, cublasOperation_t op, cublasDiagType_t diagonal,
        int m, int n, const float * alpha, const float * const a[], int lda, float * const b[], int ldb, int n_batch) {
    FORWARD(handle, side, fill, op, diagonal, m, n, alpha, a, lda, b, ldb, n_batch);
}

#pragma GCC visibility pop

}  // extern "C"
