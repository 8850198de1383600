#include "llama-edgekv-pages.h"

#ifdef __linux__
#include "ggml.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include <fcntl.h>
#include <sys/ioctl.h>
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

void advise(char * pages, size_t n, bool huge) { madvise(pages, n, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE); }

// The kernel may have unmapped pages before it refused something.
void map_again(char * pages, size_t n, bool huge) {
    if (map(pages, n, MAP_FIXED_NOREPLACE) == pages) {
        advise(pages, n, huge);
    } else if (errno != EEXIST || msync(pages, n, MS_ASYNC) != 0) {  // another thread took a part of it
        GGML_ABORT("edgekv: the system unmapped %zu bytes of K and V, and does not map them again: %s", n, std::strerror(errno));
    }
}

// Pages of one mapping: they move, or are copied where the kernel moves none.
void move_pages(char * to, char * from, size_t n, bool huge) {
    if (!move(to, from, n)) {
        map_again(to, n, huge);
        std::memcpy(to, from, n);
    }
}

// PROCMAP_QUERY, which older headers lack
struct query_of_mapping {
    uint64_t size, flags, at;
    uint64_t first, end;  // answers, from here on
    uint64_t more[4];
    uint32_t numbers[4];
    uint64_t texts[2];
};
static_assert(sizeof(query_of_mapping) == 104, "the kernel's struct procmap_query");

// one past the mapping in which an address lies; null: the kernel does not tell
char * end_of_mapping(int file, char * at) {
    query_of_mapping asked = {};
    asked.size = sizeof(asked);
    asked.at   = reinterpret_cast<uintptr_t>(at);
    return ioctl(file, _IOWR('f', 17, query_of_mapping), &asked) == 0 ? reinterpret_cast<char *>(asked.end) : nullptr;
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

llama_edgekv_mover::llama_edgekv_mover() : file(open("/proc/self/maps", O_RDONLY | O_CLOEXEC)) {
    asks = file >= 0 && end_of_mapping(file, reinterpret_cast<char *>(&file)) != nullptr;
    FILE * lines = file < 0 || asks ? nullptr : fdopen(file, "r");  // a microsecond a line
    unsigned long first, end;
    while (lines && std::fscanf(lines, "%lx-%lx%*[^\n]", &first, &end) == 2) {
        ends.push_back(reinterpret_cast<char *>(end));
    }
    if (lines) {
        std::fclose(lines);
        file = -1;
    }
}

llama_edgekv_mover::~llama_edgekv_mover() {
    if (file >= 0) {
        close(file);
    }
}

size_t llama_edgekv_mover::step(char * at) const {
    char * end = nullptr;
    if (asks) {
        end = end_of_mapping(file, at);
    } else if (const auto found = std::upper_bound(ends.begin(), ends.end(), at); found != ends.end()) {
        end = *found;
    }
    return end ? static_cast<size_t>(end - at) : llama_edgekv_small_page();
}

std::vector<size_t> llama_edgekv_mover::parts(char * from, size_t n_bytes) const {
    const auto [before, n] = llama_edgekv_whole(from, n_bytes, llama_edgekv_least_move());
    std::vector<size_t> found;
    for (size_t at = before; at < before + n; at += found.back()) {
        found.push_back(std::min(before + n - at, step(from + at)));
    }
    return found;
}

void llama_edgekv_mover::move(char * to, char * from, size_t n_bytes, bool huge, size_t least) const {
    const auto [before, n] = llama_edgekv_whole(from, n_bytes, llama_edgekv_least_move());
    if (n == 0) {
        std::memcpy(to, from, n_bytes);
        return;
    }
    std::memcpy(to, from, before);
    for (size_t at = before, end; at < before + n; at = end) {
        end = std::min(before + n, at + step(from + at));
        if (end - at < least) {
            std::memcpy(to + at, from + at, end - at);
        } else {
            move_pages(to + at, from + at, end - at, huge);
        }
    }
    std::memcpy(to + before + n, from + before + n, n_bytes - before - n);
}

void llama_edgekv_mover::renew(char * from, size_t n_bytes, bool huge) const {
    const auto [before, n] = llama_edgekv_whole(from, n_bytes, llama_edgekv_least_move());
    if (n == 0 || step(from + before) > n) {
        return;
    }
    char * const pages = from + before;
    if (map(pages, n, MAP_FIXED) == pages) {
        advise(pages, n, huge);
    } else {
        map_again(pages, n, huge);
    }
}

#endif
