// sketch.cpp shares this with the kernels by instruction set: the layouts of a sketch and of a prepared query, and the kernel table. It holds
// constants and plain data only: see attend_internal.h.
//
// A sketch is [head]: the codes of all groups, then the parameters of all groups.
//   codes       [group][16 cells of it][dword][cell]: the dwords of a cell, whose byte j is about the channels 4i + j. Three dwords
//               A, B, C hold eight quads of four channels, i = 8 * (dword / 3) + 0..7, in 3 bits each of a byte:
//               A: quad 0, quad 1, lower two bits of quad 6;  B: quad 2, quad 3, upper bit of 6, upper bit of 7;
//               C: quad 4, quad 5, lower two bits of quad 7
//   parameters  step scale f32, low scale f32, 8 bytes of zero, then for each channel, padded to 64: low as value + 128, then step
// A key channel is approximately low * low scale + code * step * step scale.
#pragma once

#include "kernels/sketch/sketch.h"

namespace edgekv {

constexpr int kVectorCells = 16;               // cells whose dwords lie side by side
constexpr int kVectorBytes = 4 * kVectorCells;
constexpr int kParamHeader = 16;

struct SketchLayout {
    int padded;       // channels of the parameters, and of a prepared query
    int n_dwords;     // of codes, for each cell
    int code_bytes, param_bytes;  // of a group
    size_t head_bytes;
    size_t params_offset;  // within a head
};

// A prepared query is this header, then the query as i16: of each 16 channels the first eight, then of each the last eight;
// then as i8.
struct SketchQueryHeader {
    float fine;      // the i16 times this is the query times the attention scale
    float coarse;    // the same for the i8
    int32_t excess;  // what storing low + 128 adds to its sum of products with the i8
    float padding;
};
constexpr int kQueryOffset = 16;
constexpr int kFineMax = 16256;  // times a step of 255 and / 2^15 it still fits i8
constexpr int kCoarseMax = 127;

struct SketchKernels {
    void (*build)(const Sketch &, const SketchLayout &, const SketchKeys &, int head, int group, uint64_t valid);
    void (*prepare)(int head_dim, int padded, const SketchQuery &, char * prepared);
    void (*scan)(const Sketch &, const SketchLayout &, const SketchQuery &, const char * prepared, int head, int first, int n, const Shares &);
    void (*scan_keys)(const SketchKeys &, int head_dim, const SketchQuery &, int head, int group, const Shares &);
};

extern const SketchKernels kSketchPortable;
extern const SketchKernels kSketchAvx2;
extern const SketchKernels kSketchAvxVnni;
extern const SketchKernels kSketchAvx512;
extern const SketchKernels kSketchAvx512Vnni;
extern const SketchKernels kSketchNeon;
extern const SketchKernels kSketchDotProd;

// By name, "avxvnni" apart from "avx2" and "avx512vnni" from "avx512", "dotprod" from "neon"; null if not compiled in or not usable on this CPU.
const SketchKernels * sketch_kernels(const char * name);

SketchLayout sketch_layout(int head_dim, int n_groups);

}  // namespace edgekv
