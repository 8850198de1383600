// What the parts of the PTX executor ask of each other: the CUDA runtime (runtime.cpp), the scheduler (engine.cpp), and the patched simulator.
#pragma once

#include <stddef.h>

class ptx_instruction;
class ptx_thread_info;

namespace ptx {

void load(const char * text, size_t n_bytes);
void * kernel(const char * name);  // nullptr: there is none
// Sizes and offsets of a kernel's parameters, in bytes; returns how many there are.
int parameters(void * kernel, size_t * sizes, size_t * offsets);
// Runs a kernel to its end. `arguments` lie at the offsets above, `dynamic` bytes of shared memory behind a block's static ones.
void launch(void * kernel, const unsigned grid[3], const unsigned block[3], size_t dynamic, const void * arguments);
void end_if_late();  // ends the process

bool allocated(unsigned long long at, size_t n_bytes);  // the runtime's answer: all of it lies in one allocation

// ---- for the patch -----------------------------------------------------------------------------------------------------------

unsigned long long arguments();  // where those of the present launch lie
// An .approx result: `exact`, up to `most` last places off, as operands and seed set.
float approximate(float exact, unsigned a, unsigned b, int most);
// NaN is 0, other values saturate. `mode` is the simulator's cudaRoundMode.
long long to_integer(float x, int mode, unsigned width);

}  // namespace ptx

// Instructions that the simulator lacks, or has with errors: as PTX's manual has them.
void ptx_bfi(const ptx_instruction * instruction, ptx_thread_info * thread);
void ptx_bfind(const ptx_instruction * instruction, ptx_thread_info * thread);
void ptx_brev(const ptx_instruction * instruction, ptx_thread_info * thread);
void ptx_copysign(const ptx_instruction * instruction, ptx_thread_info * thread);
void ptx_dp4a(const ptx_instruction * instruction, ptx_thread_info * thread);
void ptx_redux(const ptx_instruction * instruction, ptx_thread_info * thread);
