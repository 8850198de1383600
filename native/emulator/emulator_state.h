// The state that the emulator's translation units share. Callers hold lock().
#pragma once

#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

#include "emulator/emulator.h"

namespace edgekv::gpu::emulator {

// xorshift64*; it decides every order
class Random {
public:
    explicit Random(uint64_t seed) { set(seed); }
    void set(uint64_t seed) { state = (seed + 1) * 0x9e3779b97f4a7c15u | 1u; }
    uint32_t next() {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        return static_cast<uint32_t>(state * 0x2545f4914f6cdd1du >> 32);
    }
    uint32_t below(uint32_t n) { return static_cast<uint32_t>(static_cast<uint64_t>(next()) * n >> 32); }

private:
    uint64_t state;
};

std::recursive_mutex & lock();
Random & random();
Limits & limits();
bool strict();

// ---- faults ------------------------------------------------------------------------------------------------------------------

// prints the sentence with block and thread, and ends the process
[[noreturn]] __attribute__((format(printf, 1, 2))) void fault(const char * format, ...);
void install_fault_handler();  // explains accesses outside memory; the earlier handler gets all other faults
bool fail(const std::string & sentence);  // keeps it for this thread's last_error(); returns false
const char * last_failure();
std::string take_first_failure();
Foreign foreign_error();  // see leave_error()
void set_sticky(const std::string & sentence);  // an operation failed: the next sync or check() says so
bool take_sticky();                             // false, with its sentence, if one was set; clears it

// ---- blocks ------------------------------------------------------------------------------------------------------------------

struct Launch {
    dim3 grid;
    unsigned threads;
    size_t shared_bytes;
    std::function<void()> kernel;
    bool behind;  // it overlaps with the launch before: its threads begin with await_launch()
};

// A launch under way: the k-th block is (begin + k*step) mod n, with step prime to n: shuffled enough, without storing the order.
struct OpenGrid {
    uint32_t number;
    uint64_t n_left, index, step;
};

OpenGrid open_grid(const Launch & launch);
bool is_open(uint32_t launch);  // by its number: it began, and has not ended
bool run_blocks(const Launch & launch, OpenGrid & open, uint64_t n_blocks);  // whether all have run
bool running();                                 // a kernel
std::string place();                            // "block (0, 0, 0), thread 3"
bool in_fiber_guard(const void * address);      // the address is in the guard below a thread's stack

// ---- memory ------------------------------------------------------------------------------------------------------------------

enum class Kind { device, pinned };

void * memory_alloc(Kind kind, size_t n_bytes);  // zeroed, 256-byte aligned, between guards; null: out of memory
bool memory_free(Kind kind, void * p);           // checks the guards; false: no such allocation
// Pins whole pages of the caller's, which are part of `home`. false: they are not, or some are pinned or ours.
bool memory_pin(char * p, size_t n_bytes, char * home, size_t home_bytes);
bool memory_unpin(char * p);                     // false: nothing that is pinned begins there
size_t memory_bytes(Kind kind);
size_t memory_pinned_later();                    // of Kind::pinned, those of the caller's memory
size_t memory_version();                         // changes with each of the four above
void memory_check();

enum class Range { device, pinned, pageable, bad };
Range memory_range(const void * p, size_t n_bytes);    // bad: the range leaves its allocation, or what is pinned, or enters it
std::string memory_explain(const void * address);      // "": the address is not near our memory
void memory_open();                                    // strict: lets operations reach memory while they run; nests
bool memory_reach(const void * address);               // at a fault: makes an allocation accessible, if operations run; false: it stays a fault
void memory_close();

struct Opened {
    Opened() { memory_open(); }
    ~Opened() { memory_close(); }
    Opened(const Opened &) = delete;
    Opened & operator=(const Opened &) = delete;
};

// ---- streams -----------------------------------------------------------------------------------------------------------------

void queue(void * stream, std::function<void()> run);  // queues a copy or a zeroing
void drain();                                          // runs everything
int n_sm();                                            // multiprocessors of the device, by the seed
size_t device_bytes_used();                            // of allocations, and late_bytes where a kernel was launched

}  // namespace edgekv::gpu::emulator
