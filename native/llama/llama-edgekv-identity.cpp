// Describes everything that K and V of a context's tokens depend on: the graph that computes a token, piece by piece. So no option can be
// forgotten: every change of a row is a change of an operation, its parameters or its sources.
#include "llama-edgekv-access.h"

#include "llama-adapter.h"
#include "llama-batch.h"
#include "llama-graph.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <vector>

namespace {

#if defined(__has_builtin)
#if __has_builtin(__builtin_clear_padding)
#define EDGEKV_CLEARS_PADDING
#endif
#endif

constexpr size_t PIECE_BYTES = 1 << 20;

// Describes equal graphs by equal bytes: operations in their order, sources numbered by first appearance.
class Description {
public:
    Description(const llama_context & lctx, llama_edgekv_sink sink, void * user) : sink(sink), user(user) {
        for (const auto & [name, tensor] : lctx.get_model().tensors_by_name) {
            weights.insert(tensor);
        }
        const auto besides = llama_edgekv_access::besides(&lctx);
        const llama_kv_cache * caches[] = { llama_edgekv_access::cache(&lctx), llama_edgekv_access::index(&lctx), besides.windows };
        for (int il = 0; il < llama_edgekv_n_layer(&lctx); ++il) {
            for (const auto * of : caches) {
                if (const auto * layer = of ? llama_edgekv_access::layer(*of, il) : nullptr) {
                    cache.insert(layer->k);
                    cache.insert(layer->v);
                }
            }
        }
        if (const auto * states = besides.states) {
            for (const auto * all : { &states->r_l, &states->s_l, &states->p_l }) {
                cache.insert(all->begin(), all->end());
                of_slots.insert(all->begin(), all->end());
            }
        }
    }
    ~Description() { sink(user, text.data(), text.size()); }

    Description(const Description &) = delete;
    Description & operator=(const Description &) = delete;

    void add(const void * bytes, size_t n) { text.append(static_cast<const char *>(bytes), n); }

    template <typename T>
    void add(const T & value) {
        static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
        add(&value, sizeof(value));
    }

    void add(const std::string & value) {
        add(static_cast<uint64_t>(value.size()));
        add(value.data(), value.size());
    }

    void add(ggml_cgraph * graph) {
        for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
            add_node(ggml_graph_node(graph, i));
        }
    }

private:
    void add_node(const ggml_tensor * node) {
        if (node->op == GGML_OP_RESHAPE) {
            return;
        }
        for (const auto * source : node->src) {
            add(source ? number_of(source) : UINT32_MAX);
        }
        add(node->view_src ? number_of(node->view_src) : UINT32_MAX);
        add(node->op);
        add(node->type);
        // leaves out parameters that hold addresses (custom functions) or the number of slots (views of all slots' states, or of an input)
        const bool of_all_slots = node->view_src && (of_slots.count(node->view_src) || (node->view_src->op == GGML_OP_NONE && !node->view_src->buffer));
        if (!of_all_slots && (node->op < GGML_OP_MAP_CUSTOM1 || node->op > GGML_OP_CUSTOM)) {
            add(node->op_params, sizeof(node->op_params));
        }
        numbers.emplace(node, next++);
    }

    uint32_t number_of(const ggml_tensor * source) {
        while (source->op == GGML_OP_RESHAPE) {  // a cache with several streams is reshaped
            source = source->src[0];
        }
        const auto [it, is_new] = numbers.emplace(source, next);
        if (is_new) {
            ++next;
            add_leaf(source);
        }
        return it->second;
    }

    // a tensor that is read but not computed: an input, the cache, a weight of the model's file, or another source
    void add_leaf(const ggml_tensor * leaf) {
        add(std::string(leaf->name));
        add(leaf->type);
        add(leaf->flags);
        if (!leaf->buffer || cache.count(leaf)) {
            return;  // numbers of tokens and cells change no row
        }
        add(leaf->ne, sizeof(leaf->ne));
        if (!weights.count(leaf)) {
            add_content(leaf);
        }
    }

    void add_content(const ggml_tensor * tensor) {
        const size_t n_bytes = ggml_nbytes(tensor);
        std::vector<char> piece(std::min(n_bytes, PIECE_BYTES));
        for (size_t first = 0; first < n_bytes; first += PIECE_BYTES) {
            const size_t n = std::min(PIECE_BYTES, n_bytes - first);
            ggml_backend_tensor_get(tensor, piece.data(), first, n);
            add(piece.data(), n);
            sink(user, text.data(), text.size());
            text.clear();
        }
    }

    llama_edgekv_sink sink;
    void * user;
    std::string text;
    std::set<const ggml_tensor *> weights;
    std::set<const ggml_tensor *> cache;
    std::set<const ggml_tensor *> of_slots;  // the cache's tensors with one state per slot
    std::unordered_map<const ggml_tensor *, uint32_t> numbers;
    uint32_t next = 0;
};

// all hyperparameters, from the model's file and the options that override it: some affect inputs and not the graph
void add_hparams(Description & description, const llama_hparams & of) {
    llama_hparams hparams;
    std::memcpy(static_cast<void *>(&hparams), static_cast<const void *>(&of), sizeof(hparams));
#ifdef EDGEKV_CLEARS_PADDING
    __builtin_clear_padding(&hparams);
#endif
    description.add(&hparams, sizeof(hparams));
}

}  // namespace

bool llama_edgekv_describe(llama_context * lctx, llama_adapter_lora * adapter, llama_edgekv_sink sink, void * user) {
    const auto * kv = llama_edgekv_access::cache(lctx);
    if (llama_edgekv_what_is_kept(lctx) == LLAMA_EDGEKV_KEEPS_OTHER) {
        return false;
    }

    // one token of each stream, as when a context's buffers are reserved
    const auto memory = lctx->get_memory()->init_full();
    const uint32_t n_streams = kv ? llama_edgekv_access::n_streams(*kv) : 1;
    llama_batch_allocr balloc(lctx->get_model().hparams.n_pos_per_embd());
    llama_ubatch ubatch = balloc.ubatch_reserve(1, n_streams);
    for (uint32_t s = 0; s < n_streams; ++s) {
        ubatch.n_seq_id[s] = 1;
        ubatch.seq_id[s]   = &ubatch.seq_id_unq[s];
        ubatch.output[s]   = true;
    }

    llama_adapter_loras adapters;
    if (adapter) {
        adapters.emplace(adapter, 1.0f);
    }
    llm_graph_result result(lctx->graph_max_nodes(n_streams));
    auto params = llama_edgekv_access::graph_params(*lctx, result, ubatch, memory.get());
    params.loras     = &adapters;
    params.n_outputs = n_streams;
    params.samplers.clear();
    params.cb = nullptr;  // the callback would name nodes and inform the scheduler
    params.cparams.embeddings              = false;
    params.cparams.embeddings_nextn        = false;
    params.cparams.embeddings_nextn_masked = false;
    params.cparams.warmup                  = false;
    params.cparams.pooling_type            = LLAMA_POOLING_TYPE_NONE;
    params.cparams.embeddings_layer_inp.assign(params.cparams.embeddings_layer_inp.size(), false);
    result.reset();

    Description description(*lctx, sink, user);
    description.add(lctx->get_model().arch_name());
    description.add(lctx->get_cparams().causal_attn);
    add_hparams(description, lctx->get_model().hparams);
    description.add(lctx->get_model().build_graph(params));
    if (llama_edgekv_what_is_kept(lctx) == LLAMA_EDGEKV_KEEPS_WHOLE) {
        description.add(kv ? n_streams : lctx->n_seq_max());  // llama.cpp writes the number of streams into a state
    }
    if (adapter) {
        description.add(adapter->alora_invocation_tokens.data(), adapter->alora_invocation_tokens.size()*sizeof(llama_token));
    }
    return true;
}
