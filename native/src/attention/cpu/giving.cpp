// Mode evict gives rows back to the system: those of pages that all heads of a layer dropped, and of pages without tokens.
//
// A cell keeps its rows in all layers or loses them in some for good (LLAMA_EDGEKV_PARTIAL). Where new tokens come into a page with such cells,
// or where the context leaves mode evict, these cells are emptied: their rows would be attended as zeros. Tokens also come between ubatches, and
// with their rows (a state is loaded): no page with a whole cell is given back.
#include "attention/cpu/host_plane.h"

#include "state/state.h"

#include <algorithm>

namespace edgekv {

void HostPlane::give_back_from_now() {
    gives = !ctx.hooked.empty();
    for (const auto & layer : ctx.layers) {
        const bool has_rows = layer->llama.kind == LLAMA_EDGEKV_LAYER_ATTENTION || layer->llama.kind == LLAMA_EDGEKV_LAYER_SHARED;
        gives = gives && (!has_rows || (layer->serves() && llama_edgekv_gives_rows_back(ctx.lctx, layer->il)));
    }
    if (!gives) {
        return;
    }
    all_come_back();
    std::vector<int> used;
    for (int s = 0; s < ctx.shape.n_stream; ++s) {
        const std::vector<int> of_stream = tokens_by_page(s);
        used.insert(used.end(), of_stream.begin(), of_stream.end());
    }
    for (const Layer * layer : ctx.hooked) {
        llama_edgekv_in_small_pages(ctx.lctx, layer->il);
        for (int page = 0; page < ctx.shape.n_pages; ++page) {  // huge pages may have taken memory for cells without tokens
            gone.set(layer->info.index, page, gone.is(layer->info.index, page) || used[page] == 0);
        }
        keys_turned(layer->il);
    }
}

std::vector<int> HostPlane::tokens_by_page(int stream) const {
    const PageShape & shape = ctx.shape;
    std::vector<int>  used(shape.pages_per_stream, 0);
    const llama_edgekv_cells cells = cells_of(stream);
    for (int c = 0; c < static_cast<int>(cells.used_end); ++c) {
        used[c / shape.page_tokens] += cells.pos[c] >= 0;
    }
    return used;
}

void HostPlane::give_rows_back(int layer, int first, int end) {
    const PageShape & shape  = ctx.shape;
    const int         stream = first / shape.pages_per_stream;
    const int         cell   = (first - stream * shape.pages_per_stream) * shape.page_tokens;
    llama_edgekv_give_rows_back(ctx.lctx, ctx.hooked[layer]->il, static_cast<uint32_t>(stream), static_cast<uint32_t>(cell),
                                static_cast<uint32_t>(std::min(cell + (end - first) * shape.page_tokens, shape.n_cells)));
}

void HostPlane::give_back(int layer, int page) {
    constexpr size_t kSystemPage = 4096;  // or more: then rows beside a lone page stay until their neighbours go
    if (!gives || gone.is(layer, page)) {
        return;
    }
    gone.set(layer, page, true);
    const llama_edgekv_layer & llama = ctx.hooked[layer]->llama;
    const size_t   least = ctx.shape.page_tokens * std::min(llama.k->nb[1], llama.v->nb[1]);
    const Gone::Run run  = gone.around(layer, page, static_cast<int>((kSystemPage + least - 1) / least));
    give_rows_back(layer, run.first, run.end);

    const llama_edgekv_cells cells = cells_of(page / ctx.shape.pages_per_stream);
    const int first = first_cell(page);
    for (int c = first; c < std::min(first + ctx.shape.page_tokens, ctx.shape.n_cells); ++c) {
        cells.labels[c] |= LLAMA_EDGEKV_PARTIAL;  // a cell's next placement clears it
    }
}

void HostPlane::empty_partial(int stream, int first, int end) {
    const llama_edgekv_cells cells = cells_of(stream);
    std::vector<uint32_t>    partial;
    for (int c = first; c < std::min(end, static_cast<int>(cells.n_cells)); ++c) {
        if (cells.pos[c] >= 0 && (cells.labels[c] & LLAMA_EDGEKV_PARTIAL)) {
            partial.push_back(static_cast<uint32_t>(c));
        }
    }
    llama_edgekv_free_cells(ctx.lctx, static_cast<uint32_t>(stream), partial.data(), static_cast<int>(partial.size()));
}

int HostPlane::first_cell(int page) const { return page % ctx.shape.pages_per_stream * ctx.shape.page_tokens; }

bool HostPlane::has_whole_cell(int page) const {
    const llama_edgekv_cells cells = cells_of(page / ctx.shape.pages_per_stream);
    const int first = first_cell(page);
    for (int c = first; c < std::min(first + ctx.shape.page_tokens, static_cast<int>(cells.used_end)); ++c) {
        if (cells.pos[c] >= 0 && !(cells.labels[c] & LLAMA_EDGEKV_PARTIAL)) {
            return true;
        }
    }
    return false;
}

void HostPlane::comes_back(int page) {
    if (!gone.in_any_layer(page)) {
        return;
    }
    const int first = first_cell(page);
    empty_partial(page / ctx.shape.pages_per_stream, first, first + ctx.shape.page_tokens);
    for (int layer = 0; layer < ctx.shape.n_layers; ++layer) {
        gone.set(layer, page, false);
    }
}

void HostPlane::all_come_back() {
    for (int page = 0; gives && page < ctx.shape.n_pages; ++page) {
        if (gone.in_any_layer(page) && has_whole_cell(page)) {
            comes_back(page);
        }
    }
}

// A stream that was copied since the last ubatch lacks the rows that its source lacks, and its heads attend what those of the source attend. Where
// the source itself is such a copy, or where new tokens came in, pages come back instead.
void HostPlane::follow_copies() {
    const PageShape & shape = ctx.shape;
    copied.assign(shape.n_stream, false);
    std::vector<int> sources(shape.n_stream, -1);
    for (int s = 0; s < shape.n_stream; ++s) {
        const llama_edgekv_cells cells = cells_of(s);
        if (n_copied[s] != cells.n_copied) {
            n_copied[s] = cells.n_copied;
            copied[s]   = gives || drops.any();
            sources[s]  = static_cast<int>(cells.copied_from);
        }
    }
    for (int s = 0; s < shape.n_stream; ++s) {
        if (!copied[s]) {
            continue;
        }
        const bool known = !copied[sources[s]];
        for (int i = 0; i < shape.pages_per_stream; ++i) {
            const int page = s * shape.pages_per_stream + i, source = sources[s] * shape.pages_per_stream + i;
            drops.undrop(page);
            for (int layer = 0; layer < shape.n_layers; ++layer) {
                gone.set(layer, page, known && gone.is(layer, source));
                for (int head = 0; known && head < shape.n_heads; ++head) {
                    if (drops.of(layer, sources[s], head)[i]) {
                        drops.drop({ layer, head, page, 0 });
                    }
                }
            }
            if (gone.in_any_layer(page) && has_whole_cell(page)) {
                comes_back(page);
                drops.undrop(page);
            } else if (!gone.in_any_layer(page)) {
                empty_partial(s, i * shape.page_tokens, (i + 1) * shape.page_tokens);
            }
        }
        if (ctx.params.mode != EDGEKV_MODE_EVICT) {  // the context left the mode while the copy waited
            empty_partial(s, 0, shape.n_cells);
        }
        for (int layer = 0; gives && layer < shape.n_layers; ++layer) {
            give_back_again(layer, s);
        }
    }
}

// First all changed pages with tokens, because a page that is given back takes the gone ones beside it along. No head drops them any longer.
void HostPlane::follow_gone() {
    for (int s = 0; gives && s < ctx.shape.n_stream; ++s) {
        for (const ChangedPage & changed : ctx.pages.cells.changed_now(s)) {
            if (changed.newest >= 0 && !copied[s]) {
                comes_back(changed.page);
            }
        }
        for (const ChangedPage & changed : ctx.pages.cells.changed_now(s)) {
            for (int layer = 0; changed.newest < 0 && layer < ctx.shape.n_layers; ++layer) {
                give_back(layer, changed.page);
            }
        }
    }
}

void HostPlane::keys_turned(int il) {
    const auto turned = std::find_if(ctx.hooked.begin(), ctx.hooked.end(), [&](const Layer * layer) { return layer->il == il; });
    if (turned == ctx.hooked.end()) {
        return;
    }
    ahead.enter((*turned)->info.index, ctx.params.mode != EDGEKV_MODE_OFF);
    if (!gives) {
        return;
    }
    for (int stream = 0; stream < ctx.shape.n_stream; ++stream) {
        if (cells_of(stream).n_copied == n_copied[stream]) {  // else its pages are those of its source, which follow_copies() finds out
            give_back_again((*turned)->info.index, stream);
        }
    }
}

// All rows of a stream's layer were written. Those that were given back go once more.
void HostPlane::give_back_again(int layer, int stream) {
    const int end = (stream + 1) * ctx.shape.pages_per_stream;
    for (int page = stream * ctx.shape.pages_per_stream; page < end;) {
        const int first = page;
        while (page < end && gone.is(layer, page) && !has_whole_cell(page)) {
            ++page;
        }
        if (page > first) {
            give_rows_back(layer, first, page);
        } else {
            ++page;
        }
    }
}

uint64_t HostPlane::there(int layer, int stream, int group) const {
    uint64_t cells = 0;
    for (int part = 0; part < kGroupCells; part += 16) {  // a page has a multiple of 16 cells
        const int page = (group * kGroupCells + part) / ctx.shape.page_tokens;
        cells |= page < ctx.shape.pages_per_stream && !gone.is(layer, stream * ctx.shape.pages_per_stream + page) ? uint64_t{0xffff} << part : 0;
    }
    return cells;
}

double HostPlane::tokens_held(int stream) const {
    const PageShape & shape = ctx.shape;
    const std::vector<int> used = tokens_by_page(stream);
    double held = 0, bytes = 0;
    for (const Layer * layer : ctx.hooked) {
        const double row = static_cast<double>(layer->llama.k->nb[1] + (layer->llama.v ? layer->llama.v->nb[1] : 0));
        bytes += row;
        for (int i = 0; i < shape.pages_per_stream; ++i) {
            held += gone.is(layer->info.index, stream * shape.pages_per_stream + i) ? 0 : row * used[i];
        }
    }
    return bytes > 0 ? held / bytes : 0;
}

}  // namespace edgekv
