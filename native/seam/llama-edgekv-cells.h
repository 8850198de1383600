// When each KV cell last changed: included by llama.cpp's llama-kv-cells.h, which calls touch() wherever it alters a cell.
//
// The clock advances on every change of a cell's position, sequences or K/V data. A reader remembers now() and later asks which
// cells have get(i) greater than that. Speculative placements that are rolled back (prepare) restore the old times with set().
#pragma once

#include <cstdint>
#include <vector>

class llama_edgekv_clock {
public:
    uint64_t now() const { return time; }

    const std::vector<uint64_t> & times() const { return cell_time; }

    uint64_t get(uint32_t i) const { return cell_time[i]; }

    void set(uint32_t i, uint64_t t) { cell_time[i] = t; }

    void resize(uint32_t n) { cell_time.resize(n); }

    void touch(uint32_t i) { cell_time[i] = ++time; }

    void touch_all() {
        ++time;
        for (auto & t : cell_time) {
            t = time;
        }
    }

    // positions of a sequence may be missing: set once, stays
    bool gaps = false;

private:
    uint64_t time = 0;
    std::vector<uint64_t> cell_time;
};
