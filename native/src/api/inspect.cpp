// The C functions of edgekv_inspect.h.
#include "edgekv_inspect.h"

#include "api/guard.h"
#include "state/layer.h"
#include "llama-edgekv-headers.h"
#include "llama-edgekv-memory.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <string>

using namespace edgekv;

namespace {

// Takes llama.cpp's lines while it lives, and keeps the first that names an error.
struct Listening {
    std::string said;
    ggml_log_callback listener;
    void * data;

    Listening() {
        llama_log_get(&listener, &data);
        llama_log_set([](ggml_log_level level, const char * text, void * self) {
            auto & said = static_cast<Listening *>(self)->said;
            if (level == GGML_LOG_LEVEL_ERROR && said.empty()) {
                said = text;
            }
        }, this);
    }
    ~Listening() { llama_log_set(listener, data); }

    edgekv_status refusal() const { return fail(EDGEKV_UNSUPPORTED, said.empty() ? "llama.cpp gives no reason" : said); }
};

// Objects and arrays of whole numbers.
struct Json {
    std::string text = "{";

    void name(const char * key) { text += std::string(text.back() == '{' ? "" : ", ") + "\"" + key + "\": "; }
    void put(const char * key, int64_t value) { name(key); text += std::to_string(value); }
    void list(std::initializer_list<int64_t> values) {
        text += text.back() == '[' ? "[" : ", [";
        for (const int64_t value : values) {
            text += std::string(text.back() == '[' ? "" : ", ") + std::to_string(value);
        }
        text += "]";
    }
};

int64_t row_bytes(const ggml_tensor * rows) { return rows ? static_cast<int64_t>(rows->nb[1]) : 0; }
int64_t numbers(const ggml_tensor * rows) { return rows ? rows->ne[0] : 0; }

void put_vocabulary(const llama_model * model, Json & out) {
    const llama_vocab * vocab = llama_model_get_vocab(model);
    const int n = llama_vocab_n_tokens(vocab);
    out.put("n_vocab", n);
    out.name("ends");
    out.text += "[";
    for (int token = 0; token < n; ++token) {
        if (llama_vocab_is_eog(vocab, token)) {
            out.text += std::string(out.text.back() == '[' ? "" : ", ") + std::to_string(token);
        }
    }
    out.text += "]";
    out.put("template", llama_model_chat_template(model, nullptr) != nullptr);
}

void put_layers(const llama_context * lctx, Json & out) {
    out.name("layers");
    out.text += "[";
    for (int il = 0; il < llama_edgekv_n_layer(lctx); ++il) {
        const Layer layer = look_at_layer(lctx, il);
        out.list({ layer.llama.kind, layer.info.state, layer.llama.n_head, layer.llama.n_head_kv, layer.llama.head_dim_k, layer.llama.head_dim_v });
    }
    out.text += "]";
}

void put_caches(const llama_context * lctx, Json & out) {
    out.name("caches");
    out.text += "[";
    llama_edgekv_cache cache;
    for (int i = 0; llama_edgekv_get_cache(lctx, i, &cache); ++i) {
        const ggml_tensor * k = cache.k;
        out.list({ cache.holds, cache.il, numbers(k), row_bytes(k), numbers(cache.v), row_bytes(cache.v), k->ne[1], k->ne[2] });
    }
    out.text += "]";
}

// A cache whose layers have no KV heads takes no byte, and llama.cpp takes the empty buffer for memory that it was refused. Simulated, none is missing.
bool has_empty_cache(const llama_context * lctx) {
    std::map<llama_edgekv_content, size_t> n_bytes;
    llama_edgekv_cache cache;
    for (int i = 0; llama_edgekv_get_cache(lctx, i, &cache); ++i) {
        n_bytes[cache.holds] += ggml_nbytes(cache.k) + (cache.v ? ggml_nbytes(cache.v) : 0);
    }
    return std::any_of(n_bytes.begin(), n_bytes.end(), [](const auto & kind) { return kind.second == 0; });
}

}  // namespace

edgekv_status edgekv_open_header(const char * path, struct llama_model ** out) {
    return guarded([&] {
        const Listening listening;
        llama_model_params params = llama_model_default_params();
        params.no_alloc     = true;
        params.load_mode    = LLAMA_LOAD_MODE_NONE;
        params.n_gpu_layers = 0;
        llama_model_kv_override overrides[2] = {};  // an empty one ends the list
        std::strcpy(overrides[0].key, LLAMA_EDGEKV_SIZES_ALONE);
        params.kv_overrides = overrides;
        *out = llama_model_load_from_file(path, params);
        return *out ? EDGEKV_OK : listening.refusal();
    });
}

edgekv_status edgekv_inspect(struct llama_model * model, const edgekv_context_size * of, const char ** out) {
    return guarded([&] {
        const Listening listening;
        llama_context_params params = llama_context_default_params();
        params.n_ctx           = of->n_ctx;
        params.n_seq_max       = of->n_seq;
        params.kv_unified      = of->unified;
        params.n_batch         = of->n_ubatch;
        params.n_ubatch        = of->n_ubatch;
        params.n_outputs_max   = of->n_seq;
        params.type_k          = static_cast<ggml_type>(of->type_k);
        params.type_v          = static_cast<ggml_type>(of->type_v);
        params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
        params.swa_full        = false;
        llama_context * lctx = llama_init_from_model(model, params);
        if (!lctx) {
            return listening.refusal();
        }
        if (has_empty_cache(lctx)) {
            llama_free(lctx);
            return fail(EDGEKV_UNSUPPORTED, "one of its KV caches has only layers without KV heads, which take no memory");
        }
        llama_edgekv_memory memory;
        llama_edgekv_get_memory(lctx, &memory);
        Json json;
        put_vocabulary(model, json);
        put_layers(lctx, json);
        put_caches(lctx, json);
        json.put("n_window", memory.n_swa);
        json.put("chunks", memory.chunks);
        json.put("n_listed", memory.n_listed);
        json.put("mla", memory.mla);
        json.put("cache_bytes", static_cast<int64_t>(memory.caches));
        json.put("compute_bytes", static_cast<int64_t>(memory.compute));
        llama_free(lctx);
        thread_local std::string text;
        text = json.text + "}";
        *out = text.c_str();
        return EDGEKV_OK;
    });
}
