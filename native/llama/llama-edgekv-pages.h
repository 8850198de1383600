// Pages of memory that move to other addresses, on Linux.
#pragma once

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

// Knows the kernel's mappings of this process as they are when it is made, or later. A step stays within one of them: of more, Linux up to 6.16 moves
// none, and later ones perhaps some.
class llama_edgekv_mover {
public:
    llama_edgekv_mover();
    ~llama_edgekv_mover();
    llama_edgekv_mover(const llama_edgekv_mover &)             = delete;
    llama_edgekv_mover & operator=(const llama_edgekv_mover &) = delete;

    bool knows() const { return asks || !ends.empty(); }  // else it moves nothing, and is not to be asked to

    // The bytes of each mapping's part of the whole pages that move.
    std::vector<size_t> parts(char * from, size_t n_bytes) const;

    // To addresses that agree modulo a page. Whole pages of `from` then read as zeros, or as before where they were copied, as parts below `least` bytes are.
    // huge: `to` has huge pages where they can be had.
    void move(char * to, char * from, size_t n_bytes, bool huge, size_t least = 0) const;

    // The whole pages of `from`, which nobody needs any more, become as new ones where a mapping ends among them: the kernel may then make one of them and
    // of those around them, which it does not do with pages that moved in.
    void renew(char * from, size_t n_bytes, bool huge) const;

private:
    size_t step(char * at) const;  // bytes of the mapping from there on

    int  file = -1;
    bool asks = false;         // Linux 6.11 tells of one mapping
    std::vector<char *> ends;  // ascending, where it does not
};
