// Runs kernels by the simulator's functional model. Some blocks are resident at a time; a warp of one of them does some instructions, then another one
// does, as EDGEKV_PTX_SEED sets. Ends the process at what a card forbids, and reports what it leaves open. Compiled without access control: the
// simulator's own loop runs one block after the other.
#include "engine.h"

#include <assert.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <memory>
#include <random>
#include <set>
#include <vector>

#include "cuda-sim/cuda-sim.h"
#include "cuda-sim/ptx_ir.h"
#include "cuda-sim/ptx_parser.h"
#include "cuda-sim/ptx_sim.h"
#include "gpgpu-sim/gpu-sim.h"
#include "gpgpusim_entrypoint.h"
#include "intersim2/interconnect_interface.hpp"
#include "../libcuda/gpgpu_context.h"
#include "ptx.tab.h"

// ---- what the simulator wants of its own runtime, and of a network that no functional model uses -----------------------------------

gpgpu_context * GPGPU_Context() {
    static gpgpu_context * const context = new gpgpu_context();
    return context;
}
void register_ptx_function(const char *, function_info *) {}
void ptxinfo_data::ptxinfo_addinfo() {}
InterconnectInterface * g_icnt_interface = nullptr;
InterconnectInterface * InterconnectInterface::New(const char *) { abort(); }
unsigned InterconnectInterface::GetFlitSize() const { abort(); }

namespace ptx {
namespace {

constexpr unsigned kWarp = 32, kFewestResident = 6, kMostResident = 16, kMostAtOnce = 24;
constexpr unsigned long long kPatience = 200000000;  // instructions of warps in one launch

// ---- what is said ------------------------------------------------------------------------------------------------------------

struct Now {
    ptx_thread_info * thread;
    const ptx_instruction * instruction;
    const char * arguments;
} now;

double seconds() { return static_cast<double>(clock()) / CLOCKS_PER_SEC; }  // of this process's processor time

struct Totals {
    unsigned long n_launches = 0, n_reports = 0;
    unsigned long long n_instructions = 0;  // of threads
    ~Totals() {
        fprintf(stderr, "PTX TOTAL: %lu launches, %llu instructions of threads, %lu reports, %.1f s\n", n_launches, n_instructions, n_reports, seconds());
    }
} totals;

// The simulator prints what it does.
struct Quiet {
    Quiet() {
        fflush(stdout);
        const int nowhere = open("/dev/null", O_WRONLY);
        dup2(nowhere, 1);
        close(nowhere);
    }
    ~Quiet() {
        fflush(stdout);
        dup2(kept, 1);
        close(kept);
    }
    const int kept = dup(1);
};

void say(const char * kind, const char * format, va_list rest) {
    const dim3 block = now.thread->get_ctaid();
    fprintf(stderr, "PTX %s: ", kind);
    vfprintf(stderr, format, rest);
    fprintf(stderr, ", by block (%u, %u, %u) thread %u at line %u of %s: %s\n", block.x, block.y, block.z, now.thread->get_tid().x,
            now.instruction->source_line(), now.thread->func_info()->get_name().c_str(), now.instruction->get_source());
}

[[noreturn]] void fault(const char * format, ...) {
    va_list rest;
    va_start(rest, format);
    say("FAULT", format, rest);
    abort();
}

// An instruction's first report is printed.
void report(const char * format, ...) {
    static std::set<const ptx_instruction *> said;
    ++totals.n_reports;
    if (said.insert(now.instruction).second) {
        va_list rest;
        va_start(rest, format);
        say("REPORT", format, rest);
        va_end(rest);
    }
}

// ---- memory ------------------------------------------------------------------------------------------------------------------

// Device memory is the host's, an address a pointer.
class HostMemory : public memory_space {
public:
    void write(mem_addr_t at, size_t n_bytes, const void * data, ptx_thread_info *, const ptx_instruction *) override {
        memcpy(checked(at, n_bytes), data, n_bytes);
    }
    void read(mem_addr_t at, size_t n_bytes, void * data) const override { memcpy(data, checked(at, n_bytes), n_bytes); }
    void write_only(mem_addr_t, mem_addr_t, size_t, const void *) override { abort(); }
    void print(const char *, FILE *) const override {}
    void set_watch(addr_t, unsigned) override {}

private:
    static char * checked(mem_addr_t at, size_t n_bytes) {
        if (!allocated(at, n_bytes)) {
            fault("%zu bytes at %#llx, which are not all allocated", n_bytes, static_cast<unsigned long long>(at));
        }
        return reinterpret_cast<char *>(at);
    }
};

// Which warp last read, wrote or changed a byte of shared memory, and behind how many barriers of its block.
enum Access { kReads, kWrites, kAtomic, kAccesses };
struct Touch {
    unsigned barriers[kAccesses] = {};
    int warp[kAccesses] = {};
};
constexpr int kSeveral = -1;
constexpr const char * kWords[] = {"reads", "writes", "atomically changes"};

// ---- a resident block --------------------------------------------------------------------------------------------------------

struct Block {
    functionalCoreSim core;
    std::vector<Touch> touched;
    unsigned n_barriers = 1;

    // Its shared memory is full of what nobody wrote.
    Block(kernel_info_t & launched, gpgpu_sim * device, unsigned slot, size_t shared_bytes) : core(&launched, device, kWarp), touched(shared_bytes) {
        const unsigned n_threads = launched.threads_per_cta();
        for (unsigned i = 0; i < n_threads; ++i) {
            ptx_sim_init_thread(launched, &core.m_thread[i], slot, i, n_threads - i, n_threads, &core, 0, i / kWarp, device, true);
        }
        for (unsigned warp = 0; warp < core.m_warp_count; ++warp) {
            core.m_warpAtBarrier[warp] = false;
            core.createWarp(warp);
        }
        const std::vector<char> unwritten(shared_bytes, static_cast<char>(0xdb));
        core.m_thread[0]->m_shared_mem->write(0, shared_bytes, unwritten.data(), nullptr, nullptr);
    }

    bool waits(unsigned warp) const { return core.warp_waiting_at_barrier(warp); }  // or has ended
    bool lives(unsigned warp) const { return core.m_liveThreadCount[warp] > 0; }

    void step(unsigned warp) {
        warp_inst_t running = core.getExecuteWarp(warp);
        running.m_warp_id = warp;
        now.instruction = GPGPU_Context()->pc_to_instruction(running.pc);
        for (unsigned lane = 0; lane < kWarp; ++lane) {
            if (running.active(lane)) {
                now.thread = core.m_thread[warp * kWarp + lane];
                now.thread->m_warp_info->m_done_threads = lane;  // whose turn shfl thinks it is
                now.thread->ptx_exec_inst(running, lane);
                core.checkExecutionStatusAndUpdate(running, lane, warp * kWarp + lane);
                if (running.active(lane)) {  // its predicate holds
                    check_access(warp);
                }
                ++totals.n_instructions;
            }
        }
        check_masks(running, warp);
        if (running.isatomic()) {
            running.do_atomic(true);
        }
        if (running.op == BARRIER_OP) {
            core.m_warpAtBarrier[warp] = true;
            if (running.active_count() != core.m_liveThreadCount[warp]) {
                report("a barrier for %u of the warp's %u threads", running.active_count(), core.m_liveThreadCount[warp]);
            }
        }
        core.updateSIMTStack(warp, &running);
    }

    // Of what the thread has just done: shared memory behind its end, addresses that do not divide, races.
    void check_access(int warp) {
        const unsigned opcode = now.instruction->get_opcode();
        if (opcode != LD_OP && opcode != LDU_OP && opcode != ST_OP && opcode != ATOM_OP) {
            return;
        }
        const int space = now.thread->last_space().get_type();
        if (space != shared_space && space != global_space) {
            return;
        }
        const unsigned long long at = now.thread->last_eaddr();
        size_t n_bits;
        int basic;
        type_info_key::type_decode(now.instruction->get_type(), n_bits, basic);
        const unsigned vector = now.instruction->get_vector();
        const size_t n_bytes = n_bits / 8 * (vector == V2_TYPE ? 2 : vector == V4_TYPE ? 4 : 1);
        if (at % n_bytes != 0) {
            fault("%zu bytes at %#llx, which does not divide", n_bytes, at);
        }
        if (space == global_space) {
            return;  // HostMemory has looked
        }
        if (at + n_bytes > touched.size()) {
            fault("%zu bytes at %llu of %zu bytes of shared memory", n_bytes, at, touched.size());
        }
        const Access access = opcode == ATOM_OP ? kAtomic : opcode == ST_OP ? kWrites : kReads;
        for (Touch * byte = &touched[at]; byte < &touched[at] + n_bytes; ++byte) {
            for (int other = 0; other < kAccesses; ++other) {
                if ((other != access || access == kWrites) && byte->barriers[other] == n_barriers && byte->warp[other] != warp) {
                    report("a RACE: warp %d %s what another one %s between the same two barriers", warp, kWords[access], kWords[other]);
                }
            }
            byte->warp[access] = byte->barriers[access] == n_barriers && byte->warp[access] != warp ? kSeveral : warp;
            byte->barriers[access] = n_barriers;
        }
    }

    // Lanes that a mask names must be here, whoever gives it among them.
    void check_masks(const warp_inst_t & running, unsigned warp) {
        const unsigned opcode = now.instruction->get_opcode();  // __syncwarp() is a NOP to the simulator
        const unsigned operand = opcode == NOP_OP ? 0 : opcode == SHFL_OP ? 4 : 2;
        if ((opcode != NOP_OP && opcode != SHFL_OP && opcode != VOTE_OP && opcode != REDUX_OP) || now.instruction->get_num_operands() <= operand) {
            return;
        }
        const unsigned here = static_cast<unsigned>(running.get_active_mask().to_ulong());
        const operand_info & from = now.instruction->operand_lookup(operand);
        for (unsigned lane = 0; lane < kWarp; ++lane) {
            if ((here >> lane & 1) != 0) {
                now.thread = core.m_thread[warp * kWarp + lane];
                const unsigned mask = now.thread->get_operand_value(from, from, U32_TYPE, now.thread, 1).u32;
                if ((mask & ~here) != 0 || (mask >> lane & 1) == 0) {
                    report("mask %08x, where %08x are here", mask, here);
                }
            }
        }
    }
};

std::mt19937 & generator() {
    static std::mt19937 random(atoi(getenv("EDGEKV_PTX_SEED")));
    return random;
}
unsigned below(unsigned n) { return generator()() % n; }

[[noreturn]] void hang(const std::string & kernel, const std::vector<std::unique_ptr<Block>> & resident) {
    fprintf(stderr, "PTX HANG: %s has not ended after %llu instructions of warps\n", kernel.c_str(), kPatience);
    for (const auto & block : resident) {
        for (unsigned warp = 0; block && warp < block->core.m_warp_count; ++warp) {
            if (block->lives(warp)) {
                unsigned pc = 0, reconverges = 0;
                block->core.get_pdom_stack_top_info(warp, &pc, &reconverges);
                fprintf(stderr, "  block %u, warp %u%s: %s\n", block->core.m_thread[warp * kWarp]->get_ctaid().x, warp,
                        block->waits(warp) ? " (barrier)" : "", GPGPU_Context()->pc_to_instruction(pc)->get_source());
            }
        }
    }
    abort();
}

}  // namespace

// ---- for the runtime ---------------------------------------------------------------------------------------------------------

void load(const char * text, size_t n_bytes) {
    const Quiet quiet;
    static const bool first = GPGPU_Context()->gpgpu_ptx_sim_init_perf()->m_global_mem = new HostMemory();
    static_cast<void>(first);
    char name[] = "module_XXXXXX";  // its parser reads files
    const int file = mkstemp(name);
    if (write(file, text, n_bytes) != static_cast<ssize_t>(n_bytes)) {
        abort();
    }
    close(file);
    GPGPU_Context()->init_parser(name);
    unlink(name);
}

void * kernel(const char * name) {
    const symbol * const found = GPGPU_Context()->ptx_parser->g_global_symbol_table->lookup(name);
    return found != nullptr ? found->get_pc() : nullptr;
}

int parameters(void * kernel, size_t * sizes, size_t * offsets) {
    function_info & function = *static_cast<function_info *>(kernel);
    size_t end = 0;
    int n = 0;
    for (auto & parameter : function.m_ptx_kernel_param_info) {
        const size_t size = parameter.second.get_size() / 8;
        const int asked = function.get_symtab()->lookup(parameter.second.get_name().c_str())->type()->get_key().get_alignment_spec();
        const size_t alignment = asked == -1 ? size : asked;
        sizes[n]   = size;
        offsets[n] = (end + alignment - 1) / alignment * alignment;
        end = offsets[n++] + size;
    }
    return n;
}

void launch(void * kernel, const unsigned grid[3], const unsigned threads[3], size_t dynamic, const void * arguments) {
    const Quiet quiet;
    function_info & function = *static_cast<function_info *>(kernel);
    gpgpu_sim * const device = GPGPU_Context()->the_gpgpusim->g_the_gpu;
    if (!function.is_pdom_set()) {
        function.do_pdom();
        function.set_pdom();
    }
    kernel_info_t launched(dim3(grid[0], grid[1], grid[2]), dim3(threads[0], threads[1], threads[2]), &function, 0ull);
    size_t sizes[64], offsets[64];
    const int n = parameters(kernel, sizes, offsets);
    now.arguments = static_cast<const char *>(arguments);
    for (int i = 0; i < n; ++i) {
        gpgpu_ptx_sim_arg argument(now.arguments + offsets[i], sizes[i], offsets[i]);
        function.add_param_data(i, &argument);
    }
    function.finalize(launched.get_param_memory());

    size_t shared_bytes = (function.get_symtab()->get_shared_next() + 127) / 128 * 128;
    if (symbol * const extern_shared = GPGPU_Context()->ptx_parser->g_global_symbol_table->lookup("_ZN6edgekv3gpu20edgekv_shared_memoryE")) {
        extern_shared->set_address(shared_bytes);
    }
    shared_bytes += dynamic;

    device->functional_launch(&launched);
    std::vector<std::unique_ptr<Block>> resident(kFewestResident + below(kMostResident - kFewestResident + 1));
    for (unsigned long long n_steps = 0;;) {
        std::vector<unsigned> slots;
        for (unsigned slot = 0; slot < resident.size(); ++slot) {
            if (!resident[slot] && !launched.no_more_ctas_to_run()) {
                resident[slot].reset(new Block(launched, device, slot, shared_bytes));
            }
            if (resident[slot]) {
                slots.push_back(slot);
            }
        }
        if (slots.empty()) {
            break;
        }
        std::unique_ptr<Block> & block = resident[slots[below(slots.size())]];
        std::vector<unsigned> ready, alive;
        for (unsigned warp = 0; warp < block->core.m_warp_count; ++warp) {
            if (block->lives(warp)) {
                alive.push_back(warp);
            }
            if (!block->waits(warp)) {
                ready.push_back(warp);
            }
        }
        if (alive.empty()) {
            block.reset();
        } else if (ready.empty()) {
            ++block->n_barriers;
            std::fill_n(block->core.m_warpAtBarrier, block->core.m_warp_count, false);
        } else {
            const unsigned warp = ready[below(ready.size())];
            for (unsigned left = 1 + below(kMostAtOnce); left > 0 && !block->waits(warp); --left) {
                block->step(warp);
                if (++n_steps > kPatience) {
                    hang(function.get_name(), resident);
                }
            }
        }
    }
    device->finish_functional_sim(&launched);
    ++totals.n_launches;
}

void end_if_late() {
    if (seconds() > atof(getenv("EDGEKV_PTX_SECONDS"))) {
        fprintf(stderr, "PTX CUT\n");
        exit(1);
    }
}

unsigned long long arguments() { return reinterpret_cast<unsigned long long>(now.arguments); }

}  // namespace ptx
