// Pages of memory that move to other addresses, on Linux.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

size_t llama_edgekv_small_page();
size_t llama_edgekv_least_move();   // bytes; below, a copy takes no longer
bool   llama_edgekv_system_moves();
char * llama_edgekv_addresses(size_t n_bytes);  // of memory that comes as it is written; null: there are none

// The whole pages of some bytes: where they begin, and how many bytes they are; `n` is 0 where there are fewer than `least`.
struct llama_edgekv_whole_pages {
    size_t before, n;
};
llama_edgekv_whole_pages llama_edgekv_whole(const char * data, size_t n_bytes, size_t least);

// Knows the kernel's mappings of this process when it is made. A step stays within one of them: of more, Linux up to 6.16 moves none, and later ones
// perhaps some.
class llama_edgekv_mover {
public:
    llama_edgekv_mover();

    bool knows() const { return !ends.empty(); }

    // To addresses that agree modulo a page. Whole pages of `from` then read as zeros, or as before where they were copied. huge: `to` has huge pages
    // where they can be had.
    void move(char * to, char * from, size_t n_bytes, bool huge) const;

private:
    char * end_of(char * at) const {  // of the mapping in which it lies
        const auto found = std::upper_bound(ends.begin(), ends.end(), at);
        return found == ends.end() ? at : *found;
    }

    std::vector<char *> ends;  // ascending
};
