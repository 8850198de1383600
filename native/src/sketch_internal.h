// What sketch.cpp shares with the per-ISA sketch kernels: the layout of a sketch and of a prepared query, and the kernel table.
// Constants and plain data only: an inline function here would be compiled under several instruction sets and merged by the
// linker.
//
// A sketch is [head][block], a block 16 strips, in vectors of 64 bytes whose dword i belongs to strip i of the block: one strip
// owns its dwords and nothing else. In order:
//   box     scale f32, reach f32 (sum over channels of the largest |k|), then per 4 channels: minimum, maximum
//   b1, b2  step scale f32, low scale f32, share f32 (valid cells / 16; 0: empty), then per 4 channels: low, step;
//           then per key of the strip: its codes, 32 (b1) or 16 (b2) channels to a dword, so that the codes of the s-th 4 of
//           them are (dword >> s) & 0x01010101 or (dword >> 2s) & 0x03030303
// low, minimum and maximum are i8 stored as value + 128, step is u8. A key channel is then approximately low + code * step.
#pragma once

#include "sketch.h"

namespace edgekv {

constexpr int kVectorBytes = 64;  // 4 bytes for each strip of a block

struct SketchLayout {
    int n_scales;
    int params_offset;
    int codes_offset;  // == block_bytes for a box
    int key_vectors;   // vectors of codes for each key
    int block_bytes;
    int n_blocks;      // of one head
};

// A prepared query is, per row of the group, this header, then per channel the query as i16, and as i8 or, for a box, a byte that
// is 0xff where it is not negative.
struct SketchRow {
    float fine;      // the i16 times this is the query times the attention scale
    float coarse;    // the same for the i8
    int32_t excess;  // what storing a value + 128 adds to the sum of products: of the i8 or, for a box, of the i16
    float slack;     // times the reach of a strip: what rounding the query may hide, for a box
};
constexpr int kRowQ = 16;
constexpr int kFineMax = 16256;  // times a step of 255 and / 2^15 it still fits i8
constexpr int kCoarseMax = 127;

struct SketchKernels {
    void (*build)(const Sketch &, const SketchLayout &, const SketchKeys &, int head, int strip, uint32_t valid);
    void (*prepare)(const Sketch &, const SketchQuery &, char * prepared);
    void (*scan)(const Sketch &, const SketchLayout &, const SketchQuery &, const char * prepared, int head, int first_block,
                 int n_blocks, float * estimates, size_t stride);
};

extern const SketchKernels kSketchPortable;
extern const SketchKernels kSketchAvx2;
extern const SketchKernels kSketchAvx512;
extern const SketchKernels kSketchAvx512Vnni;

// By name, "avx512vnni" apart from "avx512"; null if not compiled in or not usable on this CPU.
const SketchKernels * sketch_kernels(const char * name);

SketchLayout sketch_layout(SketchKind kind, int head_dim, int n_strips);

}  // namespace edgekv
