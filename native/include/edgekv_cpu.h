/* What the libraries were compiled for, and what this processor has. Compiled for any processor of its kind, and linked to nothing: it is
 * loaded before the libraries, which end with an illegal instruction where something is lacking.
 */
#ifndef EDGEKV_CPU_H
#define EDGEKV_CPU_H

/* cffi: begin */

/* Instruction sets by their names in /proc/cpuinfo, with spaces between; empty where any processor of its kind will do. */
const char * edgekv_cpu_needed(void);
/* Whether the processor has it and the kernel lets programs use it; -1: not a name that is known here. */
int edgekv_cpu_has(const char * name);

/* cffi: end */

#endif
