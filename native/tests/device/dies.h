// A death test.
#pragma once

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <string>

namespace test {

// Runs `run` in another process. Returns whether a signal ended that, once it had said `expected`.
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

}  // namespace test
