// Sketches: a small always-resident summary of every strip of keys, from which its attention is estimated without reading it.
//
// A strip is 16 consecutive cells of one layer and one KV head (the smallest page; a larger page is several strips). One sketch
// array serves one layer and one stream; strips are kept in blocks of 16, with the strips of a block in the lanes of a vector,
// so that a scan needs no sum across lanes.
//
//   box  channel minimum and maximum: the estimate is an upper bound of the strip's largest logit (Quest's bound), never below it
//   b1   channel mean, and for each key the sign of its residual times the channel's mean |residual|
//   b2   a 2-bit code of each key channel between the strip's channel minimum and maximum
//
// b1 and b2 estimate the log-sum-exp of the strip's logits. Parameters are 8-bit integers under a scale per strip.
//
// Nothing here knows ggml, llama.cpp or Python.
#pragma once

#include "attend.h"

namespace edgekv {

enum class SketchKind : int { none = 0, box = 1, b1 = 2, b2 = 3 };

constexpr int kSketchStripCells = 16;
constexpr int kSketchBlockStrips = 16;

// The sketches of one layer and one stream. `data` is 64-byte aligned and was zero before the first build: a strip that was never
// built is empty.
struct Sketch {
    SketchKind kind;
    int head_dim;   // 64, 80, 96, 128 or 256
    int n_head_kv;
    int n_strips;
    char * data;    // sketch_bytes()
};

size_t sketch_bytes(SketchKind kind, int head_dim, int n_head_kv, int n_strips);

// K of the same layer and stream, as in AttendProblem.
struct SketchKeys {
    CellType type;
    const char * k;  // cell 0, head 0
    size_t stride_cell, stride_head;
};

// (Re)builds one strip of one head from the cells whose bit is set in `valid` (bit c: cell 16*strip + c holds a key); what the
// other cells hold does not matter: the valid ones take their places in turn, and the estimate counts n valid of 16. valid == 0:
// the strip becomes empty, all its bytes zero. The same keys give the same bytes under every instruction set. Strips and heads
// may be built by different threads at the same time: one writes no byte that belongs to another. Keys must be finite.
void sketch_build(const Sketch & sketch, const SketchKeys & keys, int head, int strip, uint32_t valid, Isa isa);

// The query heads of one KV head's group, of one token: f32 [group][head_dim].
struct SketchQuery {
    const char * q;
    size_t stride_head;  // bytes
    int group;
    float scale;
    float softcap;  // as in AttendProblem
};

// A query group in the form that a scan takes, made once for a head and scanned in pieces by any threads.
size_t sketch_query_bytes(SketchKind kind, int head_dim, int group);
void sketch_query_prepare(const Sketch & sketch, const SketchQuery & query, char * prepared, Isa isa);

// estimates[g * stride + s] = the estimate for strip 16 * first_block + s in natural-log units (box: the bound), -inf where the
// strip is empty;
// for blocks [first_block, first_block + n_blocks), rows padded to whole blocks (entries past n_strips: -inf).
void sketch_scan(const Sketch & sketch, const SketchQuery & query, const char * prepared, int head, int first_block, int n_blocks,
                 float * estimates, size_t stride, Isa isa);

// The specification, in double precision and from the keys themselves: what the estimate would be with exact parameters. The
// stated error of the kernels against it: see sketch_reference.cpp.
double sketch_reference(SketchKind kind, const SketchKeys & keys, int head_dim, int head, int strip, uint32_t valid,
                        const float * q, float scale, float softcap);

}  // namespace edgekv
