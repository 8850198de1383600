// Kernels on the host's arrays, three times each. Every buffer lies between two bands of poison, and what a launch must write is poison before it.
#include "cuda/engine/trial.h"

#include <cstring>

#include "cuda/engine/gpu_engine.h"

namespace edgekv::gpu {
namespace {

constexpr size_t kBand   = 4096;
constexpr char   kPoison = '\xff';  // NaN, whatever the type
constexpr int    kRuns   = 3;

struct Trial {
    bool ok = true;  // false: last_error()
    TrialRuns seen;
};

// A copy of an array of the host in device memory or in pinned memory; nothing where the host has none.
class Banded {
public:
    Banded(Trial & trial, const void * host, size_t n_bytes, bool pinned = false) : trial(trial), n(n_bytes), pinned(pinned) {
        void * p = nullptr;
        trial.ok = trial.ok && (pinned ? alloc_pinned(&p, n + 2*kBand) : alloc(&p, n + 2*kBand));
        at = static_cast<char *>(p);
        const char * from = static_cast<const char *>(host);
        const std::vector<char> inside = from != nullptr ? std::vector<char>(from, from + n) : std::vector<char>(n, kPoison);
        std::vector<char> bytes(2*kBand, kPoison);
        bytes.insert(bytes.begin() + kBand, inside.begin(), inside.end());
        trial.ok = trial.ok && copy(at, bytes.data(), bytes.size());
    }
    Banded(const Banded &) = delete;
    ~Banded() {
        if (at != nullptr) {
            pinned ? free_pinned(at) : free_device(at);
        }
    }

    template <class T>
    T * as() const { return reinterpret_cast<T *>(at + kBand); }
    char * data() const { return at + kBand; }

    void set(const void * host) { trial.ok = trial.ok && copy(data(), host, n); }

    // `host` gets the bytes; where it holds those of the run before, they must be the same
    void get(void * host, bool again) {
        std::vector<char> bytes(n + 2*kBand);
        trial.ok = trial.ok && copy(bytes.data(), at, bytes.size());
        for (size_t i = 0; trial.ok && i < kBand; ++i) {
            trial.seen.inside = trial.seen.inside && bytes[i] == kPoison && bytes[kBand + n + i] == kPoison;
        }
        trial.seen.same = trial.seen.same && (!again || std::memcmp(host, bytes.data() + kBand, n) == 0);
        std::memcpy(host, bytes.data() + kBand, n);
    }

private:
    Trial & trial;
    char * at = nullptr;
    const size_t n;
    const bool pinned;
};

template <class T>
size_t bytes_of(const std::vector<T> & of) { return of.size()*sizeof(T); }

bool synced() { return stream_sync(nullptr) && check(); }

}  // namespace

bool try_attend(int index, const AttendTrial & given, TrialRuns & seen) {
    Device device_;
    if (!use_device(index) || !device(index, device_)) {
        return false;
    }
    const AttendProblem & host = given.problem;
    const size_t n_lists = static_cast<size_t>(host.n_tokens)*host.n_head_kv, listed = n_lists*host.rows.stride;
    const size_t n_pages = view_pages(host), n_slots = static_cast<size_t>(host.n_head_kv)*host.arena.slots_stride;
    const size_t out_bytes = static_cast<size_t>(host.n_tokens)*host.out_stride_token, mass_bytes = host.n_head_kv*host.mass_stride*sizeof(float);
    Trial trial;
    const Banded q(trial, host.q, host.n_tokens*host.q_stride_token), mask(trial, host.mask, given.mask_bytes);
    const Banded k(trial, given.home_k, host.n_cells*host.k_stride_cell, true), v(trial, given.home_v, host.n_cells*host.v_stride_cell, true);
    const Banded arena(trial, host.arena.data, given.n_slots*host.arena.slot_bytes), slots(trial, host.arena.slots, n_slots*sizeof(int32_t));
    const Banded cells(trial, host.rows.cells, listed*sizeof(int32_t)), weights(trial, host.rows.weights, listed*sizeof(float));
    const Banded n_rows(trial, host.rows.n_rows, n_lists*sizeof(int32_t)), sinks(trial, host.sinks, host.n_head*sizeof(float));
    const std::vector<char> zeros(n_lists*sizeof(uint32_t)), poison(out_bytes, kPoison), no_mass(mass_bytes);
    const Banded tickets(trial, zeros.data(), zeros.size());
    Banded out(trial, nullptr, out_bytes), mass_max(trial, nullptr, mass_bytes), mass_sum(trial, nullptr, mass_bytes);

    AttendProblem p = host;
    p.q = q.data(), p.k = k.data(), p.v = v.data(), p.mask = mask.data();
    p.sinks = host.sinks != nullptr ? sinks.as<float>() : nullptr;
    p.out = out.data(), p.mass_max = mass_max.as<float>(), p.mass_sum = mass_sum.as<float>();
    p.arena.data = arena.data(), p.arena.slots = slots.as<int32_t>();
    if (has_lists(p)) {
        p.rows = { cells.as<int32_t>(), weights.as<float>(), n_rows.as<int32_t>(), host.rows.stride };
    }
    if (!attend_device_supports(p)) {
        return fail_with("the kernels do not serve these heads");
    }
    const int n_splits = attend_device_splits(p, static_cast<int>(n_pages), device_.n_sm);
    Banded workspace(trial, nullptr, attend_device_workspace_bytes(p, n_splits, true));
    for (int run = 0; trial.ok && run < kRuns; ++run) {
        out.set(poison.data());
        mass_max.set(no_mass.data());
        mass_sum.set(no_mass.data());
        const AttendPart part = { 0, static_cast<int>(n_pages), 0, n_splits, {}, false, tickets.as<uint32_t>(), nullptr };
        launch_attend(p, part, workspace.data(), n_splits, nullptr);
        launch_attend_merge(p, part, workspace.data(), n_splits, nullptr);
        trial.ok = trial.ok && synced();
        out.get(host.out, run > 0);
        mass_max.get(host.mass_max, run > 0);
        mass_sum.get(host.mass_sum, run > 0);
    }
    seen = trial.seen;
    return trial.ok;
}

bool try_store(int index, StoreTrial & t, TrialRuns & seen) {
    if (!use_device(index)) {
        return false;
    }
    const int n_groups = t.n_cells/kGroupCells;
    const size_t row = static_cast<size_t>(t.head_dim)*sizeof(float), token = row*t.n_head_kv;
    const size_t k_row = bytes_of_row(t.k_type, t.head_dim), v_row = bytes_of_row(t.v_type, t.head_dim);
    std::vector<StaleGroup> all;
    for (int g = 0; g < n_groups; ++g) {
        all.push_back({ 0, g, ~uint64_t{0} });
    }
    const std::vector<int32_t> none_open(all.size());
    Trial trial;
    const Banded k(trial, t.k, token*t.n_cells), v(trial, t.v, token*t.n_cells), cells(trial, t.cells, t.n_cells*sizeof(int64_t));
    const Banded stale(trial, all.data(), bytes_of(all)), count(trial, &n_groups, sizeof(int)), q(trial, t.q, row*t.n_head);
    const Banded sight(trial, t.sight, all.size()*sizeof(Sight)), open(trial, none_open.data(), bytes_of(none_open));
    Banded home_k(trial, nullptr, t.home_k.size(), true), home_v(trial, nullptr, t.home_v.size(), true), sketches(trial, nullptr, t.sketches.size());
    Banded shares(trial, nullptr, bytes_of(t.shares)), tops(trial, nullptr, bytes_of(t.tops)), sums(trial, nullptr, bytes_of(t.sums));

    const CellRows k_rows = { home_k.data(), k_row*t.n_head_kv, k_row }, v_rows = { home_v.data(), v_row*t.n_head_kv, v_row };
    StoreArgs store{};
    store.head_dim = t.head_dim, store.n_head_kv = t.n_head_kv, store.n_tokens = t.n_cells, store.cells_per_stream = t.n_cells;
    store.k = { { k.data(), token, row }, cells.as<int64_t>(), t.k_type, k_rows, {} };
    store.v = { { v.data(), token, row }, cells.as<int64_t>(), t.v_type, v_rows, {} };
    StoreArgs build{};
    build.head_dim = t.head_dim, build.n_head_kv = t.n_head_kv, build.cells_per_stream = t.n_cells;
    const SketchArray array = { t.head_dim, t.n_head_kv, n_groups, sketches.data(), t.sketches.size() };
    const SketchHome home = { t.k_type, k_rows, k_rows.stride_cell*t.n_cells, false, {} };
    build.build = { array, home, stale.as<StaleGroup>(), count.as<int>(), n_groups, {} };
    SketchScanArgs scan{};
    scan.sketches = array, scan.home = home, scan.open = open.as<int32_t>();
    scan.n_streams = scan.n_tokens = 1, scan.group = t.n_head/t.n_head_kv, scan.n_groups = n_groups;
    scan.q = { q.data(), row*t.n_head, row }, scan.scale = t.scale, scan.sight = sight.as<Sight>(), scan.sight_stride = n_groups;
    scan.out = { shares.as<uint16_t>(), tops.as<float>(), sums.as<float>(), static_cast<size_t>(t.n_cells), static_cast<size_t>(n_groups) };

    const std::vector<char> before_k = t.home_k, before_v = t.home_v, before = t.sketches;
    const std::vector<uint16_t> before_shares = t.shares;
    for (int run = 0; trial.ok && run < kRuns; ++run) {
        home_k.set(before_k.data());
        home_v.set(before_v.data());
        sketches.set(before.data());
        shares.set(before_shares.data());
        launch_store(store, nullptr);
        launch_store(build, nullptr);
        launch_sketch_scan(scan, nullptr);
        trial.ok = trial.ok && synced();
        home_k.get(t.home_k.data(), run > 0);
        home_v.get(t.home_v.data(), run > 0);
        sketches.get(t.sketches.data(), run > 0);
        shares.get(t.shares.data(), run > 0);
        tops.get(t.tops.data(), run > 0);
        sums.get(t.sums.data(), run > 0);
    }
    seen = trial.seen;
    return trial.ok;
}

}  // namespace edgekv::gpu
