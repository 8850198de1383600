// Checks attend_load.cuh: the values that lanes load are those stored, to the bit, wherever a row begins. Rows of q8_0 and q4_0 begin at any even byte.
#include "cuda/kernels/attend_load.cuh"

#include "cell_rows.h"
#include "device_array.h"

using namespace edgekv;
using namespace edgekv::gpu;
using namespace test;

// nvcc names a kernel by its namespace, and finds two without a name here
namespace load_test {

// A warp loads as many rows as it holds, as an attending one does.
template <CellType T>
__global__ void load_rows(const char * rows, size_t stride, int head_dim, int n_rows, float * out) {
    const int lane = threadIdx.x, n_lanes = head_dim <= 64 ? 8 : head_dim <= 128 ? 16 : 32;
    const int row = static_cast<int>(blockIdx.x) * (kWarp / n_lanes) + lane / n_lanes, eight = lane % n_lanes;
    const bool active = row < n_rows && eight * 8 < head_dim;
    const char * const at = eight_of<T>(rows + row * stride, eight);
    const uint4 words = active ? load_eight<T>(at) : make_uint4(0, 0, 0, 0);
    float x[8];
    const float factor = unpack_eight<T>(words, offset_of(at), lane, x);
    for (int i = 0; active && i < 8; ++i) {
        out[static_cast<size_t>(row) * head_dim + eight * 8 + i] = x[i] * factor;
    }
}

}  // namespace load_test

namespace {

template <CellType T>
void check_rows(int head_dim, size_t gap, Stream stream) {
    constexpr int kRows = 9;
    Random rng(head_dim + gap);
    const CacheRows rows = cache_rows({T, head_dim, 1, kRows, 0, gap}, [&](int, int, int) { return rng.normal(); }, [](int) { return false; });
    const DeviceArray<char> home(rows.bytes, true);  // ends with the last row
    const DeviceArray<float> out(static_cast<size_t>(kRows) * head_dim);
    launch(load_test::load_rows<T>, {kRows}, kWarp, 0, stream, static_cast<const char *>(home.data()), rows.stride_cell, head_dim, kRows, out.data());
    must(stream_sync(stream) && check());
    const std::vector<float> got = out.get();
    for (int row = 0; row < kRows; ++row) {
        for (int i = 0; i < head_dim; ++i) {
            const double want = channel(T, rows.bytes.data() + static_cast<size_t>(row) * rows.stride_cell, i);
            const double x = got[static_cast<size_t>(row) * head_dim + i];
            CHECK(x == want, "type %d, size %d, gap %zu, row %d: value %d is %g, not %g", static_cast<int>(T), head_dim, gap, row, i, x, want);
        }
    }
}

}  // namespace

int main() {
    const TestStream stream;
    for (const int head_dim : {64, 72, 80, 96, 112, 128, 192, 256}) {
        for (const size_t gap : {0, 2, 4, 6, 8, 14}) {
            check_rows<CellType::f16>(head_dim, gap * 8, stream);
            if (holds_row(CellType::q8_0, head_dim)) {
                check_rows<CellType::q8_0>(head_dim, gap, stream);
                check_rows<CellType::q4_0>(head_dim, gap, stream);
            }
        }
    }
    return finish();
}
