/* libedgekv-server: llama.cpp's HTTP server, run inside this process.
 *
 * edgekv_server_run() blocks until the server ends; argv[0] is a program name, the rest are llama-server's options, argv[argc] is null.
 * One server at a time. It installs handlers for SIGINT and SIGTERM: who wants their own back installs them after the server has started.
 * edgekv_server_terminate() asks a running server to end and may be called from any thread, once the server has answered a request.
 */
#ifndef EDGEKV_SERVER_H
#define EDGEKV_SERVER_H

#include "edgekv.h"

#ifdef __cplusplus
extern "C" {
#endif

/* cffi: begin */

/* the server's exit code; EDGEKV_SERVER_THREW where it ended by an exception, and edgekv_server_error() says which */
EDGEKV_API int edgekv_server_run(int argc, char ** argv);
EDGEKV_API void edgekv_server_terminate(void);
EDGEKV_API const char * edgekv_server_error(void);

/* What the server shows of the KV hierarchy. A document is shown under its path, such as "/edgekv/state"; "props", "slots" and "metrics"
   stand in the answers of upstream's routes of these names. Any thread may publish, at any time: the text is copied, and takes the place
   of the one before. */
EDGEKV_API void edgekv_server_publish(const char * path, const char * type, const char * text);
/* takes all of them back */
EDGEKV_API void edgekv_server_withdraw(void);
/* milliseconds since somebody asked for the document; -1: nobody did, or there is no such document */
EDGEKV_API int64_t edgekv_server_asked_ms(const char * path);
/* called on the thread that decodes, between two batches, where what is published should be brought up to date: before /metrics and
   /slots are answered, and (idle) where nothing is left to do; null: nobody is called */
EDGEKV_API void edgekv_server_on_refresh(void (*function)(int idle));

/* cffi: end */

#define EDGEKV_SERVER_THREW 70

#ifdef __cplusplus
}
#endif

#endif
