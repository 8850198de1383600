#include "server/http/adapters.h"

#include "server/http/fields.h"

#include <string>

namespace edgekv_server {

void check_adapters(const std::map<int, float> & asked, size_t n_known) {
    for (const auto & [id, scale] : asked) {
        if (id < 0 || static_cast<size_t>(id) >= n_known) {
            decline("the field 'lora' asks for the adapter " + std::to_string(id) + "; /lora-adapters lists the " + std::to_string(n_known) + " that there are, each has an 'id'");
        }
    }
}

void set_aside(common_params & params) {
    for (auto & adapter : params.lora_adapters) {
        adapter.scale = params.lora_init_without_apply ? 0.0f : adapter.scale;
    }
}

bool steer(const common_params & params, llama_context * lctx) {
    if (params.control_vectors.empty()) {
        return true;
    }
    const auto found = common_control_vector_load(params.control_vectors);
    return found.n_embd != -1 && llama_set_adapter_cvec(lctx, found.data.data(), found.data.size(), found.n_embd, params.control_vector_layer_start,
                                                        params.control_vector_layer_end) == 0;
}

}  // namespace edgekv_server
