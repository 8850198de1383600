#include "state/state.h"

#include <algorithm>

namespace edgekv {

State::State(llama_context * lctx, const edgekv_params & params) : lctx(lctx), params(params), wanted_mode(params.mode) {
    llama_edgekv_cells cells = {};
    llama_edgekv_get_cells(lctx, 0, &cells);
    shape = shape_of_cells(static_cast<int>(cells.n_stream), static_cast<int>(cells.n_cells), params.page_tokens);

    for (int il = 0; il < llama_edgekv_n_layer(lctx); ++il) {
        layers.push_back(std::make_unique<Layer>(look_at_layer(lctx, il)));
        Layer & layer = *layers.back();
        if ((layer.v_in_k() || layer.listed()) && (params.placement.kind != EDGEKV_DEVICE_HOST || params.mode == EDGEKV_MODE_EVICT)) {
            layer.info.state = layer.listed() ? EDGEKV_LAYER_LISTED : EDGEKV_LAYER_MLA;
        }
        if (layer.whole() && params.placement.kind != EDGEKV_DEVICE_HOST) {
            layer.leave_whole();
        }
        if (layer.info.state == EDGEKV_LAYER_HOOKED) {
            layer.info.index = shape.n_layers++;
            shape.n_heads    = std::max(shape.n_heads, layer.info.n_head_kv);
            shape.slot_bytes = std::max(shape.slot_bytes, slot_bytes(layer.k_row_bytes() + layer.v_row_bytes(), params.page_tokens));
            hooked.push_back(&layer);
            sketched = sketched || !layer.listed();
        }
    }
}

// A token belongs to a prompt if one of its sequences is a prompt.
bool State::find_whole(const llama_edgekv_tokens & tokens) {
    // in mode evict they would attend what their head dropped
    const bool prompts_are = params.mode == EDGEKV_MODE_SPARSE && params.selection.prompt_resolution == 0.0f;

    std::vector<uint8_t> before(tokens.n, false);
    std::swap(before, whole);
    for (int i = 0; prompts_are && !prompts.empty() && i < tokens.n; ++i) {
        whole[i] = std::any_of(tokens.seq_id[i], tokens.seq_id[i] + tokens.n_seq_id[i],
                               [&](llama_seq_id id) { return std::find(prompts.begin(), prompts.end(), id) != prompts.end(); });
    }
    return whole != before;
}

float State::resolution(const Layer & layer, int head) const {
    const float own = resolutions.empty() ? 0.0f : resolutions[static_cast<size_t>(layer.info.index) * shape.n_heads + head];
    return own > 0.0f ? own : params.selection.resolution;
}

int State::n_refused() const {
    const auto refused = [](const Layer * layer) { return layer->info.state == EDGEKV_LAYER_NO_MEMORY; };
    return static_cast<int>(std::count_if(hooked.begin(), hooked.end(), refused));
}

}  // namespace edgekv
