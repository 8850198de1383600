// Times the attention on a GPU: bytes of K and V that a launch and its merge have to read, per second.
// Meaningless on the emulated device.
#pragma once

#include <algorithm>
#include <cstdio>
#include <vector>

#include "cuda/kernels/attend_device.h"
#include "attend_setup.h"

namespace bench {

using namespace edgekv;
using setup::Memory;

enum class Where { arena, device_rows, pinned };

struct Row {
    const char * name;
    int head_dim, n_head_kv, group, n_tokens;
    CellType type;
    Where where;
    int n_selected;  // rows of each list, spread over all; 0: all
};

// Median milliseconds of a part with its merge.
inline double time_of(const Row & r, int n_cells, int n_sm) {
    constexpr int kPage = 16, kRuns = 30;
    const size_t row = cases::row_bytes(r.type, r.head_dim);
    const int n_pages = (n_cells + kPage - 1)/kPage, n_head = r.n_head_kv*r.group;
    const size_t n_bytes = row*r.n_head_kv*n_pages*kPage;

    AttendProblem p{};
    p.head_dim = r.head_dim, p.n_head = n_head, p.n_head_kv = r.n_head_kv, p.n_tokens = r.n_tokens, p.n_cells = n_cells;
    p.page_tokens = kPage, p.k_type = p.v_type = r.type;
    p.scale = 0.1f;
    const Memory k(nullptr, n_bytes, r.where == Where::pinned), v(nullptr, n_bytes, r.where == Where::pinned);  // zeros
    p.k = k.as<char>(), p.v = v.as<char>();
    p.k_stride_head = p.v_stride_head = row;
    p.k_stride_cell = p.v_stride_cell = row*r.n_head_kv;
    const size_t n_values = static_cast<size_t>(r.n_tokens)*n_head*r.head_dim;
    const Memory q(std::vector<float>(n_values, 0.25f)), out(nullptr, n_values*sizeof(float));
    p.q = q.as<char>(), p.out = out.as<char>();
    p.q_stride_head = p.out_stride_head = static_cast<size_t>(r.head_dim)*4;
    p.q_stride_token = p.out_stride_token = p.q_stride_head*n_head;
    const Memory mask(std::vector<uint16_t>(static_cast<size_t>(r.n_tokens)*n_cells, 0));
    p.mask = mask.as<char>(), p.mask_type = MaskType::f16, p.mask_stride_token = static_cast<size_t>(n_cells)*2;
    const Memory mass(std::vector<float>(static_cast<size_t>(r.n_head_kv)*n_pages, 0.0f));
    p.mass_max = mass.as<float>(), p.mass_stride = static_cast<size_t>(n_pages);

    p.arena.slot_bytes = 2*row*kPage, p.arena.v_offset = row*kPage, p.arena.slots_stride = static_cast<size_t>(n_pages);
    std::vector<int32_t> slots(static_cast<size_t>(r.n_head_kv)*n_pages);
    cases::Random rng(5);
    for (size_t i = 0; i < slots.size(); ++i) {
        slots[i] = static_cast<int32_t>(i);
        std::swap(slots[i], slots[rng.next() % (i + 1)]);
    }
    const Memory slot_table(slots), arena(nullptr, r.where == Where::arena ? slots.size()*p.arena.slot_bytes : 1);
    p.arena.slots = slot_table.as<int32_t>();
    p.arena.data = r.where == Where::arena ? arena.as<char>() : nullptr;

    const int n_listed = std::min(r.n_selected, n_cells);
    const size_t n_lists = static_cast<size_t>(r.n_tokens)*r.n_head_kv;
    std::vector<int32_t> listed;
    for (size_t list = 0; list < n_lists; ++list) {
        for (int i = 0; i < n_listed; ++i) {
            listed.push_back(static_cast<int32_t>(static_cast<int64_t>(i)*n_cells/n_listed));
        }
    }
    const Memory cells(listed), weights(std::vector<float>(listed.size(), 2.0f)), counts(std::vector<int32_t>(n_lists, n_listed));
    if (r.n_selected > 0) {
        p.rows = {cells.as<int32_t>(), weights.as<float>(), counts.as<int32_t>(), static_cast<size_t>(n_listed)};
    }

    const int n_splits = gpu::attend_device_splits(p, r.n_selected > 0 ? (n_listed + kPage - 1)/kPage : n_pages, n_sm);
    const Memory workspace(nullptr, gpu::attend_device_workspace_bytes(p, n_splits, true));
    gpu::Stream stream;
    gpu::Event from, to;
    if (!gpu::stream_create(&stream) || !gpu::event_create(&from, true) || !gpu::event_create(&to, true)) {
        return -1.0;
    }
    std::vector<float> times;
    for (int i = 0; i < kRuns; ++i) {
        gpu::event_record(from, stream);
        gpu::launch_attend(p, {0, n_pages, 0, n_splits, gpu::Ring{}, false}, workspace.as<char>(), n_splits, stream);
        gpu::launch_attend_merge(p, 0, n_pages, workspace.as<char>(), n_splits, stream);
        gpu::event_record(to, stream);
        if (!gpu::event_sync(to)) {
            return -1.0;
        }
        times.push_back(gpu::event_ms(from, to));
    }
    gpu::event_destroy(from);
    gpu::event_destroy(to);
    gpu::stream_destroy(stream);
    std::sort(times.begin(), times.end());
    return times[times.size()/2];
}

inline int attention(int n_cells) {
    gpu::Device device;
    if (n_cells < 1 || !gpu::use_device(0) || !gpu::device(0, device)) {
        std::printf("no device, or no depth: %s\n", gpu::last_error());
        return 1;
    }
    const CellType f16 = CellType::f16, q8_0 = CellType::q8_0;
    const Row rows[] = {
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
    for (const Row & r : rows) {
        const double ms = time_of(r, n_cells, std::max(device.n_sm, 1));
        const double n_read = r.n_selected > 0 ? std::min(r.n_selected, n_cells) : n_cells;
        const double bytes = 2.0*cases::row_bytes(r.type, r.head_dim)*n_read*r.n_head_kv*(r.n_selected > 0 ? r.n_tokens : 1);
        std::printf("%-36s %9.4f ms %9.1f GB/s\n", r.name, ms, bytes/ms*1e-6);
    }
    return 0;
}

}  // namespace bench
