// Device memory and pinned memory. Each allocation lies between two inaccessible pages; the rest of its own pages is filled
// with a pattern and checked. A released allocation keeps its addresses for a while, inaccessible, so that late uses
// are found. Memory of the caller's that is pinned has no such pages; what is not pinned of its home is out of the operations' reach.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <map>

#include "emulator/emulator_state.h"

namespace edgekv::gpu::emulator {
namespace {

constexpr size_t kAlign = 256;  // as cudaMalloc's
constexpr char   kGuard = '\xa5';
constexpr size_t kReleased = 1024;  // released allocations that keep their addresses

struct Allocation {
    Kind kind;
    size_t n_bytes;
    char * pages;     // the mapping: a guard page, the data's pages, a guard page
    size_t n_pages_bytes;
    bool accessible;
    bool own = true;  // false: the caller's, pinned for a while; `pages` are its own
};

// Memory of the caller's of which parts are pinned.
struct Home {
    size_t n_bytes;
    int n_pinned;
    bool sealed;  // the other parts are out of reach
};

struct Memory {
    std::map<char *, Allocation> live;
    std::map<char *, Allocation> released;
    std::deque<char *> oldest;
    std::map<char *, Home> homes;
    size_t bytes[2] = {0, 0};
    size_t version = 1;
    int open = 0;
};

Memory & memory() {
    static Memory * one = new Memory;
    return *one;
}

size_t page() {
    static const size_t bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    return bytes;
}

size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

const char * name(Kind kind) { return kind == Kind::device ? "device" : "pinned"; }

void access(Allocation & a, bool on) {
    if (a.accessible != on) {
        mprotect(a.pages + page(), a.n_pages_bytes - 2 * page(), on ? PROT_READ | PROT_WRITE : PROT_NONE);
        a.accessible = on;
    }
}

void check(char * p, const Allocation & a) {
    if (!a.own) {
        return;
    }
    for (const char * c = a.pages + page(); c < p; ++c) {
        if (*c != kGuard) {
            fault("%s memory: a write %zd bytes before an allocation of %zu", name(a.kind), p - c, a.n_bytes);
        }
    }
    const char * end = a.pages + a.n_pages_bytes - page();
    for (const char * c = p + a.n_bytes; c < end; ++c) {
        if (*c != kGuard) {
            fault("%s memory: a write at byte %zd of an allocation of %zu", name(a.kind), c - p, a.n_bytes);
        }
    }
}

// the allocation whose mapping holds the address
std::map<char *, Allocation>::iterator holder(std::map<char *, Allocation> & all, const void * address) {
    char * c = static_cast<char *>(const_cast<void *>(address));
    const auto holds = [c](const Allocation & a) { return c >= a.pages && c < a.pages + a.n_pages_bytes; };
    auto it = all.upper_bound(c);  // keys are data addresses: the next allocation's mapping may begin below its key
    if (it != all.end() && holds(it->second)) {
        return it;
    }
    return it != all.begin() && holds((--it)->second) ? it : all.end();
}

// the home that holds the address
std::map<char *, Home>::iterator home_of(const void * address) {
    auto & homes = memory().homes;
    char * c = static_cast<char *>(const_cast<void *>(address));
    auto it = homes.upper_bound(c);
    return it != homes.begin() && c < (--it)->first + it->second.n_bytes ? it : homes.end();
}

// Puts what is not pinned of a home out of reach, or back.
void seal(char * begin, Home & home, bool on) {
    if (home.sealed == on) {
        return;
    }
    home.sealed = on;
    char * const end = begin + home.n_bytes;
    for (auto it = memory().live.lower_bound(begin);;) {
        const bool inside = it != memory().live.end() && it->first < end;
        char * const to = inside ? it->first : end;
        if (begin < to) {
            mprotect(begin, static_cast<size_t>(to - begin), on ? PROT_NONE : PROT_READ | PROT_WRITE);
        }
        if (!inside) {
            return;
        }
        begin = it->first + it->second.n_bytes;
        ++it;
    }
}

thread_local int t_open = 0;  // this thread runs operations

}  // namespace

void * memory_alloc(Kind kind, size_t n_bytes) {
    Memory & m = memory();
    const size_t data = round_up(std::max<size_t>(n_bytes, 1), kAlign);
    const size_t n_pages_bytes = round_up(data, page()) + 2 * page();
    void * mapped = mmap(nullptr, n_pages_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) {
        return nullptr;
    }
    char * pages = static_cast<char *>(mapped);
    char * end = pages + n_pages_bytes - page();
    char * p = end - data;  // the data ends as near to the guard page as the alignment allows
    std::memset(pages + page(), kGuard, static_cast<size_t>(p - pages) - page());
    std::memset(p + n_bytes, kGuard, data - n_bytes);
    mprotect(pages, page(), PROT_NONE);
    mprotect(end, page(), PROT_NONE);
    Allocation & a = m.live[p] = Allocation{kind, n_bytes, pages, n_pages_bytes, true, true};
    m.bytes[static_cast<int>(kind)] += n_bytes;
    ++m.version;
    if (strict() && kind == Kind::device) {
        access(a, false);
    }
    return p;
}

bool memory_free(Kind kind, void * pointer) {
    Memory & m = memory();
    const auto it = m.live.find(static_cast<char *>(pointer));
    if (it == m.live.end() || it->second.kind != kind || !it->second.own) {
        return false;
    }
    Allocation a = it->second;
    char * p = it->first;
    access(a, true);
    check(p, a);
    m.bytes[static_cast<int>(kind)] -= a.n_bytes;
    ++m.version;
    m.live.erase(it);

    // the pages go back to the system, the addresses stay taken
    mmap(a.pages, a.n_pages_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    m.released[p] = a;
    m.oldest.push_back(p);
    if (m.oldest.size() > kReleased) {
        const auto last = m.released.find(m.oldest.front());
        munmap(last->second.pages, last->second.n_pages_bytes);
        m.released.erase(last);
        m.oldest.pop_front();
    }
    return true;
}

bool memory_pin(char * p, size_t n_bytes, char * home, size_t home_bytes) {
    Memory & m = memory();
    const bool whole = reinterpret_cast<uintptr_t>(p) % page() == 0 && n_bytes % page() == 0 && n_bytes > 0;
    if (!whole || p < home || p + n_bytes > home + home_bytes || memory_range(p, n_bytes) != Range::pageable) {
        return false;
    }
    seal(home, m.homes.try_emplace(home, Home{home_bytes, 0, false}).first->second, false);
    m.live[p] = Allocation{Kind::pinned, n_bytes, p, n_bytes, true, false};
    m.bytes[static_cast<int>(Kind::pinned)] += n_bytes;
    m.homes[home].n_pinned += 1;
    ++m.version;
    return true;
}

bool memory_unpin(char * p) {
    Memory & m = memory();
    const auto it = m.live.find(p);
    if (it == m.live.end() || it->second.own) {
        return false;
    }
    const auto home = home_of(p);
    seal(home->first, home->second, false);
    m.bytes[static_cast<int>(Kind::pinned)] -= it->second.n_bytes;
    ++m.version;
    m.live.erase(it);
    if (--home->second.n_pinned == 0) {
        m.homes.erase(home);
    }
    return true;
}

size_t memory_version() { return memory().version; }

size_t memory_bytes(Kind kind) { return memory().bytes[static_cast<int>(kind)]; }

size_t memory_pinned_later() {
    size_t n = 0;
    for (const auto & [p, a] : memory().live) {
        n += a.own ? 0 : a.n_bytes;
    }
    return n;
}

void memory_check() {
    const Opened opened;
    for (const auto & [p, a] : memory().live) {
        check(p, a);
    }
}

Range memory_range(const void * p, size_t n_bytes) {
    Memory & m = memory();
    char * c = static_cast<char *>(const_cast<void *>(p));
    const auto it = holder(m.live, p);
    if (it != m.live.end()) {
        const bool inside = c >= it->first && n_bytes <= it->second.n_bytes &&
                            static_cast<size_t>(c - it->first) <= it->second.n_bytes - n_bytes;
        return !inside ? Range::bad : it->second.kind == Kind::device ? Range::device : Range::pinned;
    }
    const auto next = m.live.lower_bound(c);
    const bool reaches = next != m.live.end() && next->first < c + n_bytes;  // into what is pinned
    return reaches || holder(m.released, p) != m.released.end() ? Range::bad : Range::pageable;
}

std::string memory_explain(const void * address) {
    Memory & m = memory();
    const char * c = static_cast<const char *>(address);
    char text[200];
    auto it = holder(m.released, address);
    if (it != m.released.end()) {
        const Allocation & a = it->second;
        std::snprintf(text, sizeof(text), "byte %zd of %s memory that was released (%zu bytes)", c - it->first, name(a.kind), a.n_bytes);
        return text;
    }
    it = holder(m.live, address);
    if (it != m.live.end()) {
        const Allocation & a = it->second;
        const bool inside = c >= it->first && c < it->first + a.n_bytes;
        std::snprintf(text, sizeof(text), "byte %zd of an allocation of %zu bytes of %s memory%s", c - it->first, a.n_bytes,
                      name(a.kind), inside ? " by the host, which cannot reach it" : "");
        return text;
    }
    if (const auto home = home_of(address); home != m.homes.end()) {
        std::snprintf(text, sizeof(text), "byte %zd of a home of %zu bytes, which is not pinned", c - home->first, home->second.n_bytes);
        return text;
    }
    return "";
}

void memory_open() {
    ++t_open;
    ++memory().open;
    for (auto & [begin, home] : memory().homes) {
        seal(begin, home, true);
    }
}

bool memory_reach(const void * address) {
    Memory & m = memory();
    if (const auto home = home_of(address); home != m.homes.end() && home->second.sealed && (t_open == 0 || !running())) {
        seal(home->first, home->second, false);  // a copy may touch it, and another thread of the host meanwhile
        return true;
    }
    const auto it = m.open > 0 ? holder(m.live, address) : m.live.end();
    if (it == m.live.end() || it->second.accessible || static_cast<size_t>(static_cast<const char *>(address) - it->second.pages) - page() >=
                                                           it->second.n_pages_bytes - 2 * page()) {
        return false;
    }
    access(it->second, true);
    return true;
}

void memory_close() {
    Memory & m = memory();
    --t_open;
    if (--m.open > 0) {
        return;
    }
    for (auto & [begin, home] : m.homes) {
        seal(begin, home, false);
    }
    if (strict()) {
        for (auto & [p, a] : m.live) {
            if (a.kind == Kind::device) {
                access(a, false);
            }
        }
    }
}

}  // namespace edgekv::gpu::emulator
