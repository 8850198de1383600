/* llama.cpp's HTTP server, run inside this process.
 *
 * edgekv_server_run() blocks until the server ends; argv[0] is a program name, the rest are llama-server's options, argv[argc] is null.
 * One server runs at a time. SIGINT and SIGTERM stay with the program around it.
 * edgekv_server_terminate() asks a running server to end. Any thread may call it once the server has answered a request.
 */
#ifndef EDGEKV_SERVER_H
#define EDGEKV_SERVER_H

#include "edgekv_base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* cffi: begin */

EDGEKV_API void edgekv_server_terminate(void);
EDGEKV_API const char * edgekv_server_error(void);

/* Makes the task loop turn, an idle one too: it calls refresh() (edgekv_server_settings), unless it computes. 0: no loop runs, since a model is
   being loaded or no server runs, or the server sleeps. From any thread */
EDGEKV_API int edgekv_server_turn(void);

/* Prefixes: K and V of tokens that an earlier request computed. */

#define EDGEKV_PREFIX_BLOCK 256

/* a LoRA adapter that K and V are computed with */
typedef struct {
    uintptr_t adapter; /* address of the llama_adapter_lora; it lives as long as the context */
    float scale;       /* not 0 */
} edgekv_adapter;

/* an image or a sound in a prompt: n tokens from `first` on are its embeddings, without token numbers; the last may lie past n_tokens */
typedef struct {
    int first;
    int n;
    const char * id; /* digests of its file and of everything that its embeddings are computed from */
} edgekv_medium;

/* the first n tokens of a prompt stay for ttl_s seconds, at least */
typedef struct {
    int n;
    int ttl_s;
} edgekv_mark;

typedef struct {
    struct llama_context * lctx;
    int seq_id;
    const int32_t * tokens; /* -1: an embedding of a medium */
    int n_tokens;
    const edgekv_medium * media; /* in order */
    int n_media;
    const int32_t * at;     /* [3][n_tokens]: position, line and column of each token; null: positions count up */
    const edgekv_adapter * adapters; /* all adapters that K and V of the tokens depend on */
    int n_adapters;
    const char * space;    /* the namespace; tokens of another namespace are never a prefix of these */
    const edgekv_mark * marks; /* in order */
    int n_marks;
    int in_memory; /* nothing is written to disk or sent to a server */
} edgekv_prefix_tokens;

/* why the tokens of a prompt were computed, from the first that was not found; edgekv.common.enums.MissReason says what each means */
typedef enum {
    EDGEKV_MISS_NONE, /* all were found */
    EDGEKV_MISS_DISABLED,
    EDGEKV_MISS_NOT_ATTACHED,
    EDGEKV_MISS_MODEL_UNKNOWN,
    EDGEKV_MISS_COLD,
    EDGEKV_MISS_DIVERGED,
    EDGEKV_MISS_OTHER_SETTINGS,
    EDGEKV_MISS_NO_CHECKPOINT,
    EDGEKV_MISS_INSIDE_MEDIA,
    EDGEKV_MISS_NO_CELLS,
    EDGEKV_MISS_CHEAPER_TO_COMPUTE,
    EDGEKV_MISS_TIER_DOWN,
    EDGEKV_MISS_DAMAGED,
} edgekv_miss_reason;

/* tokens of a prompt that need not be computed, by their source */
typedef struct {
    int slot;   /* its own sequence had them */
    int shared; /* cells of another slot had them */
    int ram;    /* the RAM store had them; they were put into the sequence */
    int disk;
    int remote;
    int comes;  /* 1: tokens that were put in have cells; their rows come with the next llama_decode() */
    int spacing; /* tokens between two snapshots in the middle of a long prompt; 0: it gets none */
    int missed;    /* an edgekv_miss_reason */
    int missed_at; /* the first token that it is about */
} edgekv_cached_tokens;

/* What a keeper of prefixes does, on the decoding thread between two llama_decode(). A match holds nothing; load() holds what it promised until
   release(). */
typedef struct {
    /* A prompt is about to begin; its sequence holds the first n_have tokens. 1: load() will not wait. 0: kept tokens must leave the sequence first, or
       are being fetched: ask again, or release(). goes_on: as for load(). alone: no answer is running, so the call may take a moment. */
    int (*match)(const edgekv_prefix_tokens * prompt, int n_have, int goes_on, int alone);
    /* A prompt begins; its sequence holds the first n_have tokens. Puts in the next tokens, as many as are kept, and counts them.
       goes_on: -1 if only rows are kept; else the number of tokens (n_have or 0) after which the sequence can continue without a snapshot;
       out->slot has this value already. If a snapshot is put in, out->slot becomes the number of the first n_have tokens that stay. */
    void (*load)(const edgekv_prefix_tokens * prompt, int n_have, int goes_on, edgekv_cached_tokens * out);
    /* Directly before a llama_decode(). 1: the promised rows come while it computes. 0: they do not; release() is called first. */
    int (*start)(void);
    /* The sequence holds these tokens, all computed. rows: keep them. snapshot: it holds no others; keep a snapshot behind them. */
    void (*insert)(const edgekv_prefix_tokens * held, int rows, int snapshot);
    /* A match is given up, or promised rows are waited for. Returns the number of tokens before the first one whose rows are lost, never within a
       medium; -1: none is lost. out: the tokens that were put in, by their source. */
    int (*release)(int seq_id, edgekv_cached_tokens * out);
    /* There is no memory for tokens that come: at least so many bytes of RAM's least recently used rows go. 0: none went. */
    int (*evict)(size_t n_bytes);
} edgekv_prefixes;

/* a run of a conversation's tokens */
typedef struct {
    int first;
    int n;
} edgekv_run;

/* the exchanges of a conversation that left its context; an exchange is a user's message and everything that answers it */
typedef struct {
    const int32_t * tokens; /* of the whole conversation, with its newest message */
    int n_tokens;
    const edgekv_run * runs; /* of these exchanges, in order */
    int n_runs;
} edgekv_exchanges;

typedef struct {
    /* Exchanges are leaving a sequence: the held tokens hold exchange i from at[i] on, computed; -1: they do not hold it. */
    void (*leave)(const edgekv_prefix_tokens * held, const edgekv_exchanges * gone, const int * at);
    /* The held tokens are computed; those from `turn` on are the newest message, or the last of it. Writes the numbers of the exchanges that come back,
       in order, with at most `most` tokens, and returns how many. */
    int (*choose)(const edgekv_prefix_tokens * held, int turn, const edgekv_exchanges * gone, int most, int * which);
    /* Puts the rows of an exchange into the sequence, behind the held tokens, and counts them in `out`. Returns the position of the first when it was
       computed; -1: not all rows are kept, nothing was put in. */
    int (*put)(const edgekv_prefix_tokens * held, const edgekv_exchanges * gone, int which, edgekv_cached_tokens * out);
} edgekv_recalls;

/* Whether the tokens of the running server's context can move to other positions; 0 while it loads. */
EDGEKV_API int edgekv_server_moves(void);

/* The file with which the running server computes embeddings of media; empty: it has none, or is loading. Lives as long as the server runs. */
EDGEKV_API const char * edgekv_server_projector(void);

/* Most bytes that this projector takes, in any memory: its weights and work buffers. Nothing is loaded. 0: llama.cpp cannot use the file. */
EDGEKV_API int64_t edgekv_server_projector_bytes(const char * path);

/* Whether this build has llama.cpp's chat page (EDGEKV_UI=on). */
EDGEKV_API int edgekv_server_has_ui(void);

/* The table of fields, a line each: letters of endpoints, name, "done", "refused" or "said", what is allowed, a note; tabs between. */
EDGEKV_API const char * edgekv_server_fields(void);

/* figures of the pace since the server started; seconds */
typedef struct edgekv_server_pacing {
    double   max_gap_s;      /* the bound; 0: none */
    double   worst_gap_s;    /* longest time between two tokens of a running answer */
    double   last_gap_s;
    uint64_t n_mixed;        /* batches that held prompt tokens and the next tokens of running answers */
    int32_t  n_prompt_batch; /* prompt tokens allowed in the newest mixed batch */
    int32_t  n_requests;     /* answered or waiting now */
    uint64_t n_refused;      /* requests refused for lack of a place */
    int32_t  n_running;      /* busy slots when the newest batch began */
} edgekv_server_pacing;

/* from any thread */
EDGEKV_API void edgekv_server_pace(edgekv_server_pacing * pacing);

/* estimated seconds for n tokens of a prompt after its first `first` tokens, from the newest batches; 0: no batch yet. From any thread */
EDGEKV_API double edgekv_server_reading_s(int64_t first, int64_t n);

#define EDGEKV_TIERS 4        /* slot, ram, disk, remote */
#define EDGEKV_MISS_REASONS 13

#define EDGEKV_WAIT_BOUNDS 22

/* waiting times since the server started; seconds */
typedef struct {
    double   bounds[EDGEKV_WAIT_BOUNDS];
    uint64_t counts[EDGEKV_WAIT_BOUNDS + 1]; /* waits up to each bound and above the previous one; last: waits above all bounds */
    double   sum_s;
} edgekv_server_waits;

typedef enum { EDGEKV_WAIT_QUEUE, EDGEKV_WAIT_FIRST_TOKEN, EDGEKV_WAIT_NEXT_TOKEN } edgekv_wait;

/* waits for a slot; from the request to the answer's first token; between two tokens of an answer. From any thread */
EDGEKV_API void edgekv_server_waited(edgekv_wait which, edgekv_server_waits * waits);

/* A request whose prompt begins, or (ended) that ended. Tokens of its prompt: all of them, those found, and those computed; tokens of its
   answer; seconds of both. n_lost: many tokens were read before, and are read again because of `missed`, an edgekv_miss_reason about token
   missed_at; else 0. */
typedef struct {
    int32_t slot;
    int32_t task;
    int32_t n_prompt;
    int32_t n_found;
    int32_t by_tier[EDGEKV_TIERS];
    int32_t n_read;
    int32_t n_answer;
    int32_t n_lost;
    int32_t missed;
    int32_t missed_at;
    int32_t ended;
    double  read_s;
    double  answer_s;
} edgekv_server_request;

/* Publishes a document about the KV hierarchy. The server shows it under its path, such as "/edgekv/state"; the paths "props", "slots" and
   "metrics" add to the answers of upstream's routes of these names. Any thread may publish at any time: the text is copied and replaces
   the previous one. */
EDGEKV_API void edgekv_server_publish(const char * path, const char * type, const char * text);
/* withdraws all documents */
EDGEKV_API void edgekv_server_withdraw(void);
/* milliseconds since the document was last requested; -1: never, or there is no such document */
EDGEKV_API int64_t edgekv_server_asked_ms(const char * path);

/* gives the text that a function below was asked for */
EDGEKV_API void edgekv_server_answer(void * out, const char * text);

typedef enum { EDGEKV_TOKEN_TEXT, EDGEKV_TOKEN_SPECIAL, EDGEKV_TOKEN_END } edgekv_token_kind;

/* the tokens of a model */
typedef struct {
    const void * vocab;    /* its llama_vocab, and llama_tokenize() */
    const void * tokenize;
    int32_t n_tokens;
    const char * pieces;   /* the bytes of all tokens, one behind the other */
    const int32_t * ends;  /* where each token's bytes end */
    const uint8_t * kinds; /* edgekv_token_kind: used as a text, by its number alone, as the end of an answer */
} edgekv_vocabulary;

/* What holds answers to forms, such as JSON schemas. A form is a text that begins with %edgekv or %llguidance. Threads of requests call check(), one
   thread of its own the others; a form that has calls is checked behind read(). Sentences go to edgekv_server_answer(). */
typedef struct {
    /* 1: answers can be held to the form, or the sentence says why not */
    int (*check)(const char * form, void * out);
    /* the vocabulary of the answers that begin from now on; valid until the call returns, `vocab` as long as these answers */
    void (*read)(const edgekv_vocabulary * vocabulary);
    /* An answer begins, with the text `begun`. 0, or a sentence: it cannot. */
    int (*begin)(int64_t answer, const char * form, const char * begun, void * out);
    /* The token is the answer's next one; -1: it has none yet. Writes a bit for each token: whether it may follow. 0, or a sentence: none can. */
    int (*follow)(int64_t answer, int32_t token, uint32_t * allowed, void * out);
    /* Another answer begins with the same tokens. */
    void (*copy)(int64_t answer, int64_t to);
    void (*end)(int64_t answer);
} edgekv_forms;

/* What a server is told at its start, and what it calls of the program around it. It keeps the pointers until it ends. */
typedef struct {
    double  max_gap_s; /* while prompts are read, a running answer waits about so long at most for its next token; 0: prompts are read at full speed */
    int32_t n_slots;   /* requests that are answered */
    int32_t max_queue; /* that wait, below 0: any number; more get HTTP 503 */
    int64_t max_body;  /* bytes of a request; a longer one gets HTTP 413 */
    int     strict;    /* requests with a field that the table of fields does not have get HTTP 400 */
    int     rolls;     /* 1: the oldest exchanges leave a full context whole; 0: the answer ends, and a longer prompt is refused */
    int     drafts;    /* 1: where the options make upstream draft from n-grams, ours draft in their place, from what was said before */
    /* The hosts that requests may name, besides localhost and the loopback's addresses: names and addresses in lower case, IPv6 without brackets; the last
       is null. any_address: every IP address too. null: any host. */
    const char * const * hosts;
    int     any_address;
    /* A key, the namespace of requests admitted with it, of letters and digits, and so on; the last is null. Without keys all are in one namespace. */
    const char * const * spaces;

    const edgekv_prefixes * prefixes; /* null: none are kept */
    const edgekv_recalls *  recalls;  /* null: what leaves a full context does not come back */
    const edgekv_forms *    forms;
    /* a request's prompt begins, or the request ended; on the decoding thread */
    void (*request)(const edgekv_server_request * of);
    /* brings published documents up to date, on the decoding thread between two batches: before it answers /metrics and /slots there, and (idle) when nothing
       is left to do */
    void (*refresh)(int idle);
    /* Answers requests for /edgekv/cache with a JSON text, and returns the HTTP status. method: GET, POST or DELETE; space: the namespace of the request's key
       and cache_salt; fields: those of the query and of the body, as a JSON object. Threads of requests, several at a time. */
    int (*caches)(const char * method, const char * space, const char * fields, void * out);
    /* Fetches an image or a sound that a request names by address: a data URL, and 1; or a sentence that says why not, and 0. Threads of requests. */
    int (*media)(const char * url, void * out);
} edgekv_server_settings;

/* Returns the server's exit code, or EDGEKV_SERVER_THREW after an exception, which edgekv_server_error() names. settings: null: no limits, no calls. */
EDGEKV_API int edgekv_server_run(int argc, char ** argv, const edgekv_server_settings * settings);

/* cffi: end */

#define EDGEKV_SERVER_THREW 70

#ifdef __cplusplus
}
#endif

#endif
