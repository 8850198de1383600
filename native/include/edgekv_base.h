/* libedgekv: types that its headers share. The rules of edgekv.h hold in all of them.
 *
 * cffi reads the declarations between two marks in each header; they are plain C without preprocessor lines.
 */
#ifndef EDGEKV_BASE_H
#define EDGEKV_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EDGEKV_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

/* cffi: begin */

struct llama_context;
typedef struct edgekv_context edgekv_context;

typedef enum {
    EDGEKV_OK          = 0,
    EDGEKV_INVALID     = 1, /* an argument is not allowed */
    EDGEKV_ABI         = 2, /* this library was built with another libllama than the loaded one */
    EDGEKV_UNSUPPORTED = 3, /* the machine or the context cannot do this */
    EDGEKV_DISABLED    = 4, /* EDGEKV=0 */
    EDGEKV_NO_MEMORY   = 5,
    EDGEKV_NOT_PINNED  = 6, /* a device should read host memory that is not pinned */
    EDGEKV_DISK        = 7, /* a disk failed */
} edgekv_status;

EDGEKV_API const char * edgekv_last_error(void);

/* cffi: end */

#ifdef __cplusplus
}
#endif

#endif
