#include "pages/arena.h"

#include <algorithm>
#include <cstring>

namespace edgekv {

bool Arena::reserve(int n_slots) {
    assert(n_slots >= 0);
    Buffer fresh;
    if (!fresh.reserve(static_cast<size_t>(n_slots) * slot_bytes)) {
        return false;
    }
    if (const int n_kept = std::min(n_slots, n); n_kept > 0) {
        std::memcpy(fresh.data(), memory.data(), static_cast<size_t>(n_kept) * slot_bytes);
    }
    memory = std::move(fresh);
    n      = n_slots;
    return true;
}

}  // namespace edgekv
