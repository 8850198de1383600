// Tiny models of random weights, one of each architecture that the pinned llama.cpp can make one of:
//     tiny_models list            a line for each architecture: its name, "dense" or "moe", or "-" and why there is no model
//     tiny_models write ARCH FILE [KEY=VALUE...]      with other keys of the architecture: a number, numbers with commas between, or nothing: no such key
// Compiled around upstream's own test, which knows the hyperparameters of each architecture (tests/architectures/making.py).
#define main upstream_main
#include "test-llama-archs.cpp"
#undef main

#include "../src/llama-model.h"

#include <set>
#include <sstream>

static const uint32_t n_ctx = 1024;  // so many positions; upstream's models have 256
static const uint32_t n_top_k = 96;  // cells that an index chooses, fewer than a prompt has; upstream's take all

// architectures whose models upstream's test leaves out for what it does with them, and not for their hyperparameters
static bool made(const llm_arch arch) {
    switch (arch) {
        case LLM_ARCH_GEMMA4:
        case LLM_ARCH_LLAMA_EMBED:
        case LLM_ARCH_GEMMA_EMBEDDING:
        case LLM_ARCH_T5ENCODER:
            return true;
        case LLM_ARCH_EAGLE3:
        case LLM_ARCH_DFLASH:
            return false;
        default:
            return arch_supported(arch);
    }
}

// Weights as upstream draws them, but norms lie around 1: else queries and keys are so small that every token gets the same attention, and
// a wrong mask or a lost row would hardly be seen.
static void set_weights(ggml_tensor * tensor, void * params) {
    set_tensor_data(tensor, params);
    if (tensor->type == GGML_TYPE_F32 && strstr(tensor->name, "norm.weight")) {
        std::vector<float> values(ggml_nelements(tensor));
        ggml_backend_tensor_get(tensor, values.data(), 0, ggml_nbytes(tensor));
        for (float & value : values) {
            value += 1.0f;
        }
        ggml_backend_tensor_set(tensor, values.data(), 0, ggml_nbytes(tensor));
    }
}

static gguf_context_ptr metadata_of(const llm_arch arch) {
    gguf_context_ptr metadata = get_gguf_ctx(arch, moe_mandatory(arch));
    const std::string prefix = std::string(llm_arch_name(arch)) + ".";
    gguf_set_val_u32(metadata.get(), (prefix + "context_length").c_str(), n_ctx);
    gguf_set_val_u32(metadata.get(), (prefix + "attention.indexer.top_k").c_str(), n_top_k);
    if (arch == LLM_ARCH_NEMOTRON_H || arch == LLM_ARCH_NEMOTRON_H_MOE) {  // as in real files, a layer that only feeds forward has no heads
        const uint32_t n_heads[] = { 2, 0, 0 };
        for (const char * key : { "attention.head_count", "attention.head_count_kv" }) {
            gguf_set_arr_data(metadata.get(), (prefix + key).c_str(), GGUF_TYPE_UINT32, n_heads, 3);
        }
    }
    if (arch == LLM_ARCH_GEMMA4) {
        const bool pattern[] = { true, true, true, true, false };
        gguf_set_arr_data(metadata.get(), (prefix + "attention.sliding_window_pattern").c_str(), GGUF_TYPE_BOOL, pattern, 5);
    }

    return metadata;
}

// the state of these is not that of Mamba, whose keys (ssm) the others use
static const char * state_keys(const llm_arch arch) {
    switch (arch) {
        case LLM_ARCH_LFM2:
        case LLM_ARCH_LFM2MOE:      return "shortconv.";
        case LLM_ARCH_KIMI_LINEAR:
        case LLM_ARCH_KIMI_K3:
        case LLM_ARCH_BAILINGMOE3:
        case LLM_ARCH_GLM5_NEXT:    return "kda.";
        default:                    return "ssm.";
    }
}

// Upstream gives every model all keys. A real file has those of its architecture alone, and EdgeKV plans by what stands in the file.
static void remove_foreign_keys(gguf_context * metadata, const llama_model & model) {
    const auto is_foreign = [&](const std::string & key) {
        const auto has = [&](const char * part) { return key.find(part) != std::string::npos; };
        if (has("sliding_window")) {
            return model.hparams.swa_type == LLAMA_SWA_TYPE_NONE;
        }
        for (const char * state : { "shortconv.", "kda.", "ssm.", "wkv." }) {
            if (has(state)) {
                const bool own = std::string(state) == state_keys(model.arch) || has("ssm.conv_kernel");
                return !own || !(llama_model_is_recurrent(&model) || llama_model_is_hybrid(&model));
            }
        }
        if (has(".indexer.")) {
            return model.hparams.indexer_head_size == 0;
        }
        return has("full_attention_interval") && !llama_model_is_hybrid(&model);
    };
    std::vector<std::string> foreign;
    for (int64_t i = 0; i < gguf_get_n_kv(metadata); ++i) {
        if (is_foreign(gguf_get_key(metadata, i))) {
            foreign.push_back(gguf_get_key(metadata, i));
        }
    }
    for (const std::string & key : foreign) {
        gguf_remove_key(metadata, key.c_str());
    }
    if (llama_model_is_recurrent(&model)) {  // Mamba's files have no heads, RWKV's no such keys
        const std::string prefix = std::string(llm_arch_name(model.arch)) + ".";
        gguf_set_val_u32(metadata, (prefix + "attention.head_count").c_str(), 0);
        gguf_set_val_u32(metadata, (prefix + "attention.head_count_kv").c_str(), 0);
    }
}

static void set_keys(gguf_context * metadata, const llm_arch arch, const std::vector<std::string> & given) {
    for (const std::string & one : given) {
        const size_t at = one.find('=');
        const std::string key = std::string(llm_arch_name(arch)) + "." + one.substr(0, at);
        std::vector<uint32_t> numbers;
        std::istringstream values(one.substr(at + 1));
        for (std::string value; std::getline(values, value, ',');) {
            numbers.push_back(static_cast<uint32_t>(std::stoul(value)));
        }
        gguf_remove_key(metadata, key.c_str());
        if (numbers.size() == 1) {
            gguf_set_val_u32(metadata, key.c_str(), numbers[0]);
        } else if (!numbers.empty()) {
            gguf_set_arr_data(metadata, key.c_str(), GGUF_TYPE_UINT32, numbers.data(), numbers.size());
        }
    }
}

static void write(const llm_arch arch, const char * path, const std::vector<std::string> & given) {
    gguf_context_ptr metadata = metadata_of(arch);
    set_keys(metadata.get(), arch, given);
    tensor_data_params random = { /*seed =*/ 1, /*stdev =*/ 0.1f };
    llama_model_params params = llama_model_default_params();
    ggml_backend_dev_t none   = nullptr;
    params.devices = &none;
    params.progress_callback = silent_model_load_progress;
    llama_model_ptr model(llama_model_init_from_user(metadata.get(), set_weights, &random, params));
    if (!model) {
        throw std::runtime_error("llama.cpp makes no model of these hyperparameters");
    }

    gguf_context_ptr file(gguf_init_empty());
    remove_foreign_keys(metadata.get(), *model);
    set_keys(metadata.get(), arch, given);
    gguf_set_kv(file.get(), metadata.get());  // and not its tensors, which only tell the types of some weights
    std::set<std::string> names;
    for (const auto & [name, tensor] : llama_internal_get_tensor_map(model.get())) {
        if (names.insert(name).second) {
            gguf_add_tensor(file.get(), tensor);
        }
    }
    if (!gguf_write_to_file(file.get(), path, false)) {
        throw std::runtime_error(std::string("cannot write ") + path);
    }
}

int main(int argc, char ** argv) {
    llama_log_set([](ggml_log_level level, const char * text, void *) {
        if (level == GGML_LOG_LEVEL_ERROR) {
            fputs(text, stderr);
        }
    }, nullptr);
    const std::string command = argc > 1 ? argv[1] : "";
    if (command == "list" && argc == 2) {
        for (const llm_arch & arch : llm_arch_all()) {
            if (arch != LLM_ARCH_UNKNOWN) {
                printf("%s %s\n", llm_arch_name(arch), !made(arch) ? "-" : moe_mandatory(arch) ? "moe" : "dense");
            }
        }
        return 0;
    }
    if (command != "write" || argc < 4 || llm_arch_from_string(argv[2]) == LLM_ARCH_UNKNOWN) {
        fprintf(stderr, "usage: tiny_models list | tiny_models write ARCH FILE [KEY=VALUE...]\n");
        return 2;
    }
    if (ggml_backend_dev_count() == 0) {
        ggml_backend_load_all_from_path(getenv("EDGEKV_TINY_MODELS_LIBRARIES"));  // a build of which the backends are opened at run time
    }
    try {
        write(llm_arch_from_string(argv[2]), argv[3], { argv + 4, argv + argc });
    } catch (const std::exception & error) {
        fprintf(stderr, "%s: %s\n", argv[2], error.what());
        return 1;
    }
    return 0;
}
