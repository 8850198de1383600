/* libedgekv-server: llama.cpp's HTTP server, run inside this process.
 *
 * edgekv_server_run() blocks until the server ends; argv[0] is a program name, the rest are llama-server's options, argv[argc] is null.
 * One server at a time. SIGINT and SIGTERM stay with the program that it runs in.
 * edgekv_server_terminate() asks a running server to end and may be called from any thread, once the server has answered a request.
 */
#ifndef EDGEKV_SERVER_H
#define EDGEKV_SERVER_H

#include "edgekv_base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* cffi: begin */

/* the server's exit code; EDGEKV_SERVER_THREW where it ended by an exception, and edgekv_server_error() says which */
EDGEKV_API int edgekv_server_run(int argc, char ** argv);
EDGEKV_API void edgekv_server_terminate(void);
EDGEKV_API const char * edgekv_server_error(void);

/* Prefixes: K and V of tokens that an earlier request computed. Whoever keeps them registers functions, which the server calls on the
   thread that decodes, between two llama_decode(). */

#define EDGEKV_PREFIX_BLOCK 256

/* a LoRA adapter that K and V are computed with */
typedef struct {
    uintptr_t adapter; /* address of the llama_adapter_lora; it lives as long as the context */
    float scale;       /* not 0 */
} edgekv_adapter;

/* an image or a sound in a prompt: n tokens from `first` on are its embeddings, and have no numbers; the last may lie behind the tokens told */
typedef struct {
    int first;
    int n;
    const char * id; /* digests of its file and of what its embeddings are computed from */
} edgekv_medium;

typedef struct {
    struct llama_context * lctx;
    int seq_id;
    const int32_t * tokens; /* -1: of a medium */
    int n_tokens;
    const edgekv_medium * media; /* in order */
    int n_media;
    const char * projector; /* the file of the model that makes embeddings of media; empty: there is none */
    const int32_t * at;     /* [3][n_tokens]: position, line and column of each token; null: positions count up */
    const edgekv_adapter * adapters; /* all that K and V of the tokens depend on */
    int n_adapters;
    const char * space;    /* the namespace; tokens of another are never a prefix of these */
} edgekv_prefix_tokens;

/* The first token in which a kept conversation differs from a prompt, although at least a block of it goes on behind; n_lost 0: there is none */
typedef struct {
    int position;
    int stored;
    int asked;
    int n_lost;
} edgekv_near_miss;

/* tokens of a prompt that need not be computed, by where they were */
typedef struct {
    int slot;   /* in its own sequence */
    int shared; /* in cells of another slot */
    int ram;    /* kept, and put into the sequence */
    int disk;
    int remote;
    int comes;  /* 1: what was put in has its cells, and its rows come with the next llama_decode() */
    int spacing; /* where snapshots are kept: so many tokens between two in the middle of a long prompt; 0: none there */
    edgekv_near_miss nearly;
} edgekv_cached_tokens;

typedef struct {
    /* A prompt is about to begin, whose first n_have tokens its sequence holds. 1: begin() waits for nobody's answer. 0: what is kept of the
       prompt is being fetched: ask again, or leave(). goes_on: as for begin(). alone: nobody is answered meanwhile, so that it may take a moment. */
    int (*ready)(void * user, const edgekv_prefix_tokens * prompt, int n_have, int goes_on, int alone);
    /* The prompt that the sequence waited with does not begin. */
    void (*leave)(void * user, int seq_id);
    /* A prompt begins: its sequence holds the first n_have tokens of it. Puts in those that come next, as many as are kept, and counts them.
       goes_on: -1 where rows are all that is kept; else the number of tokens (n_have or 0) behind which the sequence goes on without a snapshot,
       which out->slot is already. Where a snapshot is put in, out->slot is how many of the first n_have tokens stay. */
    void (*begin)(void * user, const edgekv_prefix_tokens * prompt, int n_have, int goes_on, edgekv_cached_tokens * out);
    /* The sequence holds these tokens, computed. */
    void (*keep)(void * user, const edgekv_prefix_tokens * held);
    /* The same, and it holds no others: a snapshot can be taken. */
    void (*snapshot)(void * user, const edgekv_prefix_tokens * held);
    /* Directly before a llama_decode(): 1: the rows that are to come do so while it computes. 0: they do not, and settle() comes first. */
    int (*start)(void * user);
    /* Waits until the rows that were to come are there. The number of tokens before the first whose rows could not be had, -1: none; they end
       within no medium. out: what was put in of them, by where it was kept. */
    int (*settle)(void * user, edgekv_cached_tokens * out);
    void * user;
} edgekv_prefixes;

/* null: nobody keeps prefixes. Only while no server runs. */
EDGEKV_API void edgekv_server_set_prefixes(const edgekv_prefixes * prefixes);

/* The file with which the running server makes embeddings of media; empty: it has none, or is being loaded. As long as the server runs. */
EDGEKV_API const char * edgekv_server_projector(void);

/* What one request may cost the others, for the servers that run from now on; no bounds before the first call. A running answer waits
   about max_gap_s seconds at most for its next token while prompts are read (0: they are read at full speed). n_slots requests are
   answered and max_queue wait (below 0: any number); more get HTTP 503. */
EDGEKV_API void edgekv_server_limit(double max_gap_s, int32_t n_slots, int32_t max_queue);

/* Where a context is full, for the servers that run from now on: 1: whole oldest exchanges leave it; 0: the answer ends, and a longer prompt is
   refused. */
EDGEKV_API void edgekv_server_roll(int on);

/* Under which hosts the servers that run from now on may be asked, besides localhost and the loopback's addresses: names and addresses with
   commas between them, in lower case, IPv6 without brackets; any_address: under every IP address too. Any host before the first call. */
EDGEKV_API void edgekv_server_admit(const char * names, int any_address);

/* how that goes, since the server started; seconds */
typedef struct edgekv_server_pacing {
    double   max_gap_s;      /* the bound; 0: none */
    double   worst_gap_s;    /* between two tokens of a running answer */
    double   last_gap_s;
    uint64_t n_mixed;        /* batches that held prompt tokens and the next tokens of running answers */
    int32_t  n_prompt_batch; /* prompt tokens that the newest of these was allowed */
    int32_t  n_requests;     /* answered or waiting now */
    uint64_t n_refused;      /* requests that found no place */
    int32_t  n_running;      /* slots at work, when the newest batch began */
} edgekv_server_pacing;

/* from any thread */
EDGEKV_API void edgekv_server_pace(edgekv_server_pacing * pacing);

/* seconds that n tokens of a prompt take behind the first `first`, as the newest batches went; 0: none was seen. From any thread */
EDGEKV_API double edgekv_server_reading_s(int64_t first, int64_t n);

/* Namespaces, for the servers that run from now on: a request that was let in with keys[i] is in spaces[i]; no keys: all are in one. The
   texts are copied; spaces are letters and digits. */
EDGEKV_API void edgekv_server_spaces(int32_t n, const char * const * keys, const char * const * spaces);

#define EDGEKV_WAIT_BOUNDS 22

/* how long something was waited for, since the server started; seconds */
typedef struct {
    double   bounds[EDGEKV_WAIT_BOUNDS];
    uint64_t counts[EDGEKV_WAIT_BOUNDS + 1]; /* of waits up to each bound and above the one before; of those above all bounds */
    double   sum_s;
} edgekv_server_waits;

typedef enum { EDGEKV_WAIT_QUEUE, EDGEKV_WAIT_FIRST_TOKEN, EDGEKV_WAIT_NEXT_TOKEN } edgekv_wait;

/* for a slot; from the request to the first token of its answer; between two tokens of an answer. From any thread */
EDGEKV_API void edgekv_server_waited(edgekv_wait which, edgekv_server_waits * waits);

/* What the server shows of the KV hierarchy. A document is shown under its path, such as "/edgekv/state"; "props", "slots" and "metrics"
   stand in the answers of upstream's routes of these names. Any thread may publish, at any time: the text is copied, and takes the place
   of the one before. */
EDGEKV_API void edgekv_server_publish(const char * path, const char * type, const char * text);
/* takes all of them back */
EDGEKV_API void edgekv_server_withdraw(void);
/* milliseconds since somebody asked for the document; -1: nobody did, or there is no such document */
EDGEKV_API int64_t edgekv_server_asked_ms(const char * path);
/* called on the thread that decodes, between two batches, where what is published should be brought up to date: before /metrics and
   /slots are answered, if they are asked for there, and (idle) where nothing is left to do; null: nobody is called */
EDGEKV_API void edgekv_server_on_refresh(void (*function)(int idle));

/* cffi: end */

#define EDGEKV_SERVER_THREW 70

#ifdef __cplusplus
}
#endif

#endif
