/* The instruction sets that the libraries were compiled for, and those that this processor has. This module runs on any processor of its kind
 * and links to nothing: it is loaded before the libraries, which end with an illegal instruction where one is lacking.
 */
#ifndef EDGEKV_CPU_H
#define EDGEKV_CPU_H

/* cffi: begin */

/* Names of instruction sets as in /proc/cpuinfo, with spaces between; empty where any processor of its kind will do. */
const char * edgekv_cpu_needed(void);
/* 1: the processor has it and the kernel lets programs use it; 0: not so; -1: the name is unknown. */
int edgekv_cpu_has(const char * name);

/* cffi: end */

#endif
