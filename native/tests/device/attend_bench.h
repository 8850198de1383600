// Times the attention on a GPU: bytes of K and V that a launch and its merge have to read, per second.
// Meaningless on the emulated device.
#pragma once

#include <cstdio>

#include "cuda/kernels/attend_device.h"
#include "dense_problem.h"
#include "device_array.h"

namespace bench {

using namespace edgekv;
using test::DeviceArray;

enum class Where { arena, device_rows, pinned };

struct Setup {
    const char * name;
    int head_dim, n_head_kv, group, n_tokens;
    CellType type;
    Where where;
    int n_selected;  // rows of each list, spread over all; 0: all
};

// Median milliseconds of a part with its merge.
inline double time_of(const Setup & r, int n_cells, int n_sm) {
    constexpr int kPage = 16, kRuns = 30;
    const size_t bytes = test::row_bytes(r.type, r.head_dim);
    const int n_pages = (n_cells + kPage - 1) / kPage, n_head = r.n_head_kv * r.group;
    const size_t n_bytes = bytes * r.n_head_kv * n_pages * kPage;

    AttendProblem p = test::dense_problem(r.head_dim, n_head, r.n_head_kv, r.n_tokens, n_cells, r.type);
    const DeviceArray<char> k(n_bytes, r.where == Where::pinned), v(n_bytes, r.where == Where::pinned);
    p.k = k.data(), p.v = v.data();
    const size_t n_values = static_cast<size_t>(r.n_tokens) * n_head * r.head_dim;
    const DeviceArray<float> q(std::vector<float>(n_values, 0.25f)), out(n_values);
    p.q = reinterpret_cast<char *>(q.data()), p.out = reinterpret_cast<char *>(out.data());
    const DeviceArray<uint16_t> mask(std::vector<uint16_t>(static_cast<size_t>(r.n_tokens) * n_cells, 0));
    p.mask = reinterpret_cast<char *>(mask.data()), p.mask_type = MaskType::f16, p.mask_stride_token = static_cast<size_t>(n_cells) * 2;
    const DeviceArray<float> mass(std::vector<float>(static_cast<size_t>(r.n_head_kv) * n_pages, 0.0f));
    p.mass_max = mass.data(), p.mass_stride = static_cast<size_t>(n_pages);

    p.arena.slot_bytes = 2 * bytes * kPage, p.arena.v_offset = bytes * kPage, p.arena.slots_stride = static_cast<size_t>(n_pages);
    std::vector<int32_t> slots(static_cast<size_t>(r.n_head_kv) * n_pages);
    test::Random rng(5);
    for (size_t i = 0; i < slots.size(); ++i) {
        slots[i] = static_cast<int32_t>(i);
        std::swap(slots[i], slots[rng.next() % (i + 1)]);
    }
    const DeviceArray<int32_t> slot_table(slots);
    const DeviceArray<char> arena(r.where == Where::arena ? slots.size() * p.arena.slot_bytes : 0);
    p.arena.slots = slot_table.data();
    p.arena.data = arena.data();

    const int n_listed = std::min(r.n_selected, n_cells);
    const size_t n_lists = static_cast<size_t>(r.n_tokens) * r.n_head_kv;
    std::vector<int32_t> listed;
    for (size_t list = 0; list < n_lists; ++list) {
        for (int i = 0; i < n_listed; ++i) {
            listed.push_back(static_cast<int32_t>(static_cast<int64_t>(i) * n_cells / n_listed));
        }
    }
    const DeviceArray<int32_t> cells(listed), counts(std::vector<int32_t>(n_lists, n_listed));
    const DeviceArray<float> weights(std::vector<float>(listed.size(), 2.0f));
    if (r.n_selected > 0) {
        p.rows = {cells.data(), weights.data(), counts.data(), static_cast<size_t>(n_listed)};
    }

    const int n_splits = gpu::attend_device_splits(p, r.n_selected > 0 ? (n_listed + kPage - 1) / kPage : n_pages, n_sm);
    const DeviceArray<char> workspace(gpu::attend_device_workspace_bytes(p, n_splits, true));
    const test::TestStream stream;
    gpu::Event from, to;
    test::must(gpu::event_create(&from, true) && gpu::event_create(&to, true));
    std::vector<float> times;
    for (int i = 0; i < kRuns; ++i) {
        gpu::event_record(from, stream);
        gpu::launch_attend(p, {0, n_pages, 0, n_splits, gpu::Ring{}, false}, workspace.data(), n_splits, stream);
        gpu::launch_attend_merge(p, {0, n_pages, 0, 0, gpu::Ring{}, false}, workspace.data(), n_splits, stream);
        gpu::event_record(to, stream);
        test::must(gpu::event_sync(to));
        times.push_back(gpu::event_ms(from, to));
    }
    gpu::event_destroy(from);
    gpu::event_destroy(to);
    return test::median(times);
}

inline int attention(int n_cells) {
    gpu::Device device;
    if (n_cells < 1 || !test::has_device(device)) {
        return 1;
    }
    const CellType f16 = CellType::f16, q8_0 = CellType::q8_0;
    const Setup setups[] = {
        {"8B, f16, VRAM rows", 128, 8, 4, 1, f16, Where::device_rows, 0},
        {"8B, f16, arena", 128, 8, 4, 1, f16, Where::arena, 0},
        {"8B, q8_0, VRAM rows", 128, 8, 4, 1, q8_0, Where::device_rows, 0},
        {"8B, q8_0, arena", 128, 8, 4, 1, q8_0, Where::arena, 0},
        {"8B, f16, arena, 700 rows", 128, 8, 4, 1, f16, Where::arena, 700},
        {"8B, q8_0, arena, 700 rows", 128, 8, 4, 1, q8_0, Where::arena, 700},
        {"8B, f16, pinned home, 700 rows", 128, 8, 4, 1, f16, Where::pinned, 700},
        {"8B, f16, pinned home", 128, 8, 4, 1, f16, Where::pinned, 0},
        {"70B, f16, arena", 128, 8, 8, 1, f16, Where::arena, 0},
        {"group 16, f16, arena", 128, 4, 16, 1, f16, Where::arena, 0},
        {"one head each, f16, arena", 128, 32, 1, 1, f16, Where::arena, 0},
        {"head_dim 64, group 4, f16, arena", 64, 8, 4, 1, f16, Where::arena, 0},
        {"head_dim 256, group 2, f16, arena", 256, 8, 2, 1, f16, Where::arena, 0},
        {"8B, f16, arena, 4 tokens", 128, 8, 4, 4, f16, Where::arena, 0},
    };
    std::printf("%s, %d cells\n", device.name.c_str(), n_cells);
    for (const Setup & r : setups) {
        const double ms = time_of(r, n_cells, std::max(device.n_sm, 1));
        const double n_read = r.n_selected > 0 ? std::min(r.n_selected, n_cells) : n_cells;
        const double bytes = 2.0 * test::row_bytes(r.type, r.head_dim) * n_read * r.n_head_kv * (r.n_selected > 0 ? r.n_tokens : 1);
        std::printf("%-36s %9.4f ms %9.1f GB/s\n", r.name, ms, bytes/ms*1e-6);
    }
    return 0;
}

}  // namespace bench
