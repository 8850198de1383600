// What the tests of the emulator share.
#pragma once

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "cuda/gpu.h"

inline int failures = 0;

#define CHECK(condition)                                                             \
    do {                                                                             \
        if (!(condition)) {                                                          \
            std::printf("%s:%d: not true: %s\n", __FILE__, __LINE__, #condition);    \
            ++failures;                                                              \
        }                                                                            \
    } while (0)

// Runs `run` in another process; whether that is ended by a signal, having said `expected`.
template <class F>
bool dies(const char * expected, F && run) {
    int ends[2];
    std::fflush(nullptr);
    if (pipe(ends) != 0) {
        return false;
    }
    const pid_t child = fork();
    if (child == 0) {
        const rlimit none{0, 0};
        setrlimit(RLIMIT_CORE, &none);
        dup2(ends[1], 2);
        close(ends[0]);
        run();
        _exit(0);
    }
    close(ends[1]);
    std::string said;
    char buffer[1024];
    for (ssize_t n; (n = read(ends[0], buffer, sizeof(buffer))) > 0;) {
        said.append(buffer, static_cast<size_t>(n));
    }
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    const bool found = said.find(expected) != std::string::npos;
    if (!WIFSIGNALED(status) || !found) {
        std::printf("expected the end with \"%s\"; status %d, it said: %s\n", expected, status, said.c_str());
    }
    return WIFSIGNALED(status) && found;
}

// n values in device memory.
template <class T>
class Array {
public:
    explicit Array(size_t n) : n(n) { CHECK(edgekv::gpu::alloc(reinterpret_cast<void **>(&p), n*sizeof(T))); }
    ~Array() { edgekv::gpu::free_device(p); }
    Array(const Array &) = delete;
    Array & operator=(const Array &) = delete;
    void set(const std::vector<T> & values) { CHECK(edgekv::gpu::copy(p, values.data(), values.size()*sizeof(T))); }
    std::vector<T> get() const {
        std::vector<T> values(n);
        CHECK(edgekv::gpu::copy(values.data(), p, n*sizeof(T)));
        return values;
    }
    T * p = nullptr;

private:
    size_t n;
};
