#include "cache/pins.h"

#include <algorithm>

namespace edgekv {

void Pins::shape(const PageShape & shape) {
    dims = shape;
    spans.clear();
    bits.clear();
    changed_groups.clear();
    anew = false;
}

void Pins::set(const edgekv_span * from, int n) {
    if (n > 0) {
        bits.resize(static_cast<size_t>(dims.n_stream) * dims.n_groups());
    }
    spans.assign(from, from + n);
    anew = !bits.empty();
}

void Pins::look_at(int stream, int group, const llama_edgekv_cells & cells) {
    uint64_t found = 0;
    for (int c = group * kGroupCells; c < std::min((group + 1) * kGroupCells, static_cast<int>(cells.n_cells)); ++c) {
        const auto holds = [&](const edgekv_span & span) {
            return cells.pos[c] >= span.first / dims.page_tokens * dims.page_tokens &&
                   cells.pos[c] / dims.page_tokens <= span.last / dims.page_tokens &&
                   (cells.seq[static_cast<size_t>(c) * cells.n_seq_words + span.seq_id / 64] >> span.seq_id % 64 & 1) != 0;
        };
        found |= static_cast<uint64_t>(std::any_of(spans.begin(), spans.end(), holds)) << c % kGroupCells;
    }

    const int id = stream * dims.n_groups() + group;
    if (bits[id] != found) {
        bits[id] = found;
        changed_groups.push_back(id);
    }
}

void Pins::sync(const llama_context * lctx, const Cells & seen) {
    changed_groups.clear();
    if (!anew && spans.empty()) {
        return;
    }
    for (int s = 0; s < dims.n_stream; ++s) {
        llama_edgekv_cells cells;
        if (!llama_edgekv_get_cells(lctx, static_cast<uint32_t>(s), &cells)) {
            continue;
        }
        if (anew) {
            for (int group = 0; group < dims.n_groups(); ++group) {
                look_at(s, group, cells);
            }
            continue;
        }
        for (const ChangedPage & changed : seen.changed_now(s)) {
            const int first = changed.page % dims.pages_per_stream * dims.page_tokens;
            for (int group = first / kGroupCells; group * kGroupCells < std::min(first + dims.page_tokens, dims.n_cells); ++group) {
                look_at(s, group, cells);
            }
        }
    }
    anew = false;
}

}  // namespace edgekv
