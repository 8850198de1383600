// Sketches: a small always-resident summary of the keys, from which every cell's logit is estimated without reading its key.
//
// A group is 64 consecutive cells of one layer and one KV head. One sketch array serves one layer and one stream.
//
// A key channel has a 3-bit code, in equal steps from the group's channel minimum to its maximum. Channel minima and steps are 8-bit integers under a scale for each group. Codes refer to the values of these integers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/isa.h"
#include "kernels/layout.h"

namespace edgekv {

constexpr int kGroupCells = 64;

// The sketches of one layer and one stream. `data` is 64-byte aligned. A group that was never built must not be scanned.
struct Sketch {
    int head_dim;  // one that attend_supports()
    int n_head_kv;
    int n_groups;
    char * data;   // sketch_bytes()
};

size_t sketch_bytes(int head_dim, int n_head_kv, int n_groups);

struct SketchBytes {
    size_t offset, n;
};
// The bytes that hold groups [first, end) of a head, and nothing else; their offsets count from `data`.
std::array<SketchBytes, 2> sketch_bytes_of_groups(int head_dim, int n_groups, int head, int first, int end);

// K of the same layer and stream, as in AttendProblem.
struct SketchKeys {
    CellType type;
    const char * k;  // cell 0, head 0
    size_t stride_cell, stride_head;
};

// Rebuilds one group of one head from the cells whose bit is set in `valid` (bit c: cell 64*group + c holds a key). The other cells may
// hold anything. valid == 0: all bytes of the group become zero. The same keys give the same bytes under every instruction set. Different
// threads may build groups and heads at the same time. Keys must be finite.
void sketch_build(const Sketch & sketch, const SketchKeys & keys, int head, int group, uint64_t valid, Isa isa);

// The cells of a group that one query token sees, a bit for each, and the cells among them that it always reads.
struct Sight {
    uint64_t visible, certain;
};

// The queries of one KV head: for each of `n_tokens` tokens, the `group` query heads that share it.
struct SketchQuery {
    const char * q;  // f32 [n_tokens][group][head_dim]
    size_t stride_token, stride_head;  // bytes
    int n_tokens, group;
    float scale;
    float softcap;  // as in AttendProblem
    const Sight * sight;  // [n_tokens][sight_stride], by group
    size_t sight_stride;
};

// The results of a scan for each query, token * group + head. A cell has exp(logit - top of its group) as the upper half of a float, or 0 if the
// token cannot see it. A group has its top, the largest logit seen (natural log; -inf: none), and the sum of its cells' exponentials. The
// exponential comes from reading an integer as a float, and is up to 6.2 % too large. Sampling proposes by it, so the error costs variance only.
struct Shares {
    uint16_t * cells;  // [n_queries][cell_stride]
    float * tops;      // [n_queries][group_stride]
    float * sums;      // [n_queries][group_stride]
    size_t cell_stride, group_stride;
};

// A KV head's queries in the form that a scan takes, made once and scanned in pieces by any threads.
size_t sketch_query_bytes(int head_dim, int n_queries);
void sketch_query_prepare(const Sketch & sketch, const SketchQuery & query, char * prepared, Isa isa);

// Scans groups [first, first + n). A group that a token does not see gets a top of -inf and a sum of 0; its cells stay as they are.
void sketch_scan(const Sketch & sketch, const SketchQuery & query, const char * prepared, int head, int first, int n, const Shares & out,
                 Isa isa);

// Does the same for one group without a sketch, from the keys themselves.
void sketch_scan_keys(const SketchKeys & keys, int head_dim, const SketchQuery & query, int head, int group, const Shares & out, Isa isa);

// The specification, in double precision and from the keys themselves, with exact minima and steps: the logits of the cells of a group that has
// keys in those of `valid`. sketch_reference.cpp states the kernels' error against it.
struct SketchReference {
    int head_dim;
    std::vector<double> rounded;  // keys: [cell][channel]

    SketchReference(const SketchKeys & keys, int head_dim, int head, int group, uint64_t valid);
    double logit(int cell, const float * q, float scale, float softcap) const;  // of a cell of the group
};

}  // namespace edgekv
