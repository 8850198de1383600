// Sketches and keys of a SketchCase in the device's memory.
#pragma once

#include "cuda/kernels/sketch_device.h"
#include "device_array.h"
#include "sketch_instance.h"

namespace test {

struct Sketches {
    edgekv::SketchLayout layout;
    size_t stream_bytes;
    std::vector<char> want;
    DeviceArray<char> data;

    Sketches(const SketchCase & c, Random & rng)
        : layout(edgekv::sketch_layout(c.head_dim, c.n_groups)),
          stream_bytes(edgekv::sketch_bytes(c.head_dim, c.n_head_kv, c.n_groups) + (c.partial ? 128 : 0)),
          want(rng.bytes<char>(stream_bytes * c.n_streams)), data(want) {}  // a build must not read these, and must leave those between heads and streams

    edgekv::Sketch sketch(const SketchCase & c, int stream) {
        return {c.head_dim, c.n_head_kv, c.n_groups, want.data() + stream * stream_bytes};
    }
    edgekv::gpu::SketchArray array(const SketchCase & c) const { return {c.head_dim, c.n_head_kv, c.n_groups, data.data(), stream_bytes}; }
};

// Keys on the device's side: home in pinned memory, and copies of some pages in an arena; home then holds NaN for those.
struct PlacedKeys {
    static constexpr int kPageTokens = 32;
    int pages_per_stream;
    size_t slot_bytes;
    DeviceArray<char> home, arena;
    DeviceArray<int32_t> slots;
    DeviceArray<int32_t> open;  // [stream][group] what has no sketch
    std::vector<int32_t> is_open;

    PlacedKeys(const SketchCase & c, const SketchInstance & in, Random & rng)
        : pages_per_stream((c.n_groups * kGroupCells + kPageTokens - 1) / kPageTokens), slot_bytes(kPageTokens * in.key_bytes * 2 + (c.partial ? 2 : 0)) {
        Bytes at_home = in.k;
        std::vector<char> in_arena;
        const int n_pages = c.n_streams * pages_per_stream;
        std::vector<int32_t> table(static_cast<size_t>(c.n_head_kv) * n_pages, -1);
        for (size_t i = 0; c.arena && i < table.size(); i += 2 + i % 3) {
            table[i] = static_cast<int32_t>(in_arena.size() / slot_bytes);
            in_arena.resize(in_arena.size() + slot_bytes, 0x77);
            char * slot = in_arena.data() + in_arena.size() - slot_bytes;
            const int page = static_cast<int>(i) % n_pages, head = static_cast<int>(i) / n_pages;
            for (int t = 0; t < kPageTokens; ++t) {
                const size_t cell = static_cast<size_t>(page % pages_per_stream) * kPageTokens + t;
                const size_t at = page / pages_per_stream * in.stride_stream + cell * in.stride_cell + head * in.stride_head;
                std::copy_n(in.k.data() + at, in.key_bytes, slot + t * in.key_bytes);
                std::fill_n(at_home.data() + at, in.key_bytes, static_cast<char>(0xff));
            }
        }
        for (int i = 0; i < c.n_streams * c.n_groups; ++i) {
            is_open.push_back(rng.one_of(5) ? 1 : 0);
        }
        home = DeviceArray<char>(at_home, true);
        arena = DeviceArray<char>(in_arena);
        slots = DeviceArray<int32_t>(table);
        open = DeviceArray<int32_t>(is_open);
    }
    edgekv::gpu::SketchHome at(const SketchCase & c, const SketchInstance & in) const {
        return {c.type, {home.data(), in.stride_cell, in.stride_head}, in.stride_stream, false, page_slots(c, in)};
    }
    edgekv::gpu::PageSlots page_slots(const SketchCase & c, const SketchInstance & in) const {
        return {arena.data(), slot_bytes, kPageTokens * in.key_bytes, slots.data(), static_cast<size_t>(c.n_streams) * pages_per_stream, kPageTokens,
                pages_per_stream};
    }
};

}  // namespace test
