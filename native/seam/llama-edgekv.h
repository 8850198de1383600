// The seam between llama.cpp and EdgeKV. It is compiled into libllama; the patches in patches/ only add calls of what stands here.
//
//   libllama (patched call sites) --> this seam --> the hook table --> libedgekv
//
// libllama knows nothing of libedgekv: until somebody registers a table with llama_edgekv_set_hooks() every call below is a
// no-op and the stock path runs. Hooks run on the thread that calls llama_decode(), or creates or frees the context.
#pragma once

#include "ggml-backend.h"
#include "ggml.h"
#include "llama.h"

#include <stddef.h>
#include <stdint.h>

// raised whenever a struct or function of this header changes; both sides compare it before they talk
#define LLAMA_EDGEKV_ABI 16

#ifdef __cplusplus
extern "C" {
#endif

// ---- arguments of the hooks --------------------------------------------------------------------------------------------------

// store the ubatch's K and V rows in the cache of layer il
struct llama_edgekv_store {
    struct ggml_context * ctx;
    struct ggml_cgraph  * gf;
    int il;
    struct ggml_tensor * k_cur;  // f32 [head_dim, n_head_kv, n_tokens]
    struct ggml_tensor * v_cur;  // null, with v_idxs and v: rows of K hold V
    struct ggml_tensor * k_idxs;  // i64 [n_tokens]: row in the cache, counted through all streams
    struct ggml_tensor * v_idxs;
    struct ggml_tensor * k;  // the cache as attention will see it: [head_dim, n_head_kv, n_kv, n_stream], a view
    struct ggml_tensor * v;
};

// attend the cache of layer il
struct llama_edgekv_attend {
    struct ggml_context * ctx;
    struct ggml_cgraph  * gf;
    int il;
    struct ggml_tensor * q;  // f32 [head_dim, n_head, n_tokens]
    struct ggml_tensor * k;  // the view given to the store
    struct ggml_tensor * v;  // a view of the first channels of the same rows, where rows of K hold V
    struct ggml_tensor ** k_stock;  // the tensors that the stock nodes read, if they serve; a hook may set others of the same shape
    struct ggml_tensor ** v_stock;
    struct ggml_tensor * mask;  // f16 or f32 [n_kv, n_tokens/n_stream, 1, n_stream]
    struct ggml_tensor * sinks;  // f32 [n_head] or null
    float scale;
    float softcap;  // 0: none
    float max_bias;  // ALiBi: each head multiplies the mask with its slope; 0: none
    bool plain;  // false: there is a bias or a choice of cells that these arguments do not show
    // i32 [n_top_k, n_tokens/n_stream, 1, n_stream]: an index chose these cells of the view for each token, in any order; of them it attends
    // those that the mask shows. Null: all that the mask shows.
    struct ggml_tensor * top_k;
};

// multiply weights with the ubatch's tokens: one matrix with all, or each of several, the experts', with those that chose it
struct llama_edgekv_product {
    struct ggml_context * ctx;
    uint64_t graph;  // of this thread: another number for each graph that is built
    struct ggml_tensor * weights;  // [n_in, n_out] or [n_in, n_out, n_experts]
    struct ggml_tensor * tokens;  // f32 [n_in, n_tokens] or [n_in, n_used, n_tokens]; n_used may be 1: the same for all of a token's experts
    struct ggml_tensor * ids;  // i32 [n_used, n_tokens]: each token's experts; null: weights are one matrix
};

// the tokens of a ubatch: token i is of n_seq_id[i] sequences, seq_id[i]
struct llama_edgekv_tokens {
    int n;
    const int32_t * n_seq_id;
    llama_seq_id * const * seq_id;
};

struct llama_edgekv_hooks {
    void (*context_created)(struct llama_context * lctx);
    void (*context_freed)(struct llama_context * lctx);

    // around one ubatch; ok is false where it was not computed to its end
    void (*ubatch_begin)(struct llama_context * lctx, const struct llama_edgekv_tokens * tokens);
    // The reason why llama_decode must fail; null: none. Called behind ubatch_begin, and again when the graph was computed.
    const char * (*ubatch_failure)(struct llama_context * lctx);
    void (*ubatch_end)(struct llama_context * lctx, bool ok);

    // while the graph of a ubatch is built; false/null: the stock nodes serve
    bool                 (*build_store) (struct llama_context * lctx, const struct llama_edgekv_store  * args);
    struct ggml_tensor * (*build_attend)(struct llama_context * lctx, const struct llama_edgekv_attend * args);
    struct ggml_tensor * (*build_product)(struct llama_context * lctx, const struct llama_edgekv_product * args);

    // While a KV cache is made: whether a layer's K and V, which all lie on `device` by default, shall lie in host memory instead,
    // because the hooks will serve them from there on the device. Asked only for layers with a plain cache, and only where all
    // of these are on one device.
    bool (*home_on_host)(ggml_backend_dev_t device);

    // whether the buffers of a context are to be reserved for graphs with the hooks' nodes
    bool (*plans)(struct llama_context * lctx);

    // While a plain KV cache is made: how many cells each stream shall have in place of n_cells; a multiple of 256, not more.
    uint32_t (*kv_cells)(uint32_t n_cells);

    // see llama_edgekv_set_prompts()
    void (*prompts)(struct llama_context * lctx, const int32_t * seq_ids, int n);
};

// ---- exports of libllama, for libedgekv --------------------------------------------------------------------------------------

LLAMA_API int          llama_edgekv_abi(void);  // LLAMA_EDGEKV_ABI of the libllama that is loaded
LLAMA_API const char * llama_edgekv_upstream(void);  // the upstream version it was built from

// the table must outlive its use; null removes it
LLAMA_API void llama_edgekv_set_hooks(const struct llama_edgekv_hooks * hooks);

// The next ubatch of the context builds its graph anew. Call it on the thread that decodes, or while nothing is decoding.
LLAMA_API void llama_edgekv_invalidate_graph(struct llama_context * lctx);

// the backend that runs a context's nodes on a device, null: it has none
LLAMA_API ggml_backend_t llama_edgekv_backend(struct llama_context * lctx, ggml_backend_dev_t device);

// Reserves the context's compute buffers anew, now, for graphs with the hooks' nodes where hooks->plans() says so. false: out of
// memory; the context can then not be used. Call it while nothing is decoding.
LLAMA_API bool llama_edgekv_reserve(struct llama_context * lctx);

// Says which sequences read a prompt from the next ubatch on, however few of their tokens a ubatch holds; none at first. Call it on the thread that decodes, or while nothing is decoding.
LLAMA_API void llama_edgekv_set_prompts(struct llama_context * lctx, const int32_t * seq_ids, int n);

enum llama_edgekv_layer_kind {
    LLAMA_EDGEKV_LAYER_ATTENTION = 0,  // has a plain KV cache of its own
    LLAMA_EDGEKV_LAYER_SWA       = 1,  // sliding window, in a cache of its own; k may be null
    LLAMA_EDGEKV_LAYER_RECURRENT = 2,
    LLAMA_EDGEKV_LAYER_MLA       = 3,  // has a plain cache of its own, of compressed rows of K whose first channels are V
    LLAMA_EDGEKV_LAYER_SHARED    = 4,  // reads the cache of another layer, or has the cells of another context's
    LLAMA_EDGEKV_LAYER_NONE      = 5,  // a kind of cache that the seam does not know
    LLAMA_EDGEKV_LAYER_INDEX     = 6,  // an index beside the cache says what it attends; k is null where no list of cells comes with the query
    LLAMA_EDGEKV_LAYER_IDLE      = 7,  // no attention and no state
};

struct llama_edgekv_layer {
    enum llama_edgekv_layer_kind kind;
    int n_head;
    int n_head_kv;
    int head_dim_k;
    int head_dim_v;
    bool v_transposed;
    bool alibi;
    bool host;  // K and V lie in host memory
    ggml_backend_dev_t device;  // that the layer's nodes run on
    struct ggml_tensor * k;  // the whole cache: [n_embd_k, n_cells, n_stream]; null where the kind has none
    struct ggml_tensor * v;
};

LLAMA_API int  llama_edgekv_n_layer(const struct llama_context * lctx);
LLAMA_API bool llama_edgekv_get_layer(const struct llama_context * lctx, int il, struct llama_edgekv_layer * out);

// The cells of one stream, seen in place. The pointers stay valid until the context is freed; every decode and every llama_memory_* call
// changes the content.
struct llama_edgekv_cells {
    uint32_t n_cells;
    uint32_t n_stream;
    uint32_t n_used;
    uint32_t used_end;  // the last used cell + 1
    uint32_t n_seq_words;  // 64-bit words of sequence bits per cell
    const int32_t  * pos;  // [n_cells], -1: empty
    const uint64_t * seq;  // [n_cells][n_seq_words], bit s: the cell belongs to sequence s
    const uint64_t * changed;  // [n_cells] clock time of the last change
    uint64_t now;  // clock time
    uint8_t * labels;            // [n_cells] bits of llama_edgekv_label. A computed ubatch puts them on, from any thread, atomically; the next
                                 // placement takes them off; a copy of a stream copies them
};

// how a cell's token was read, if it was not read exactly
enum llama_edgekv_label {
    LLAMA_EDGEKV_SPARSE_PROMPT = 1,  // by a prompt that attended a part of what it sees; saved and loaded with the state
    LLAMA_EDGEKV_SAMPLED       = 2,  // by a decode step that sampled; not in saved states
    LLAMA_EDGEKV_EARLIER       = 4,  // one of both, with settings that are no longer in force; put on by Python
};

// false: the context has no KV cache the seam knows, or no such stream
LLAMA_API bool llama_edgekv_get_cells(const struct llama_context * lctx, uint32_t stream, struct llama_edgekv_cells * out);

struct llama_edgekv_range {
    uint32_t first;
    uint32_t end;  // the last cell + 1
};

// Ranges that hold every cell of a stream that changed after clock time `since`; they may overlap, and hold others besides. Returns their
// number, at most `capacity` (1 or more): one range of all cells where the log of changes does not reach back that far, or has more.
// The cost grows with the changes, not with the cells. 0 without a cache.
LLAMA_API int llama_edgekv_get_changed(
        const struct llama_context * lctx, uint32_t stream, uint64_t since, struct llama_edgekv_range * out, int capacity);

// Empties cells of a stream of the plain cache and returns how many were not empty. Tokens in other caches of the context (sliding
// windows) stay, and so do cells that belong to another context, as a draft model's may. Call it on the thread that
// decodes, or while nothing is decoding.
LLAMA_API int llama_edgekv_free_cells(struct llama_context * lctx, uint32_t stream, const uint32_t * cells, int n);

// Holds cells of a stream, so that another thread can read their K/V rows while others are computed: a call that would move or remove the
// cells, or free the context, waits until they are released. On the thread that decodes, between two ubatches. Null: the context has no plain
// cache of its own, or no such stream. Any thread may release them, in order: the first n, or all with the handle.
struct llama_edgekv_hold;
LLAMA_API struct llama_edgekv_hold * llama_edgekv_hold_cells(struct llama_context * lctx, uint32_t stream, const uint32_t * cells, int n);
LLAMA_API void llama_edgekv_release_cells(struct llama_edgekv_hold * hold, int n);
LLAMA_API void llama_edgekv_free_hold(struct llama_edgekv_hold * hold);

// Waits until nobody holds these cells. Call it before you write their rows.
LLAMA_API void llama_edgekv_wait_for_cells(struct llama_context * lctx, uint32_t stream, const uint32_t * cells, int n);

// Allows gaps: cells of the plain cache will be freed, so a batch may begin behind a position that its sequence lacks.
LLAMA_API void llama_edgekv_allow_gaps(struct llama_context * lctx);

// what a context keeps of its tokens
enum llama_edgekv_keeps {
    LLAMA_EDGEKV_KEEPS_ROWS      = 0,  // rows in caches of its own. Those that were computed once can be put back, and nothing else is needed
    LLAMA_EDGEKV_KEEPS_SNAPSHOTS = 1,  // besides, or alone, what can be taken out only behind the newest token: windows of sliding layers, recurrent states
    LLAMA_EDGEKV_KEEPS_WHOLE     = 2,  // what can be taken out all together, behind the newest token: rows of several tokens, a transposed V
    LLAMA_EDGEKV_KEEPS_OTHER     = 3,  // something that cannot be put back: another context has it
};
LLAMA_API enum llama_edgekv_keeps llama_edgekv_what_is_kept(const struct llama_context * lctx);
LLAMA_API bool llama_edgekv_keeps_snapshots(const struct llama_context * lctx);  // some are, or all is

// What a layer keeps of each token: [bytes of a row, n_cells, n_stream]; null where it keeps none.
struct llama_edgekv_rows {
    struct ggml_tensor * k;
    struct ggml_tensor * v;
    struct ggml_tensor * index;  // the key by which an index finds the token
};
// false: the layer keeps no rows that can be put back one by one
LLAMA_API bool llama_edgekv_get_rows(const struct llama_context * lctx, int il, struct llama_edgekv_rows * out);

// Places n more tokens of a sequence in the plain cache, in place of what it has there at positions first_pos and on (below 0: besides all that it
// has): out [n] are their cells, in the sequence's stream. The caller writes their K and V before the next ubatch, and a snapshot behind the last where
// there are any. tokens [n], or null: their numbers, which some models look back at; below 0: embeddings. at [3][n], or null: position, line and
// column of each, where they do not follow from first_pos. false: there are fewer empty cells, or nothing can be put back. Call it on the thread
// that decodes, or while nothing is decoding.
LLAMA_API bool llama_edgekv_add_cells(
        struct llama_context * lctx, int seq_id, int first_pos, int n, const int32_t * tokens, const int32_t * at, uint32_t * out);

// Where in an image the tokens of cells [n] of a stream stand, as a model with positions of several dimensions has it: their lines and columns [n],
// which of a token of text are its position. Zeros where positions have one dimension.
LLAMA_API void llama_edgekv_in_image(const struct llama_context * lctx, uint32_t stream, const uint32_t * cells, int n, int32_t * lines, int32_t * columns);

// A snapshot is what a sequence keeps besides rows, as it is behind its newest token. Its bytes do not depend on the numbers of slots and cells;
// those of a whole sequence depend on how many slots there are, and so does llama_edgekv_describe().
// Call these on the thread that decodes, or while nothing is decoding.
// The number of its bytes; out, unless null, gets them where they are at most `capacity`. 0: there is none.
LLAMA_API size_t llama_edgekv_get_snapshot(struct llama_context * lctx, int seq_id, void * out, size_t capacity);
// Puts one in that was taken before the token at `position`; rows of those before are there, and rows from there on go. false: it is none of this context, and the sequence
// is empty now.
LLAMA_API bool llama_edgekv_set_snapshot(struct llama_context * lctx, int seq_id, int position, const void * bytes, size_t n_bytes);

// rotary position embedding as the context applies it
struct llama_edgekv_rope {
    int   n_rot;  // channels that are turned
    float freq_base;
    float freq_scale;  // positions are multiplied with it
};

// false: the model has none
LLAMA_API bool llama_edgekv_get_rope(const struct llama_context * lctx, struct llama_edgekv_rope * out);

typedef void (*llama_edgekv_sink)(void * user, const void * bytes, size_t n);

// Tells the sink, in pieces, everything that K and V of a token depend on besides the weights of the model's file and the tokens up to it: the
// graph as this context builds it (cache types and rotation, rotary embedding with its factors, attention, control vector with its content,
// ...), and the hyperparameters. Contexts with equal rows for equal tokens give equal bytes, whatever their numbers of cells, slots and threads.
// The bytes include `adapter`, which may be null, with its content at scale 1, but no adapter in force. false, and no bytes, where
// nothing can be put back. Call it on the thread that decodes, or while nothing is decoding.
LLAMA_API bool llama_edgekv_describe(struct llama_context * lctx, struct llama_adapter_lora * adapter, llama_edgekv_sink sink, void * user);

// the stream that holds the cells of a sequence, -1 without a cache
LLAMA_API int llama_edgekv_stream_of(const struct llama_context * lctx, int seq_id);

#ifdef __cplusplus
}

#include <vector>

// ---- for the patched call sites ----------------------------------------------------------------------------------------------

struct llm_graph_context;
struct llama_model;
struct llama_ubatch;
class  llama_io_read_i;
class  llama_kv_cache_context;

void llama_edgekv_context_created(llama_context * lctx);
void llama_edgekv_context_freed(llama_context * lctx);

bool llama_edgekv_build_store(
        const llm_graph_context & graph, const llama_kv_cache_context * mctx,
        ggml_tensor * k_cur, ggml_tensor * v_cur, ggml_tensor * k_idxs, ggml_tensor * v_idxs, int il);

// While it lives, build_attn_mha() knows a mask for what it is: of the cells that `shown` shows, those in top_k.
class llama_edgekv_choice {
public:
    llama_edgekv_choice(const ggml_tensor * mask, ggml_tensor * shown, ggml_tensor * top_k);
    ~llama_edgekv_choice();

    llama_edgekv_choice(const llama_edgekv_choice &) = delete;
    llama_edgekv_choice & operator=(const llama_edgekv_choice &) = delete;

    const ggml_tensor * const mask;
    ggml_tensor * const shown;
    ggml_tensor * const top_k;
};

// the arguments of build_attn_mha(), in their order
struct llama_edgekv_mha {
    ggml_tensor *  q;
    ggml_tensor *& k;  // a hook may have the stock nodes read others
    ggml_tensor *& v;
    ggml_tensor *  kq_b;
    ggml_tensor *  mask;
    ggml_tensor *  sinks;
    ggml_tensor *  v_mla;
    int64_t n_kv_max;
    float   scale;
    int     il;
};

ggml_tensor * llama_edgekv_build_attend(const llm_graph_context & graph, const llama_edgekv_mha & mha);
// the node in place of a product of weights; null: ggml's stays
ggml_tensor * llama_edgekv_build_product(const llm_graph_context & graph, const ggml_tensor * product);

// the buffer type for layer il's K and V; upstream's is `buft`
ggml_backend_buffer_type_t llama_edgekv_home(const llama_model & model, int il, bool v_trans, ggml_backend_buffer_type_t buft);

// Asks for huge pages for the memory of a KV cache that is allocated and not yet written, where that is host memory. Scattered rows then
// cost fewer misses of the TLB.
void llama_edgekv_huge_pages(ggml_backend_buffer_t buf);

// Labels in a saved state. Where a sparse prompt read a cell, the label is one more of its sequences, with a number that no sequence has.
void llama_edgekv_add_label(uint8_t labels, std::vector<llama_seq_id> & seq_ids);
// whether a sequence is the label; it is then put on
bool llama_edgekv_take_label(uint8_t & labels, llama_seq_id seq_id);

// those of a state that holds one sequence, whose number is followed by the label
class llama_edgekv_saved_labels {
public:
    explicit llama_edgekv_saved_labels(uint32_t n) : labels(n) {}

    // a cell has so many sequences: without the label from here on
    void announce(uint32_t i, uint32_t & n_seq_id);
    // false: it is another sequence, and the log says so
    bool read(uint32_t i, llama_io_read_i & io);
    // where the cells were placed
    void put_on(std::vector<uint8_t> & to, const std::vector<uint32_t> & cells) const;

private:
    std::vector<uint8_t> labels;
};

// whether llama_edgekv_allow_gaps() was called for the context of this memory
bool llama_edgekv_has_gaps(const struct llama_memory_i * memory);

// the number of cells of a plain cache; upstream's is `n_cells`
uint32_t llama_edgekv_kv_cells(const llama_model & model, uint32_t n_cells);

// Names a context to the build hooks while buffers are reserved for its graph, if the hooks plan for it.
class llama_edgekv_planning {
public:
    explicit llama_edgekv_planning(llama_context * lctx);
    ~llama_edgekv_planning();

    llama_edgekv_planning(const llama_edgekv_planning &) = delete;
    llama_edgekv_planning & operator=(const llama_edgekv_planning &) = delete;

private:
    llama_context * outer;
};

// Names a context to the build hooks while one of its ubatches is built and computed.
class llama_edgekv_ubatch {
public:
    llama_edgekv_ubatch(llama_context * lctx, const llama_ubatch & ubatch);
    ~llama_edgekv_ubatch();

    llama_edgekv_ubatch(const llama_edgekv_ubatch &) = delete;
    llama_edgekv_ubatch & operator=(const llama_edgekv_ubatch &) = delete;

    bool failed() const;  // a hook says so; the log has the reason
    void computed() { ok = true; }

private:
    llama_context * lctx;
    llama_context * outer;
    bool ok = false;
};
#endif
