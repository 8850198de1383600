// A second file of a home on disk, in the order in which sampling reads: for each head all its cells, and of each cell K and V side by side. So one
// read serves a row that llama.cpp's order spreads over two pages, among rows of other heads.
//
// The node behind the store node writes the groups whose sketches it built. The node behind the select node brings the listed rows into a cache in memory: it
// asks for all that are missing, and then takes them as they come. Rows of open groups are read from llama.cpp's own tensors, whose newest pages are in memory.
#pragma once

#include "kernels/decode/attend.h"
#include "cache/row_cache.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace edgekv {

struct Layer;
struct RowLists;
struct State;

// Layers are hooked layers, streams those of the cache.
class DiskRows {
public:
    explicit DiskRows(State & ctx);  // throws std::bad_alloc
    ~DiskRows();
    DiskRows(const DiskRows &) = delete;
    DiskRows & operator=(const DiskRows &) = delete;

    // Takes so many bytes of memory for copies; what was there is not any more. With 0 there is no second file either, and the system alone decides
    // what stays in memory. false: there is no memory or no file, as llama_edgekv_home_failure() says.
    bool reserve(size_t n_bytes);
    bool on_disk() const { return file_bytes > 0; }  // K and V of some layer lie in a file
    bool keeps(int layer) const { return file >= 0 && layers[layer].layer; }
    size_t bytes() const { return cache.bytes(); }
    int failure() const { return failed.load(std::memory_order_relaxed); }  // an errno, final; 0: all was read and written

    // Writes the groups that this ubatch sketches, thread `ith` of `nth` those of its heads.
    void write(int layer, int ith, int nth);

    // Gives the rows of lists [n_tokens][n_heads] slots, as in AttendCopies: thread `ith` those of its heads. Adds the rows that were there to
    // `hits` [n_heads]. `now` counts ubatches, from 1.
    void bring(int layer, int stream, const RowLists & lists, AttendHits * hits, uint64_t now, int ith, int nth);
    AttendCopies copies(int layer, const int32_t * slots) const;

private:
    // The rows of a layer: [stream][head][cell].
    struct OfLayer {
        const Layer * layer = nullptr;  // null: they are read at home
        int n_heads = 0;
        size_t k_bytes = 0, row_bytes = 0;  // of a row of K; with its V
        size_t head_bytes = 0;              // of all cells, in whole pages of the file
        size_t first_byte = 0;              // of the file
        uint64_t first_row = 0;             // their numbers in the cache

        size_t   at(int stream, int head, int cell) const { return first_byte + (static_cast<size_t>(stream) * n_heads + head) * head_bytes + cell * row_bytes; }
        uint64_t row(const State & ctx, int stream, int head, int cell) const;
    };

    void write_group(const OfLayer & of, int stream, int head, int group);
    void moved(ptrdiff_t n_bytes, size_t wanted);  // to the file or from it

    State & ctx;
    size_t file_bytes = 0;  // of the file, if there is one
    int file = -1;
    std::vector<OfLayer> layers;
    std::mutex placing;  // of the cache
    RowCache cache;
    std::atomic<int> failed{0};
};

}  // namespace edgekv
