// The glue between llama.cpp and EdgeKV. It is compiled into libllama; the patches in patches/ only add calls of its functions.
//
//   libllama (patched call sites) --> this glue --> the hook table --> libedgekv
//
// libllama does not know libedgekv: until llama_edgekv_set_hooks() registers a table, every call below does nothing. Hooks run on the thread that
// calls llama_decode(), or creates or frees the context.
#pragma once

#include "ggml-backend.h"
#include "ggml.h"
#include "llama.h"

#include <stddef.h>
#include <stdint.h>

// Raise it with every change of a struct or function of this header; both sides compare it before any other call.
#define LLAMA_EDGEKV_ABI 26

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
    struct ggml_tensor * v_cur;  // null, like v_idxs and v, if rows of K hold V
    struct ggml_tensor * k_idxs;  // i64 [n_tokens]: rows in the cache, counted through all streams
    struct ggml_tensor * v_idxs;
    struct ggml_tensor * k;  // the view of the cache that attention will read: [head_dim, n_head_kv, n_kv, n_stream]
    struct ggml_tensor * v;
};

// attend the cache of layer il
struct llama_edgekv_attend {
    struct ggml_context * ctx;
    struct ggml_cgraph  * gf;
    int il;
    struct ggml_tensor * q;  // f32 [head_dim, n_head, n_tokens]
    struct ggml_tensor * k;  // the view given to the store
    struct ggml_tensor * v;  // if rows of K hold V: a view of their first channels
    struct ggml_tensor ** k_stock;  // the tensors that stock nodes read if they serve; a hook may set others of the same shape
    struct ggml_tensor ** v_stock;
    struct ggml_tensor * mask;  // f16 or f32 [n_kv, n_tokens/n_stream, 1, n_stream]
    struct ggml_tensor * sinks;  // f32 [n_head] or null
    float scale;
    float softcap;  // 0: none
    float max_bias;  // ALiBi: each head multiplies the mask by its slope; 0: none
    bool plain;  // false: the attention has a bias or a choice of cells that these arguments do not show
    // i32 [n_top_k, n_tokens/n_stream, 1, n_stream]: an index chose these cells of the view for each token, in any order; the token attends
    // those of them that the mask shows. Null: it attends all cells that the mask shows.
    struct ggml_tensor * top_k;
};

// multiply weights by the ubatch's tokens: one matrix by all tokens, or each expert's matrix by the tokens that chose the expert
struct llama_edgekv_product {
    struct ggml_context * ctx;
    uint64_t graph;  // number of the graph, unique on this thread
    struct ggml_tensor * weights;  // [n_in, n_out] or [n_in, n_out, n_experts]
    struct ggml_tensor * tokens;  // f32 [n_in, n_tokens] or [n_in, n_used, n_tokens]; n_used 1: all of a token's experts share the values
    struct ggml_tensor * ids;  // i32 [n_used, n_tokens]: each token's experts; null: the weights are one matrix
};

// the tokens of a ubatch: token i belongs to n_seq_id[i] sequences, seq_id[i]
struct llama_edgekv_tokens {
    int n;
    const int32_t * n_seq_id;
    llama_seq_id * const * seq_id;
};

struct llama_edgekv_hooks {
    void (*context_created)(struct llama_context * lctx);
    void (*context_freed)(struct llama_context * lctx);

    // around one ubatch; ok is false if it was not computed completely
    void (*ubatch_begin)(struct llama_context * lctx, const struct llama_edgekv_tokens * tokens);
    // The reason why llama_decode must fail; null: none. Called after ubatch_begin, and again after the graph was computed.
    const char * (*ubatch_failure)(struct llama_context * lctx);
    void (*ubatch_end)(struct llama_context * lctx, bool ok);

    // while the graph of a ubatch is built; false/null: the stock nodes serve
    bool                 (*build_store) (struct llama_context * lctx, const struct llama_edgekv_store  * args);
    struct ggml_tensor * (*build_attend)(struct llama_context * lctx, const struct llama_edgekv_attend * args);
    struct ggml_tensor * (*build_product)(struct llama_context * lctx, const struct llama_edgekv_product * args);

    // While a KV cache is made: whether K and V, by default on `device`, shall lie in host memory instead, from where the hooks will serve them on
    // the device. Called only for layers with a plain cache, and only if all of these are on one device.
    bool (*home_on_host)(ggml_backend_dev_t device);
    bool (*pins_later)(ggml_backend_dev_t device);  // whether they are pinned there as tokens come (llama_edgekv_pin_rows()); else at once

    // whether a context's buffers shall be reserved for graphs with the hooks' nodes
    bool (*plans)(struct llama_context * lctx);

    // While a plain KV cache is made: the number of cells for each stream in place of n_cells; a multiple of 256, at most n_cells. by_layer: each
    // layer can give rows back by itself; n_trained: positions that the model was trained for.
    uint32_t (*kv_cells)(uint32_t n_cells, bool by_layer, uint32_t n_trained);
    // While a KV cache is made: sets the types (ggml_type) of layer il's K and V, of n_layer layers; given are those of the context.
    void (*layer_types)(int il, int n_layer, int32_t * k, int32_t * v);

    void (*prompts)(struct llama_context * lctx, const int32_t * seq_ids, int n);  // see llama_edgekv_set_prompts()

    bool (*enabled)(void);  // false: call sites without a context change nothing

    // bytes of host memory that can be taken now; below 0: not known. Asked when a cache is about to take more.
    int64_t (*free_bytes)(void);

    // while keys turn: all K of layer il were written, given-back ones too
    void (*keys_turned)(struct llama_context * lctx, int il);
};

// ---- exports of libllama, for libedgekv --------------------------------------------------------------------------------------

LLAMA_API int          llama_edgekv_abi(void);  // LLAMA_EDGEKV_ABI of the loaded libllama
LLAMA_API const char * llama_edgekv_upstream(void);  // the upstream version that libllama was built from

// the table must outlive its use; null removes it
LLAMA_API void llama_edgekv_set_hooks(const struct llama_edgekv_hooks * hooks);

// Makes the context's next ubatch rebuild its graph. Call it on the decoding thread, or while nothing decodes.
LLAMA_API void llama_edgekv_invalidate_graph(struct llama_context * lctx);

// the backend that runs a context's nodes on a device, null: it has none
LLAMA_API ggml_backend_t llama_edgekv_backend(struct llama_context * lctx, ggml_backend_dev_t device);

// Frees the context's compute buffers, until llama_edgekv_reserve() or the next ubatch. Call it while nothing decodes.
LLAMA_API void llama_edgekv_release(struct llama_context * lctx);

// Reserves the context's compute buffers again, for graphs with the hooks' nodes if hooks->plans() says so. false: out of
// memory, and the context is unusable. Call it while nothing decodes.
LLAMA_API bool llama_edgekv_reserve(struct llama_context * lctx);

// Computes a ubatch and a token that mean nothing, and empties the context: backend and driver take what they need. Call it while nothing decodes.
LLAMA_API void llama_edgekv_rehearse(struct llama_context * lctx);

// Names the sequences that read a prompt from the next ubatch on, however few tokens; at first none. On the decoding thread, or while nothing decodes.
LLAMA_API void llama_edgekv_set_prompts(struct llama_context * lctx, const int32_t * seq_ids, int n);

enum llama_edgekv_layer_kind {
    LLAMA_EDGEKV_LAYER_ATTENTION = 0,  // has a plain KV cache of its own
    LLAMA_EDGEKV_LAYER_SWA       = 1,  // sliding window, in a cache of its own; k may be null
    LLAMA_EDGEKV_LAYER_RECURRENT = 2,
    LLAMA_EDGEKV_LAYER_MLA       = 3,  // has a plain cache of its own with compressed rows of K, whose first channels are V
    LLAMA_EDGEKV_LAYER_SHARED    = 4,  // reads another layer's cache, or uses another context's cells
    LLAMA_EDGEKV_LAYER_NONE      = 5,  // has a kind of cache that the glue does not know
    LLAMA_EDGEKV_LAYER_INDEX     = 6,  // an index beside the cache chooses what it attends; k is null if the query brings no list of cells
    LLAMA_EDGEKV_LAYER_IDLE      = 7,  // has neither attention nor a state
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
    ggml_backend_dev_t device;  // the layer's nodes run on it
    struct ggml_tensor * k;  // the whole cache: [n_embd_k, n_cells, n_stream]; null if the kind has none
    struct ggml_tensor * v;
};

LLAMA_API int  llama_edgekv_n_layer(const struct llama_context * lctx);
LLAMA_API const struct ggml_tensor * llama_edgekv_get_weights(const struct llama_context * lctx, int i);  // of the model; null past the last
LLAMA_API bool llama_edgekv_get_layer(const struct llama_context * lctx, int il, struct llama_edgekv_layer * out);

// The cells of one stream, in place. Pointers stay valid until the context is freed; each decode and llama_memory_* call changes the content.
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
    uint64_t n_turned;  // times that K of cells turned because gaps closed; the cells hold the same tokens, and their times stay
    uint64_t n_copied, copied_from;  // times that another stream's cells and rows replaced all of this one's, and that stream, the last time
    uint8_t * labels;  // [n_cells] bits of llama_edgekv_label: a ubatch sets them atomically, on any thread; a placement clears, a stream's copy copies them
};

// the way in which a cell's token was read, unless it was read exactly
enum llama_edgekv_label {
    LLAMA_EDGEKV_SPARSE_PROMPT = 1,  // by a prompt that attended only part of the visible cells; saved and loaded with the state
    LLAMA_EDGEKV_SAMPLED       = 2,  // by a decode step that sampled; not in saved states
    LLAMA_EDGEKV_EARLIER       = 4,  // by either of these, with settings that are no longer in force; Python sets it
    LLAMA_EDGEKV_ROUNDED       = 8,  // exactly, but its rows came from a store that had rounded them; Python sets it; not in saved states
    LLAMA_EDGEKV_PARTIAL       = 16, // in some way, and some layers have given its rows back; saved states leave the token out
};

// false: the context has no KV cache that the glue knows, or no such stream
LLAMA_API bool llama_edgekv_get_cells(const struct llama_context * lctx, uint32_t stream, struct llama_edgekv_cells * out);

struct llama_edgekv_range {
    uint32_t first;
    uint32_t end;  // the last cell + 1
};

// Gives ranges that hold every cell of a stream that changed after clock time `since`. Ranges may overlap and may also hold unchanged cells.
// Returns their number, at most `capacity` (1 or more): one range of all cells if the log of changes is too short or has too many.
// The cost grows with the changes, not with the cells. 0 without a cache.
LLAMA_API int llama_edgekv_get_changed(
        const struct llama_context * lctx, uint32_t stream, uint64_t since, struct llama_edgekv_range * out, int capacity);

// Empties cells of a stream of the plain cache and returns the number that were not empty. Tokens in the context's other caches (sliding
// windows) stay, and so do another context's cells, which a draft model may use. Call it on the decoding thread, or while nothing decodes.
LLAMA_API int llama_edgekv_free_cells(struct llama_context * lctx, uint32_t stream, const uint32_t * cells, int n);

// Whether layer il can give back rows of its own, which no other layer reads: they are zeros then, and take no memory until they are written.
LLAMA_API bool llama_edgekv_gives_rows_back(const struct llama_context * lctx, int il);
// From now on the layer's rows take memory in small pages of the system.
LLAMA_API void llama_edgekv_in_small_pages(struct llama_context * lctx, int il);
// Gives back K and V of a layer's cells [first, end) of a stream, as far as they are whole pages of the system, and waits for whoever reads them
// on another thread. Decoding thread, or a K-shift's node.
LLAMA_API void llama_edgekv_give_rows_back(struct llama_context * lctx, int il, uint32_t stream, uint32_t first, uint32_t end);

// The bytes that K and V of more tokens of n sequences take, beyond the memory that the caches have; 0: none, or not in growing memory.
LLAMA_API int64_t llama_edgekv_growth(const struct llama_context * lctx, const int * seq_ids, const int * n_tokens, int n);
// Whether so many bytes can be taken now. early: for a batch that is not built yet, which must not be refused later.
LLAMA_API bool llama_edgekv_may_take(int64_t n_bytes, bool early);
// whether the newest llama_decode() of this thread failed for want of such memory
LLAMA_API bool llama_edgekv_refused(void);
// stop: the context computes nothing until the call with false; its abort callback stays what it was. Decoding thread.
LLAMA_API void llama_edgekv_stop(struct llama_context * lctx, bool stop);
// Waits until no thread holds these cells. Call it before you write their rows.
LLAMA_API void llama_edgekv_wait_for_cells(struct llama_context * lctx, uint32_t stream, const uint32_t * cells, int n);

// Allows gaps: cells of the plain cache will be freed, so a batch may follow a position that its sequence lacks. Before a token would be rotated
// by position n_positions or a later one, gaps close: K of the sequence's tokens turns, as by a K-shift, so that tokens are rotated by their
// number among the cells. Positions of cells stay as they are. 0: half of the trained positions that the cells leave. Gaps stay if K cannot
// turn, or where sequences share a cache: llama_edgekv_closes_gaps(). llama_memory_seq_add() must not be called then.
LLAMA_API void llama_edgekv_allow_gaps(struct llama_context * lctx, int n_positions);
LLAMA_API bool llama_edgekv_closes_gaps(const struct llama_context * lctx);

// the data that a context keeps of its tokens
enum llama_edgekv_keeps {
    LLAMA_EDGEKV_KEEPS_ROWS      = 0,  // only rows in caches of its own: computed rows can be put back, and nothing else is needed
    LLAMA_EDGEKV_KEEPS_SNAPSHOTS = 1,  // windows of sliding layers or recurrent states, with or without rows; readable only after the newest token
    LLAMA_EDGEKV_KEEPS_WHOLE     = 2,  // data readable only as a whole, after the newest token: rows of several tokens, or a transposed V
    LLAMA_EDGEKV_KEEPS_OTHER     = 3,  // nothing that can be put back: another context has the data, or this one has no memory
};
LLAMA_API enum llama_edgekv_keeps llama_edgekv_what_is_kept(const struct llama_context * lctx);
LLAMA_API bool llama_edgekv_keeps_snapshots(const struct llama_context * lctx);  // KEEPS_SNAPSHOTS or KEEPS_WHOLE

// A layer's rows, one for each token: [bytes of a row, n_cells, n_stream]; null: the layer keeps none.
struct llama_edgekv_rows {
    struct ggml_tensor * k;
    struct ggml_tensor * v;
    struct ggml_tensor * index;  // the key by which an index finds the token
};
// false: the layer keeps no rows that can be put back one by one
LLAMA_API bool llama_edgekv_get_rows(const struct llama_context * lctx, int il, struct llama_edgekv_rows * out);

// Places n more tokens of a sequence in the plain cache. They replace its tokens from position first_pos on, whose memory they get. out [n]
// are their cells, in the sequence's stream. The caller writes their K and V before the next ubatch, and puts in a snapshot after the last if the
// context keeps any. tokens [n], or null: token numbers, which some models look back at; below 0: embeddings. at [3][n], or null: position, line
// and column of each token, if they do not follow from first_pos. parked: some of them, whose rows bring their memory (llama_edgekv_unpark()); or null.
// false: too few empty cells, too little memory, or nothing can be put back. Call it on the decoding thread, or while nothing decodes.
LLAMA_API bool llama_edgekv_add_cells(
        struct llama_context * lctx, int seq_id, int first_pos, int n, const int32_t * tokens, const int32_t * at,
        const struct llama_edgekv_returning * parked, uint32_t * out);

// Turns K of a sequence's tokens at positions [first_pos, end_pos) by so many positions, with the next K-shift: their rows were computed that much
// earlier. Only where llama_memory_can_shift(), and without gaps. Call it on the decoding thread, once their rows are written.
LLAMA_API void llama_edgekv_turn(struct llama_context * lctx, int seq_id, int first_pos, int end_pos, int by);

// Gives the lines and columns [n] in an image of the tokens in cells [n] of a stream, for models whose positions have several dimensions. For
// a text token both are its position. Zeros if positions have one dimension.
LLAMA_API void llama_edgekv_in_image(const struct llama_context * lctx, uint32_t stream, const uint32_t * cells, int n, int32_t * lines, int32_t * columns);

// A snapshot is everything that a sequence keeps besides rows, after its newest token, or the whole sequence (KEEPS_WHOLE). Its bytes do not
// depend on the numbers of slots and cells, except that a whole sequence's depend on the number of slots; so does llama_edgekv_describe() then.
// Call these functions on the decoding thread, or while nothing decodes.
// Returns the snapshot's number of bytes; out, unless null, gets the bytes if they are at most `capacity`. 0: there is none.
LLAMA_API size_t llama_edgekv_get_snapshot(struct llama_context * lctx, int seq_id, void * out, size_t capacity);
// Puts in a snapshot that was taken before the token at `position`. Rows of earlier tokens must be there; rows from `position` on are removed.
// false: the snapshot does not fit this context, and the sequence is now empty.
LLAMA_API bool llama_edgekv_set_snapshot(struct llama_context * lctx, int seq_id, int position, const void * bytes, size_t n_bytes);

// rotary position embedding as the context applies it
struct llama_edgekv_rope {
    int   n_rot;  // rotated channels
    float freq_base;
    float freq_scale;  // factor of positions
};

// false: the model has none
LLAMA_API bool llama_edgekv_get_rope(const struct llama_context * lctx, struct llama_edgekv_rope * out);

typedef void (*llama_edgekv_sink)(void * user, const void * bytes, size_t n);

// Writes to the sink, in pieces, everything that a token's K and V depend on besides the weights of the model's file and the tokens up to it: the
// graph as this context builds it (cache types and rotation, rotary embedding with its factors, attention, control vector with its content,
// ...), and the hyperparameters. Contexts with equal rows for equal tokens give equal bytes, whatever their numbers of cells, slots and threads.
// The bytes include `adapter`, which may be null, with its content at scale 1, but no adapter in force. false, without bytes: nothing can be
// put back. Call it on the decoding thread, or while nothing decodes.
LLAMA_API bool llama_edgekv_describe(struct llama_context * lctx, struct llama_adapter_lora * adapter, llama_edgekv_sink sink, void * user);

// the stream that holds the cells of a sequence, -1 without a cache
LLAMA_API int llama_edgekv_stream_of(const struct llama_context * lctx, int seq_id);

#ifdef __cplusplus
}

#include "llama-edgekv-home.h"
#include "llama-edgekv-labels.h"
#include "llama-edgekv-places.h"

#include <vector>

// ---- for the patched call sites ----------------------------------------------------------------------------------------------

struct llm_graph_context;
struct llama_model;
struct llama_ubatch;
class  llama_kv_cache_context;

void llama_edgekv_context_created(llama_context * lctx);
void llama_edgekv_context_freed(llama_context * lctx);

bool llama_edgekv_build_store(
        const llm_graph_context & graph, const llama_kv_cache_context * mctx,
        ggml_tensor * k_cur, ggml_tensor * v_cur, ggml_tensor * k_idxs, ggml_tensor * v_idxs, int il);

// While it lives, build_attn_mha() knows how a mask was made: it shows those cells of `shown` that are in top_k.
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
    ggml_tensor *& k;  // a hook may make the stock nodes read other tensors
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
// the node that replaces a product of weights; null: ggml's node stays
ggml_tensor * llama_edgekv_build_product(const llm_graph_context & graph, const ggml_tensor * product);

uint32_t llama_edgekv_kv_cells(const llama_model & model, uint32_t n_cells);  // of a plain cache; upstream's number is `n_cells`

// Names a context to the build hooks while buffers for its graph are reserved, if the hooks plan for it.
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

    bool failed() const;  // a hook reported a failure; the log has the reason
    void computed() { ok = true; }

private:
    llama_context * lctx;
    llama_context * outer;
    bool ok = false;
};
#endif
