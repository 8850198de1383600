// The arena in host memory: slots for copies of pages.
#pragma once

#include "pages/buffer.h"
#include "pages/shape.h"

#include <cassert>

namespace edgekv {

class Arena {
public:
    explicit Arena(size_t slot_bytes) : slot_bytes(slot_bytes) {}

    bool reserve(int n_slots);  // remaining slots keep their pages; false: out of memory, nothing changed
    char * slot(int i) const {
        assert(i >= 0 && i < n);
        return memory.data() + static_cast<size_t>(i) * slot_bytes;
    }
    const char * data() const { return n > 0 ? memory.data() : nullptr; }
    size_t bytes() const { return memory.size(); }

private:
    const size_t slot_bytes;
    int n = 0;
    Buffer memory;
};

}  // namespace edgekv
