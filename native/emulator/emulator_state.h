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

// xorshift64*; the order of everything comes from it
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

// says where in which block, and ends the process
[[noreturn]] __attribute__((format(printf, 1, 2))) void fault(const char * format, ...);
void install_fault_handler();  // explains accesses outside memory; keeps the handler that was there for all others
bool fail(const std::string & sentence);  // for last_error() of this thread; returns false
const char * last_failure();
std::string take_first_failure();
bool foreign_error();  // see leave_error()
void set_sticky(const std::string & sentence);  // an operation failed: the next sync or check() says so
bool take_sticky();                             // false, with its sentence, where one was set; clears it

// ---- blocks ------------------------------------------------------------------------------------------------------------------

void run_grid(dim3 grid, unsigned threads, size_t shared_bytes, const std::function<void()> & kernel);
bool running();                                 // a kernel
std::string place();                            // "block (0, 0, 0), thread 3"
bool in_fiber_guard(const void * address);      // below a thread's stack

// ---- memory ------------------------------------------------------------------------------------------------------------------

enum class Kind { device, pinned };

void * memory_alloc(Kind kind, size_t n_bytes);  // zeroed, 256-byte aligned, between guards; null: the system has none
bool memory_free(Kind kind, void * p);           // checks the guards; false: no such allocation
size_t memory_bytes(Kind kind);
void memory_check();

enum class Range { device, pinned, pageable, bad };
Range memory_range(const void * p, size_t n_bytes);    // bad: it leaves its allocation
std::string memory_explain(const void * address);      // "" where the address is not near our memory
void memory_open();                                    // strict: operations run; nests
void memory_close();

struct Opened {
    Opened() { memory_open(); }
    ~Opened() { memory_close(); }
    Opened(const Opened &) = delete;
    Opened & operator=(const Opened &) = delete;
};

// ---- streams -----------------------------------------------------------------------------------------------------------------

void queue(void * stream, std::function<void()> run);  // a copy, a zeroing
void drain();                                          // runs everything

}  // namespace edgekv::gpu::emulator
