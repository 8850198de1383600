// Preloaded: mremap() of other kernels, named by EDGEKV_TEST_KERNEL.
//   "one mapping"  as Linux 5.7 to 6.16: what spans two mappings is refused, once the destination is unmapped
//   "no memory"    every move of rows fails so
//   "forbidden"    every move fails, and the destination stays mapped
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

bool in_one_mapping(uintptr_t first, size_t n) {
    FILE * file = std::fopen("/proc/self/maps", "r");
    unsigned long begin, end;
    bool found = false;
    while (file && std::fscanf(file, "%lx-%lx%*[^\n]", &begin, &end) == 2) {
        found = found || (begin <= first && first + n <= end);
    }
    if (file) {
        std::fclose(file);
    }
    return found;
}

const std::string kernel = std::getenv("EDGEKV_TEST_KERNEL");

bool refuses(uintptr_t first, size_t n) {
    return kernel == "one mapping" ? !in_one_mapping(first, n) : n > static_cast<size_t>(sysconf(_SC_PAGESIZE));  // one page: whether it moves any
}

}  // namespace

extern "C" void * mremap(void * from, size_t old_bytes, size_t n_bytes, int flags, ...) noexcept {
    va_list more;
    va_start(more, flags);
    void * to = va_arg(more, void *);
    va_end(more);
    if ((flags & MREMAP_FIXED) && refuses(reinterpret_cast<uintptr_t>(from), old_bytes)) {
        if (kernel != "forbidden") {
            munmap(to, n_bytes);
        }
        errno = kernel == "forbidden" ? EPERM : ENOMEM;
        return MAP_FAILED;
    }
    return reinterpret_cast<void *>(syscall(SYS_mremap, from, old_bytes, n_bytes, flags, to));
}
