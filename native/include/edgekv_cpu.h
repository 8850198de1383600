/* The instruction sets that the libraries need, and those that this processor has. This module runs on any processor of its kind
 * and links to nothing. It is loaded before the libraries, which would end with an illegal instruction on a lesser processor.
 */
#ifndef EDGEKV_CPU_H
#define EDGEKV_CPU_H

/* cffi: begin */

/* Names of instruction sets as in /proc/cpuinfo, separated by spaces; empty: any processor of the kind will do. */
const char * edgekv_cpu_needed(void);
/* 1: the processor has it and the kernel lets programs use it; 0: one of both is not so; -1: the name is unknown. */
int edgekv_cpu_has(const char * name);

/* cffi: end */

#endif
