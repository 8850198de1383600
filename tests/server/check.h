// A check of the programs in this folder: the first that fails ends them.
#pragma once

#include <cstdio>
#include <cstdlib>

#define CHECK(x)                                                      \
    if (!(x)) {                                                       \
        std::printf("%s:%d: %s is not so\n", __FILE__, __LINE__, #x); \
        std::exit(1);                                                 \
    }
