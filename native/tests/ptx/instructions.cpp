// Instructions that the simulator lacks, or has with errors.
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>

#include "../libcuda/gpgpu_context.h"
#include "cuda-sim/ptx_ir.h"
#include "cuda-sim/ptx_sim.h"
#include "engine.h"
#include "ptx.tab.h"

namespace {

ptx_reg_t value(const operand_info & from, unsigned type, const ptx_instruction * instruction, ptx_thread_info * thread) {
    return thread->get_operand_value(from, instruction->dst(), type, thread, 1);
}

void set(unsigned long long x, unsigned type, const ptx_instruction * instruction, ptx_thread_info * thread) {
    ptx_reg_t out;
    out.u64 = x;
    thread->set_operand_value(instruction->dst(), out, type, thread, instruction);
}

bool is_narrow(unsigned type) { return type == B32_TYPE || type == U32_TYPE || type == S32_TYPE; }

unsigned reduced(unsigned operation, bool is_signed, unsigned a, unsigned b) {
    switch (operation) {
        case ATOMIC_ADD: return a + b;
        case ATOMIC_AND: return a & b;
        case ATOMIC_OR: return a | b;
        case ATOMIC_XOR: return a ^ b;
        case ATOMIC_MIN: return is_signed ? std::min<int>(a, b) : std::min(a, b);
        case ATOMIC_MAX: return is_signed ? std::max<int>(a, b) : std::max(a, b);
        default: abort();
    }
}

}  // namespace

void ptx_bfi(const ptx_instruction * instruction, ptx_thread_info * thread) {
    const unsigned type = instruction->get_type();
    const unsigned long long from = value(instruction->src1(), type, instruction, thread).u64;
    const unsigned long long into = value(instruction->src2(), type, instruction, thread).u64;
    const unsigned first = value(instruction->src3(), U32_TYPE, instruction, thread).u32 & 0xff;
    const unsigned n = value(instruction->src4(), U32_TYPE, instruction, thread).u32 & 0xff, width = is_narrow(type) ? 32 : 64;
    unsigned long long out = width == 32 ? into & 0xffffffffu : into;
    for (unsigned i = 0; i < n && first + i < width; ++i) {
        out = (out & ~(1ull << (first + i))) | (from >> i & 1) << (first + i);
    }
    set(out, type, instruction, thread);
}

void ptx_bfind(const ptx_instruction * instruction, ptx_thread_info * thread) {
    const unsigned type = instruction->get_type();
    const ptx_reg_t from = value(instruction->src1(), type, instruction, thread);
    const long long x = type == S32_TYPE ? from.s32 : type == U32_TYPE ? from.u32 : from.s64;
    const unsigned long long bits = type == S32_TYPE || type == S64_TYPE ? (x < 0 ? ~x : x) : x;
    const int highest = bits == 0 ? -1 : 63 - __builtin_clzll(bits);
    set(static_cast<unsigned>(highest >= 0 && instruction->left_mode() ? (is_narrow(type) ? 31 : 63) - highest : highest), U32_TYPE, instruction, thread);
}

void ptx_brev(const ptx_instruction * instruction, ptx_thread_info * thread) {
    const unsigned type = instruction->get_type(), width = is_narrow(type) ? 32 : 64;
    const unsigned long long from = value(instruction->src1(), type, instruction, thread).u64;
    unsigned long long out = 0;
    for (unsigned i = 0; i < width; ++i) {
        out |= (from >> i & 1) << (width - 1 - i);
    }
    set(out, type, instruction, thread);
}

// The sign of the first operand, and the magnitude of the second.
void ptx_copysign(const ptx_instruction * instruction, ptx_thread_info * thread) {
    assert(instruction->get_type() == F32_TYPE);
    const unsigned sign = value(instruction->src1(), F32_TYPE, instruction, thread).u32, x = value(instruction->src2(), F32_TYPE, instruction, thread).u32;
    set((x & 0x7fffffffu) | (sign & 0x80000000u), F32_TYPE, instruction, thread);
}

void ptx_dp4a(const ptx_instruction * instruction, ptx_thread_info * thread) {
    assert(instruction->get_type() == S32_TYPE);  // of both factors
    const unsigned a = value(instruction->src1(), S32_TYPE, instruction, thread).u32, b = value(instruction->src2(), S32_TYPE, instruction, thread).u32;
    unsigned sum = value(instruction->src3(), S32_TYPE, instruction, thread).u32;
    for (int shift = 0; shift < 32; shift += 8) {
        sum += static_cast<signed char>(a >> shift) * static_cast<signed char>(b >> shift);
    }
    set(sum, S32_TYPE, instruction, thread);
}

// Over the lanes of the mask, all of which are here: the scheduler checks that.
void ptx_redux(const ptx_instruction * instruction, ptx_thread_info * thread) {
    const unsigned mask = value(instruction->src2(), U32_TYPE, instruction, thread).u32, type = instruction->get_type();
    ptx_thread_info ** const warp = thread->get_core()->get_thread_info() + thread->get_hw_tid() / 32 * 32;
    bool first = true;
    unsigned out = 0;
    for (int lane = 0; lane < 32; ++lane) {
        if ((mask >> lane & 1) != 0) {
            const unsigned x = value(instruction->src1(), type, instruction, warp[lane]).u32;
            out = first ? x : reduced(instruction->get_atomic(), type == S32_TYPE, out, x);
            first = false;
        }
    }
    set(out, U32_TYPE, instruction, thread);
}

namespace ptx {

float approximate(float exact, unsigned a, unsigned b, int most) {
    static const unsigned salt = atoi(getenv("EDGEKV_PTX_SEED"));
    unsigned bits;
    memcpy(&bits, &exact, sizeof bits);
    if ((bits & 0x7fffff) == 0 || (bits & 0x7f800000) == 0x7f800000 || (bits & 0x7f800000) == 0) {
        return exact;  // a power of two, 0, or no number
    }
    unsigned hash = a * 2654435761u ^ b * 2246822519u ^ salt * 3266489917u;
    hash = (hash ^ hash >> 15) * 2246822519u;
    const unsigned moved = bits + (hash ^ hash >> 13) % (2 * most + 1) - most;
    if ((moved ^ bits) >> 23 == 0) {
        memcpy(&exact, &moved, sizeof moved);
    }
    return exact;
}

long long to_integer(float x, int mode, unsigned width) {
    if (x != x) {
        return 0;
    }
    const float whole = mode == cudaRoundZero ? truncf(x) : mode == cudaRoundNearest ? nearbyintf(x) : mode == cudaRoundMinInf ? floorf(x) : ceilf(x);
    const long long most = width == 64 ? 0x7fffffffffffffffll : 0x7fffffffll;
    return whole >= static_cast<float>(most) ? most : whole <= -static_cast<float>(most) ? -most - 1 : static_cast<long long>(whole);
}

}  // namespace ptx
