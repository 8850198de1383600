// The mapping of K and V on the processor.
//
// In memory: addresses for all cells, which the kernel fills with zeros, page by page, when they are first written. In a file: no name is left
// of it once it is open, so that it ends with the process, however that ends; all its space is reserved at once, because a mapping that finds
// the disk full while it is written ends the process. What is forgotten keeps its space.
#include "llama-edgekv-mapping.h"
#include "llama-edgekv-access.h"
#include "llama-edgekv-pinned.h"

#include "ggml-backend-impl.h"
#include "llama-impl.h"

#include <cerrno>
#include <cstring>
#include <mutex>
#include <string>

#ifdef __linux__
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#endif

size_t llama_edgekv_padded(const ggml_tensor * rows) {
    return ggml_nbytes(rows) < 128*LLAMA_EDGEKV_HUGE ? ggml_nbytes(rows) : llama_edgekv_huge(ggml_nbytes(rows));
}

namespace {

struct place {
    std::mutex  mutex;
    std::string folder;       // empty: caches lie in memory
    int         failure = 0;  // why the newest file could not be made
};

place & home() {
    static place * one = new place;  // never destroyed: contexts may outlive static destruction
    return *one;
}

thread_local const char * t_own = nullptr;  // this thread's folder, instead of that of the process; the hooks' side keeps the text

std::string home_folder() {
    if (t_own) {
        return t_own;
    }
    std::lock_guard<std::mutex> lock(home().mutex);
    return home().folder;
}

}  // namespace

void llama_edgekv_set_home(const char * folder, bool own) {
    std::lock_guard<std::mutex> lock(home().mutex);
    if (own) {
        t_own = folder;
    } else {
        home().folder = folder;
    }
    if (folder && *folder) {  // who takes the folder away still asks why there was no file
        home().failure = 0;
    }
}

int llama_edgekv_home_failure(void) {
    std::lock_guard<std::mutex> lock(home().mutex);
    return home().failure;
}

#ifdef __linux__

namespace {

struct mapping {
    char * base;
    size_t n_bytes;
    int    file;         // below 0: memory
    std::string folder;  // of the file
    llama_edgekv_pinned pinned = {};
};

mapping & of(ggml_backend_buffer_t buffer) { return *static_cast<mapping *>(buffer->context); }

// No reserve, because a context may have more cells than will ever hold tokens; what is free is asked when they come.
char * map_memory(size_t n_bytes) {
    void * whole = mmap(nullptr, n_bytes + LLAMA_EDGEKV_HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (whole == MAP_FAILED) {
        return nullptr;
    }
    const uintptr_t first = reinterpret_cast<uintptr_t>(whole);
    const uintptr_t base  = llama_edgekv_huge(first);
    if (base > first) {
        munmap(whole, base - first);
    }
    munmap(reinterpret_cast<void *>(base + n_bytes), LLAMA_EDGEKV_HUGE - (base - first));
    return reinterpret_cast<char *>(base);
}

// A file of so many bytes that has no name; below 0: errno says why not.
int make_file(const std::string & folder, size_t n_bytes) {
    std::string path = folder + "/edgekv-home-XXXXXX";
    const int   file = mkostemp(path.data(), O_CLOEXEC);
    if (file < 0) {
        return -1;
    }
    if (unlink(path.c_str()) != 0 || fallocate(file, 0, 0, static_cast<off_t>(n_bytes)) != 0) {
        const int why = errno;
        close(file);
        errno = why;
        return -1;
    }
    return file;
}

void unmap(mapping * made) {
    made->pinned.unpin();
    if (made->base) {
        munmap(made->base, made->n_bytes);
    }
    if (made->file >= 0) {
        close(made->file);
    }
    delete made;
}

// In memory if `folder` is empty. Null: errno says why.
mapping * map(size_t n_bytes, const std::string & folder) {
    const bool in_memory = folder.empty();
    auto *     made      = new mapping{ nullptr, n_bytes, in_memory ? -1 : make_file(folder, n_bytes), folder, {} };
    if (in_memory || made->file >= 0) {
        made->base = map_memory(n_bytes);
    }
    if (made->base && (in_memory || mmap(made->base, n_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, made->file, 0) != MAP_FAILED)) {
        return made;
    }
    const int why = errno;
    unmap(made);
    errno = why;
    return nullptr;
}

// What is pinned stays: a device has its pages.
bool forget(const mapping & m, size_t offset, size_t n_bytes) {
    if (m.file < 0) {
        const uintptr_t first = reinterpret_cast<uintptr_t>(m.base) + offset;
        bool all = true;
        m.pinned.each_rest(first, first + n_bytes, [&](uintptr_t from, uintptr_t to) {
            all = madvise(reinterpret_cast<void *>(from), to - from, MADV_DONTNEED) == 0 && all;
        });
        return all;
    }
    return fallocate(m.file, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset), static_cast<off_t>(n_bytes)) == 0;
}

// Huge pages, because sampling reads scattered rows: with pages of 4 KiB each costs a walk of the page table, in a virtual machine a nested one.
// Of 8 MiB of rows the walk was not to be seen. If refused, all pages are small.
ggml_status init_tensor(ggml_backend_buffer_t buffer, ggml_tensor * rows) {
    if (!rows->view_src && of(buffer).file < 0) {
        const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)), base = reinterpret_cast<uintptr_t>(rows->data);
        const uintptr_t first = base/page*page;
        const int advice = llama_edgekv_unit(rows) == LLAMA_EDGEKV_HUGE ? MADV_HUGEPAGE : MADV_NOHUGEPAGE;
        madvise(reinterpret_cast<void *>(first), base + llama_edgekv_padded(rows) - first, advice);
    }
    return GGML_STATUS_SUCCESS;
}

void free_buffer(ggml_backend_buffer_t buffer) { unmap(&of(buffer)); }

void * get_base(ggml_backend_buffer_t buffer) { return of(buffer).base; }

void clear(ggml_backend_buffer_t buffer, uint8_t value) {
    const mapping & m = of(buffer);
    if (value != 0 || !forget(m, 0, m.n_bytes)) {
        std::memset(m.base, value, buffer->size);
        return;
    }
    m.pinned.each_part([](uintptr_t first, uintptr_t end) { std::memset(reinterpret_cast<void *>(first), 0, end - first); });
}

ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t type, size_t n_bytes);

size_t alloc_size(ggml_backend_buffer_type_t, const ggml_tensor * tensor) { return llama_edgekv_padded(tensor); }

ggml_backend_buffer_type make_type() {
    ggml_backend_buffer_type made = *ggml_backend_cpu_buffer_type();  // its name, alignment and place
    made.iface.alloc_buffer   = alloc_buffer;
    made.iface.get_alloc_size = alloc_size;
    return made;
}

ggml_backend_buffer_type_t in_memory() {
    static ggml_backend_buffer_type type = make_type();
    return &type;
}

ggml_backend_buffer_type_t in_file() {
    static ggml_backend_buffer_type type = make_type();
    return &type;
}

void has_no_file(size_t n_bytes, const std::string & folder, int why) {
    LLAMA_LOG_ERROR("edgekv: a KV cache of %zu bytes has no file in %s: %s\n", n_bytes, folder.c_str(), std::strerror(why));
    std::lock_guard<std::mutex> lock(home().mutex);
    home().failure = why;
}

ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t type, size_t n_bytes) {
    const std::string folder = type == in_file() ? home_folder() : "";
    mapping *         made   = map(llama_edgekv_huge(n_bytes), folder);
    if (!made && !folder.empty()) {
        has_no_file(n_bytes, folder, errno);
    } else if (!made) {
        LLAMA_LOG_ERROR("edgekv: there are no addresses for a KV cache of %zu bytes\n", n_bytes);
    }
    if (!made) {
        return nullptr;
    }
    auto * buffer = ggml_backend_cpu_buffer_from_ptr(made->base, n_bytes);  // tensors are read and written as in any memory of the host
    buffer->buft    = type;
    buffer->context = made;
    buffer->iface.free_buffer = free_buffer;
    buffer->iface.get_base    = get_base;
    buffer->iface.init_tensor = init_tensor;
    buffer->iface.clear       = clear;
    return buffer;
}

bool lies(const ggml_tensor * rows, ggml_backend_buffer_type_t type) { return rows && rows->buffer && rows->buffer->buft == type; }

}  // namespace

llama_edgekv_pinned * llama_edgekv_pins_of(ggml_backend_buffer_t buffer) {
    return buffer->buft == in_memory() && buffer->context ? &of(buffer).pinned : nullptr;  // what is only measured has none
}

ggml_backend_buffer_type_t llama_edgekv_mapped(void) {
    return home_folder().empty() ? in_memory() : in_file();
}

bool llama_edgekv_grows(const ggml_tensor * rows) { return lies(rows, in_memory()); }

bool llama_edgekv_on_disk(const ggml_tensor * rows) { return lies(rows, in_file()); }

int llama_edgekv_file_beside(const ggml_tensor * rows, size_t n_bytes) {
    const std::string & folder = of(rows->buffer).folder;
    const int           file   = make_file(folder, n_bytes);
    if (file < 0) {
        has_no_file(n_bytes, folder, errno);
    }
    return file;
}

void llama_edgekv_will_stream(const ggml_tensor * rows) {
    if (llama_edgekv_on_disk(rows)) {
        const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)), first = reinterpret_cast<uintptr_t>(rows->data)/page*page;
        madvise(reinterpret_cast<void *>(first), reinterpret_cast<uintptr_t>(rows->data) + ggml_nbytes(rows) - first, MADV_NORMAL);
    }
}

bool llama_edgekv_forget(ggml_backend_buffer_t buffer, uintptr_t first, uintptr_t end) {
    const uintptr_t base = reinterpret_cast<uintptr_t>(of(buffer).base);
    return forget(of(buffer), first - base, end - first);
}

#else

llama_edgekv_pinned * llama_edgekv_pins_of(ggml_backend_buffer_t) { return nullptr; }

ggml_backend_buffer_type_t llama_edgekv_mapped(void) { return nullptr; }

bool llama_edgekv_grows(const ggml_tensor *) { return false; }

bool llama_edgekv_on_disk(const ggml_tensor *) { return false; }

int llama_edgekv_file_beside(const ggml_tensor *, size_t) { return -1; }

void llama_edgekv_will_stream(const ggml_tensor *) {}

bool llama_edgekv_forget(ggml_backend_buffer_t, uintptr_t, uintptr_t) { return false; }

#endif

bool llama_edgekv_is_mapped(const ggml_tensor * rows) { return llama_edgekv_grows(rows) || llama_edgekv_on_disk(rows); }
