#include "attention/plane.h"

#include "state/state.h"

#include <algorithm>
#include <cassert>

namespace edgekv {
namespace {

[[maybe_unused]] bool is_served(const State & ctx, const Layer & layer) {
    return std::find(ctx.hooked.begin(), ctx.hooked.end(), &layer) != ctx.hooked.end();
}

[[maybe_unused]] bool exist(const State & ctx, const edgekv_move * moves, int n) {
    return std::all_of(moves, moves + n, [&](const edgekv_move & move) { return ctx.shape.has(move.layer, move.head, move.page); });
}

Failure no_arena() { return { EDGEKV_UNSUPPORTED, "pages have no slots on the processor" }; }

}  // namespace

// ---- questions ---------------------------------------------------------------------------------------------------------------

void Plane::add_selected(edgekv_selected * out, int sequence) const {
    assert(sequence < static_cast<int>(llama_n_seq_max(ctx.lctx)));
    do_add_selected(out, sequence);
}

RowsRead Plane::last_rows(const Layer & layer, int head, int token) const {
    assert(is_served(ctx, layer) && head >= 0 && head < layer.info.n_head_kv && token >= 0 && token < kMaxQueryTokens);
    assert(ctx.params.selection.keep_rows);
    return do_last_rows(layer, head, token);
}

Sketch Plane::sketch(const Layer & layer, int stream, std::vector<char> & copy) const {
    assert(!computes && is_served(ctx, layer) && ctx.shape.has_stream(stream));
    return do_sketch(layer, stream, copy);
}

const char * Plane::slot(int i, std::vector<char> & copy) const {
    assert(!computes && ctx.pages.table.has_slot(i));
    return do_slot(i, copy);
}

// ---- changes -----------------------------------------------------------------------------------------------------------------

Failure Plane::enter(edgekv_mode mode) {
    assert(!computes && (mode != EDGEKV_MODE_EVICT || ctx.params.placement.kind == EDGEKV_DEVICE_HOST));
    return do_enter(mode);
}

Failure Plane::select(const edgekv_selection & selection) {
    assert(!computes && &selection != &ctx.params.selection);
    return do_select(selection);
}

Failure Plane::set_slots(int n_slots) {
    assert(!computes && n_slots >= 0);
    return do_set_slots(n_slots);
}

Failure Plane::do_set_slots(int n_slots) { return n_slots > 0 ? no_arena() : Failure{}; }

Failure Plane::set_hot_rows(size_t n_bytes) {
    assert(!computes);
    return do_set_hot_rows(n_bytes);
}

Failure Plane::do_set_hot_rows(size_t) { return { EDGEKV_UNSUPPORTED, "K and V of this context do not lie in a file" }; }

Failure Plane::limit_slots(int n_slots) {
    assert(!computes && n_slots >= 0);
    return do_limit_slots(n_slots);
}

Failure Plane::do_limit_slots(int) { return no_arena(); }

Failure Plane::drop_pages(const edgekv_move * moves, int n) {
    assert(!computes && exist(ctx, moves, n));
    return do_drop_pages(moves, n);
}

void Plane::begin(const UbatchBegin & ubatch) {
    assert(!computes);
    computes = true;
    do_begin(ubatch);
}

UbatchDone Plane::end(bool ok) {
    assert(computes || !ok);
    computes = false;
    return do_end(ok);
}

bool Plane::build_store(Layer & layer, const llama_edgekv_store & args) {
    assert(is_served(ctx, layer));
    return do_build_store(layer, args);
}

ggml_tensor * Plane::build_attend(Layer & layer, const llama_edgekv_attend & args) {
    assert(is_served(ctx, layer));
    return do_build_attend(layer, args);
}

ggml_tensor * Plane::build_whole(const Layer & layer, const llama_edgekv_attend & args) {
    assert(layer.whole());
    return do_build_whole(layer, args);
}

}  // namespace edgekv
