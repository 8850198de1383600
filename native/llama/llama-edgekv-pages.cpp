#include "llama-edgekv-pages.h"

#ifdef __linux__
#include "ggml.h"

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include <sys/mman.h>
#include <unistd.h>
#ifndef MREMAP_DONTUNMAP  // older headers
#define MREMAP_DONTUNMAP 4
#endif
#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

namespace {

bool move(char * to, char * from, size_t n) {
    return mremap(from, n, n, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, to) != MAP_FAILED;
}

void * map(char * at, size_t n_bytes, int flags) {
    return mmap(at, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);
}

// Pages of one mapping: they move, or are copied where the kernel moves none. It may have unmapped `to` before it refused.
void move_pages(char * to, char * from, size_t n, bool huge) {
    if (move(to, from, n)) {
        return;
    }
    if (map(to, n, MAP_FIXED_NOREPLACE) == to) {
        madvise(to, n, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    } else if (errno != EEXIST || msync(to, n, MS_ASYNC) != 0) {  // another thread took a part of it
        GGML_ABORT("edgekv: the system unmapped %zu bytes of K and V, and does not map them again: %s", n, std::strerror(errno));
    }
    std::memcpy(to, from, n);
}

}  // namespace

size_t llama_edgekv_small_page() {
    static const size_t n = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    return n;
}

size_t llama_edgekv_least_move() { return 16*llama_edgekv_small_page(); }

char * llama_edgekv_addresses(size_t n_bytes) {
    void * found = map(nullptr, n_bytes, 0);
    return found == MAP_FAILED ? nullptr : static_cast<char *>(found);
}

bool llama_edgekv_system_moves() {
    static const bool does = [] {
        const size_t n = llama_edgekv_small_page();
        char * pages = llama_edgekv_addresses(2*n);
        const bool moved = pages && llama_edgekv_mover().knows() && move(pages + n, pages, n);
        if (pages) {
            munmap(pages, moved ? 2*n : n);  // the second one may be another thread's by now
        }
        return moved;
    }();
    return does;
}

llama_edgekv_whole_pages llama_edgekv_whole(const char * data, size_t n_bytes, size_t least) {
    const size_t page = llama_edgekv_small_page(), before = (page - reinterpret_cast<uintptr_t>(data)%page)%page;
    const size_t n = n_bytes > before ? (n_bytes - before)/page*page : 0;
    return { before, n >= least ? n : 0 };
}

llama_edgekv_mover::llama_edgekv_mover() {
    FILE * file = std::fopen("/proc/self/maps", "re");
    unsigned long first, end;
    while (file && std::fscanf(file, "%lx-%lx%*[^\n]", &first, &end) == 2) {
        ends.push_back(reinterpret_cast<char *>(end));
    }
    if (file) {
        std::fclose(file);
    }
}

void llama_edgekv_mover::move(char * to, char * from, size_t n_bytes, bool huge) const {
    const auto [before, n] = llama_edgekv_whole(from, n_bytes, llama_edgekv_least_move());
    if (n == 0) {
        std::memcpy(to, from, n_bytes);
        return;
    }
    std::memcpy(to, from, before);
    for (size_t at = before, end; at < before + n; at = end) {
        const size_t in_one = std::max<size_t>(end_of(from + at) - (from + at), llama_edgekv_small_page());
        end = std::min(before + n, at + in_one);
        move_pages(to + at, from + at, end - at, huge);
    }
    std::memcpy(to + before + n, from + before + n, n_bytes - before - n);
}

#endif
