// Each KV cell's time of last change, labels of how its token was read, and closed gaps. llama.cpp's llama-kv-cells.h
// includes this file and calls touch() wherever it alters a cell, before the rows change.
//
// The clock advances on every change of a cell's position, sequences or K/V rows. A reader remembers now(); later every cell with a greater
// get(i) has changed, and since() names the few cells to look at. The rollback of a speculative placement (prepare) restores the old
// times with set(); since() still names its cells.
#pragma once

#include "llama-edgekv-holds.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

// Where the gaps between the tokens of a sequence are closed: the token at position p is rotated as if it were at p - offset_of(p). Positions
// themselves stay, for whoever counts the sequence's tokens.
class llama_edgekv_closed {
public:
    bool empty() const { return runs.empty(); }
    void clear() { runs.clear(); }

    int32_t offset_of(int32_t pos) const {
        const auto behind = std::upper_bound(runs.begin(), runs.end(), pos, [](int32_t p, const run & r) { return p < r.first; });
        return behind == runs.begin() ? 0 : (behind - 1)->offset;
    }

    // Positions from `first` on, beyond all so far, have this offset.
    void add(int32_t first, int32_t offset) {
        if (offset != (runs.empty() ? 0 : runs.back().offset)) {
            runs.push_back({ first, offset });
        }
    }

    // The token at this position has this offset, which is at least that of earlier ones; in any order.
    void set(int32_t pos, int32_t offset) {
        const auto behind = std::upper_bound(runs.begin(), runs.end(), pos, [](int32_t p, const run & r) { return p < r.first; });
        if (behind != runs.end() && behind->offset == offset) {
            behind->first = pos;
        } else if (offset != (behind == runs.begin() ? 0 : (behind - 1)->offset)) {
            runs.insert(behind, { pos, offset });
        }
    }

    // The sequence ends at position `newest`: what was known beyond is void.
    void end_at(int32_t newest) {
        while (!runs.empty() && runs.back().first > newest) {
            runs.pop_back();
        }
    }

private:
    struct run {
        int32_t first, offset;
    };
    std::vector<run> runs;  // ascending
};

class llama_edgekv_clock {
public:
    uint64_t now() const { return time; }

    const std::vector<uint64_t> & times() const { return cell_time; }

    uint64_t get(uint32_t i) const { return cell_time[i]; }

    void set(uint32_t i, uint64_t t) { cell_time[i] = t; }

    void resize(uint32_t n) {
        cell_time.resize(n);
        placed.clear();
    }

    // A cell changes, and its rows may move or go to other tokens. Waits while the cell is held.
    void touch(uint32_t i) {
        wait_for(i);
        touch_kept(i);
    }

    // A cell changes and its rows stay: it gains sequences, or keeps at least one.
    void touch_kept(uint32_t i) {
        cell_time[i] = ++time;
        note(i);
    }

    void touch_all() {
        wait_for_all();
        ++time;
        for (auto & t : cell_time) {
            t = time;
        }
        forgotten = time;
        if (gaps) {
            closed->clear();
        }
        turns = false;
    }

    // Behind touch_all(): what all cells hold are cells and rows of another stream.
    void copied(const llama_edgekv_clock & of, uint32_t stream) {
        labels = of.labels;
        if (closed && of.closed) {
            *closed = *of.closed;
        }
        copied_from = stream;
        n_copied += 1;
    }

    // Calls each(first, end) with ranges that hold every cell touched after `t`, the newest first. Ranges may overlap and may also hold
    // untouched cells. false: the log does not reach back that far.
    template <class Each>
    bool since(uint64_t t, Each && each) const {
        if (t < forgotten) {
            return false;
        }
        for (uint32_t k = 0; k < log.size(); ++k) {
            const touched & range = log[(newest + kLog - k)%kLog];
            if (range.last <= t) {
                break;
            }
            each(range.first, range.end);
        }
        return true;
    }

    // The same, of n_cells: puts them into `out` and returns their number, at most `capacity`; one range of all cells if they are more, or not known.
    template <class Range>
    int ranges_since(uint64_t t, uint32_t n_cells, Range * out, int capacity) const {
        int n = 0;
        const bool known = since(t, [&](uint32_t first, uint32_t end) {
            if (n < capacity) {
                out[n] = { first, end };
            }
            n += 1;
        });
        if (!known || n > capacity) {
            out[0] = { 0, n_cells };
            n = 1;
        }
        return n;
    }

    // Calls each(first, end) with the runs of blocks without a token in which cells were touched since they were last named here; runs reach as far
    // as the empty blocks around them. `is_empty` tells of a cell.
    template <class IsEmpty, class Each>
    void each_left(IsEmpty && is_empty, Each && each) {
        const auto empty = [&](uint32_t block) {
            for (uint32_t i = block*kBlock; i < std::min<size_t>((block + size_t(1))*kBlock, cell_time.size()); ++i) {
                if (!is_empty(i)) {
                    return false;
                }
            }
            return true;
        };
        for (uint32_t block = 0; block < placed.size(); ++block) {
            if (!placed[block] || !empty(block)) {
                continue;
            }
            uint32_t first = block, end = block + 1;
            while (first > 0 && empty(first - 1)) {
                --first;
            }
            while (end < placed.size() && empty(end)) {
                ++end;
            }
            std::fill(placed.begin() + first, placed.begin() + end, uint8_t(0));
            each(first*kBlock, std::min<uint32_t>(end*kBlock, static_cast<uint32_t>(cell_time.size())));
            block = end - 1;
        }
    }

    // The rows of cells [first, end) left with their memory: blocks of them without a token have none.
    template <class IsEmpty>
    void vacate(uint32_t first, uint32_t end, IsEmpty && is_empty) {
        for (uint32_t block = first/kBlock; block*kBlock < end && block < placed.size(); ++block) {
            uint32_t i = block*kBlock;
            const uint32_t behind = static_cast<uint32_t>(std::min<size_t>(i + kBlock, cell_time.size()));
            while (i < behind && is_empty(i)) {
                ++i;
            }
            placed[block] = placed[block] && i < behind;
        }
    }

    // One past the cells that have memory, if no token lies from `used_end` on, and those that have some there were the next ones: cells of blocks
    // that were touched since each_left() or vacate() named them.
    uint32_t placed_end(uint32_t used_end) const {
        size_t end = used_end/kBlock*kBlock;
        for (size_t block = used_end/kBlock; block < placed.size(); ++block) {
            end += placed[block] ? kBlock : 0;
        }
        return static_cast<uint32_t>(std::min(end, cell_time.size()));
    }

    // cells of the blocks without memory that end before `used_end`
    uint32_t holes(uint32_t used_end) const {
        return kBlock*static_cast<uint32_t>(std::count(placed.begin(), placed.begin() + std::min<size_t>(placed.size(), used_end/kBlock), uint8_t(0)));
    }

    // For the decoding thread. A holder keeps the pointer, because the clock may be destroyed as soon as nothing is held.
    const std::shared_ptr<llama_edgekv_holds> & holding() {
        if (!holds) {
            holds = std::make_shared<llama_edgekv_holds>();
        }
        return holds;
    }

    // for a cache whose cells are another's
    void share(const std::shared_ptr<llama_edgekv_holds> & of) { holds = of; }

    void wait_for(uint32_t i) {
        if (holds) {
            holds->wait(i);
        }
    }

    void wait_for_all() {
        if (holds) {
            holds->wait_for_all();
        }
    }

    // the K-shift that waited was applied to a cell, to all cells
    void shifted(uint32_t i) {
        if (!turns) {
            touch(i);
        }
    }

    void all_shifted() { turns = false; }

    int32_t offset_of(int32_t pos) const { return closed ? closed->offset_of(pos) : 0; }

    // positions of a sequence may be missing; never reset
    bool gaps = false;

    // Gaps close before a token would be rotated by this position or a later one; 0: they stay.
    int32_t n_positions = 0;
    std::shared_ptr<llama_edgekv_closed> closed;  // not null where there may be gaps; sliding layers share it
    bool     turns    = false;  // the K-shift that waits closes gaps: K turns, and the cells hold the same tokens as before
    uint64_t n_turned = 0;      // times that K turned

    uint64_t n_copied    = 0;  // times that another stream's cells and rows came
    uint32_t copied_from = 0;  // the stream, the last time

    // rows come for what is removed now, so that its memory stays; of a cache's first stream, and never copied
    bool refilled = false;

    // [sequence] where its newest token may lie: a guess that spares a search
    std::vector<uint32_t> newest_cells;

    // [cell] bits of llama_edgekv_label, for tokens that were not read exactly
    std::vector<uint8_t> labels;

private:
    std::shared_ptr<llama_edgekv_holds> holds;  // null: no cell was ever held

    static constexpr uint32_t kLog  = 1024;  // ranges: a batch of 2,048 tokens is placed twice and takes 64
    static constexpr uint32_t kBlock = 256;  // cells whose rows get memory, and give it back, together
    static constexpr uint32_t kSpan = 64;  // most cells of a range: a reader looks at all of them for one change

    struct touched {
        uint64_t last = 0;  // time of its last touch
        uint32_t first = 0, end = 0;
    };

    void note(uint32_t i) {
        if (log.empty()) {
            log.resize(kLog);  // not in resize(): prepare's copies are never touched
        }
        if (placed.empty()) {
            placed.resize((cell_time.size() + kBlock - 1)/kBlock);
        }
        placed[i/kBlock] = 1;
        if (const touched & range = log[newest]; i < range.first || i > range.end || i - range.first >= kSpan) {
            newest    = (newest + 1)%kLog;
            forgotten = std::max(forgotten, log[newest].last);
            log[newest].first = log[newest].end = i;
        }
        log[newest].end  = std::max(log[newest].end, i + 1);
        log[newest].last = time;
    }

    uint64_t time = 0;
    std::vector<uint64_t> cell_time;

    std::vector<uint8_t> placed;  // [block]
    std::vector<touched> log;  // a ring
    uint32_t newest    = 0;
    uint64_t forgotten = 0;  // the log has lost the touches up to this time
};

// waits until nobody holds any cell of these streams
template <typename Cells>
void llama_edgekv_wait_for_all(std::vector<Cells> & streams) {
    for (auto & cells : streams) {
        cells.edgekv_clock.wait_for_all();
    }
}
