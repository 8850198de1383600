// One launch of a kernel on plain arrays of the host, for `edgekv doctor --gpu`: any card can be compared with the processor's reference.
#pragma once

#include "kernels/decode/attend.h"
#include "kernels/sketch/sketch.h"

#include <vector>

namespace edgekv {

// What three runs on the same inputs left, besides the results of the last.
struct TrialRuns {
    bool same   = true;  // all gave the same bits
    bool inside = true;  // nothing was written before or behind a buffer
};

// All of `problem` lies on the host, and so do its results. home: K and V as the card's kernels find them, in pinned memory; the problem's own k and v
// have also what lies in the arena.
struct AttendTrial {
    AttendProblem problem;
    const char * home_k;
    const char * home_v;
    size_t n_slots, mask_bytes;
};

// Stores all cells' rows, builds all sketches, and scans them for one token's queries. Rows of home lie close, [cell][head].
struct StoreTrial {
    int head_dim, n_head, n_head_kv, n_cells;  // cells: a multiple of 64
    CellType k_type, v_type;
    const float * k;        // [token][head][head_dim], a token for each cell
    const float * v;
    const int64_t * cells;  // of the tokens
    const float * q;        // [n_head][head_dim]
    float scale;
    const Sight * sight;    // by group
    std::vector<char> home_k, home_v, sketches;  // out, of the sizes that they have; their bytes are there before
    std::vector<uint16_t> shares;                // out [n_head][n_cells]
    std::vector<float> tops, sums;               // out [n_head][group]
};

}  // namespace edgekv
