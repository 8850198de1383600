// An engine without llama.cpp: two of them decode the same tokens, one told every step what to do, the other by a recorded graph that
// is only replayed. What they leave - outputs, home, sketches, mass, counters - must be the same bytes: nothing that a node enqueues
// may depend on what changes from step to step, nor on the order in which blocks, threads and streams run: the two never have the same one. Outputs of mode exact are compared with attend_reference() too.
#include <climits>

#include "engine_decoder.h"

using namespace edgekv;
using test::same;

namespace {

void check(const Options & options, int n_tokens, Card card) {
    draw_order(card, 0);
    Decoder told(options), replayed(options);
    for (int token = 0; token < n_tokens; ++token) {
        draw_order(card, 2 * token);
        const std::vector<float> a = told.step(token, false);
        draw_order(card, 2 * token + 1);
        const std::vector<float> b = replayed.step(token, true);
        CHECK(same(a, b), "%s: token %d differs when it is replayed", options.name, token);
        for (int layer = options.sparse ? kLayers - 1 : 0; token % 7 == 0 && layer < kLayers; ++layer) {
            const auto weights = told.last_weights(layer);
            const std::vector<float> expected = told.reference(token, layer, options.sparse ? &weights : nullptr);
            float worst = 0.0f;
            for (size_t i = 0; i < kQuery; ++i) {
                worst = std::fmax(worst, std::fabs(expected[i] - a[layer * kQuery + i]));
            }
            CHECK(worst < 1e-3f, "%s: token %d layer %d is off by %g", options.name, token, layer, worst);
            for (int head = 0; options.sparse && head < kHeads; ++head) {
                for (int c = 0; c <= token; ++c) {
                    // sinks, recent pages, and the group that is being filled
                    const bool open = c / kGroupCells == token / kGroupCells;
                    const bool certain = c < 16 || c / kPage * kPage + kPage > token - 31 || open;
                    CHECK(!certain || weights[head][c] == 1.0f, "%s: token %d layer %d head %d does not read cell %d", options.name, token, layer, head, c);
                }
            }
        }
    }
    CHECK(same(told.mass(), replayed.mass()), "%s: attention mass", options.name);
    CHECK(same(told.selected(), replayed.selected()), "%s: counters", options.name);
    CHECK(std::memcmp(told.k(0), replayed.k(0), 2 * kLayers * kCells * kCellBytes) == 0, "%s: home", options.name);
    for (int layer = 0; options.sparse && layer < kLayers; ++layer) {
        CHECK(same(told.sketches(layer), replayed.sketches(layer)), "%s: sketches of layer %d", options.name, layer);
    }
    if (options.sparse) {
        double n_tokens_all = 0.0, n_hits = 0.0, n_read = 0.0, n_visible = 0.0, n_certain = 0.0, n_errors = 0.0, mass = 0.0;
        for (const auto & s : replayed.selected()) {
            n_tokens_all += s.n_tokens;
            n_hits       += s.n_hits;
            n_read       += s.n_read;
            n_visible    += s.n_visible;
            n_certain    += s.n_certain;
            n_errors     += s.n_errors;
            mass         += s.mass;
        }
        const double n_all = 1.0 * n_tokens * kLayers * kHeads, n_seen = 0.5 * n_tokens * (n_tokens + 1) * kLayers * kHeads;
        CHECK(n_tokens_all == n_all && n_visible == n_seen, "%s: %g tokens and %g visible ones were counted", options.name, n_tokens_all, n_visible);
        CHECK(n_certain <= n_read && n_read <= n_seen && (n_tokens < 200 || n_read < 0.8 * n_seen), "%s: %g rows, %g for certain, of %g", options.name,
              n_read, n_certain, n_seen);
        CHECK((n_hits > 0.0) == (options.migrates || options.n_row_slots > 0), "%s: %g hits", options.name, n_hits);
        const double n_estimates = n_all * kGroup / 2;
        CHECK(std::fabs(n_errors - n_estimates) <= kLayers * kHeads * kGroup, "%s: %g errors were estimated, not %g", options.name, n_errors, n_estimates);
        CHECK(std::fabs(mass - n_all * kGroup) < 1e-3 * n_all * kGroup, "%s: mass %g of %g", options.name, mass, n_all * kGroup);
    }
}

// Copies of rows change no bit of what a step leaves, in however few places. With enough of them, little of what was read over the link is left.
void check_hot_rows() {
    draw_order(Card::middling, 0);
    Decoder without({ true, 0, true, "no copies of rows" });
    std::vector<std::vector<float>> outs;
    constexpr int kTokens = 160;
    const auto decode = [&](Decoder & decoder) {
        const size_t before = test::crossed_bytes();
        for (int token = 0; token < kTokens; ++token) {
            draw_order(Card::middling, token * 8 + decoder.options.n_row_slots % 8);
            const std::vector<float> out = decoder.step(token, false);
            if (&decoder == &without) {
                outs.push_back(out);
            }
            CHECK(same(out, outs[token]), "%s: token %d differs", decoder.options.name, token);
        }
        return static_cast<double>(test::crossed_bytes() - before);
    };
    const double all = decode(without);
    for (const int n_slots : { 100, 2 }) {
        Decoder with({ true, 0, true, "copies of rows", 1, n_slots });
        const double left = decode(with);
        CHECK(same(with.mass(), without.mass()), "%d slots: attention mass", n_slots);
        double hits = 0.0, others = 0.0;
        for (size_t i = 0; i < with.selected().size(); ++i) {
            const edgekv_selected a = with.selected()[i], b = without.selected()[i];
            CHECK(a.n_read == b.n_read && a.mass == b.mass && a.error == b.error, "%d slots: %g rows were read, not %g", n_slots, a.n_read, b.n_read);
            CHECK(a.n_hits >= b.n_hits && a.mass_hits >= b.mass_hits, "%d slots: %g hits, %g without copies", n_slots, a.n_hits, b.n_hits);
            hits += a.n_hits;
            others += b.n_hits;
        }
        CHECK(n_slots == 2 || hits > others, "%d slots: no row was hit", n_slots);  // in two slots, the other layers' rows take each place
        std::printf("%d slots of copies: %.0f hits (%.0f without), %.0f bytes over the link (%.0f without)\n", n_slots, hits, others, left, all);
        CHECK(!test::kTellsCrossed || (left <= all && (n_slots < 100 || left < 0.5 * all)), "%d slots: %g bytes over the link, %g without copies", n_slots, left, all);
    }
}

// Tokens of a step are served together, or in a long context fewer at a time: the same outputs, mass and counts.
void check_parts(Card card) {
    draw_order(card, 0);
    Decoder decoder({ true, 0, false, "parts" });
    constexpr int kTokens = 140, kNewest = 11;
    for (int token = 0; token < kTokens; ++token) {
        decoder.step(token, false);
    }
    std::vector<std::vector<float>> outs, masses;
    std::vector<edgekv_selected> counts;
    std::vector<float> before = decoder.mass();
    for (const size_t together : { size_t{64} << 20, size_t{3} * 40 * kCells, size_t{1} }) {
        const edgekv_selected first = decoder.selected()[0];
        outs.push_back(decoder.several(kTokens - 1, kNewest, together));
        const edgekv_selected last = decoder.selected()[0];
        counts.push_back({ last.n_tokens - first.n_tokens, last.n_visible - first.n_visible, last.n_read - first.n_read, last.n_certain - first.n_certain,
                           last.n_hits - first.n_hits, last.mass - first.mass, 0.0, last.error - first.error, last.n_errors - first.n_errors,
                           last.covered - first.covered, last.n_covered - first.n_covered });
        const std::vector<float> now = decoder.mass();
        masses.emplace_back();
        for (size_t i = 0; i < now.size(); ++i) {
            masses.back().push_back(now[i] - before[i]);
        }
        before = now;
    }
    for (size_t part = 1; part < outs.size(); ++part) {
        for (size_t i = 0; i < outs[0].size(); ++i) {
            CHECK(std::fabs(outs[part][i] - outs[0][i]) < 1e-5f, "parts: output %zu is %g, not %g", i, outs[part][i], outs[0][i]);
        }
        for (size_t i = 0; i < masses[0].size(); ++i) {
            CHECK(std::fabs(masses[part][i] - masses[0][i]) < 1e-4f, "parts: mass %zu is %g, not %g", i, masses[part][i], masses[0][i]);
        }
        const edgekv_selected & a = counts[part], & b = counts[0];
        CHECK(a.n_tokens == kNewest && a.n_tokens == b.n_tokens && a.n_visible == b.n_visible && a.n_read == b.n_read && a.n_certain == b.n_certain &&
              a.n_errors == b.n_errors && std::fabs(a.error - b.error) < 1e-4, "parts: %g rows of %g tokens, not %g", a.n_read, a.n_tokens, b.n_read);
        CHECK(b.n_read < b.n_visible, "parts: all %g rows are read", b.n_read);
    }
}

// A prompt whose layers lie in several graphs, each recorded for itself: K and V of a graph's last layer are in the staging buffers at its
// end, the new tokens among them, all heads or in pieces.
void check_staging(int n_splits, int n_pieces) {
    constexpr int kTokens = 32, kView = 256;
    constexpr size_t kBuffer = kCells * kCellBytes;
    const Card card = n_pieces == 1 ? Card::middling : Card::largest;
    draw_order(card, n_splits);
    Decoder decoder({ false, 0, false, "prompt", n_splits });
    gpu::GpuEngine & plane = *decoder.plane;
    DeviceArray<char> staging(4 * kBuffer);
    DeviceArray<float> inputs(kTokens * kHeads * kDim);
    DeviceArray<int64_t> cells(kTokens);
    const int n_heads = kHeads / n_pieces;
    const auto piece_of = [&](int layer, int piece) -> EnginePiece {
        char * const at = staging.data() + (layer * n_pieces + piece) % 2 * 2 * kBuffer;
        return layer < 0 ? kNoPiece : EnginePiece{ layer, piece * n_heads, n_heads, at, at + kBuffer };
    };
    for (int turn = 0; turn < 4; ++turn) {
        draw_order(card, 4 * n_splits + turn);
        std::mt19937 rng(turn);
        std::vector<float> values(kTokens * kHeads * kDim);
        std::generate(values.begin(), values.end(), [&] { return static_cast<float>(rng() % 1000); });
        inputs.set(values);
        std::vector<int64_t> where(kTokens);
        std::iota(where.begin(), where.end(), turn * kTokens);
        cells.set(where);
        test::must(plane.begin({}));
        for (int split = 0; split < n_splits; ++split) {
            const auto [first, end] = decoder.begin_split(split);
            Recording recording(plane.stream());
            for (int layer = first; layer < end; ++layer) {
                const EngineView view = { kView, 1, 0, kTokens, 0, plane.generation() };
                const int  next   = layer + 1 < kLayers ? layer + 1 : -1;
                const auto behind = [&](int piece) { return piece + 1 < n_pieces ? piece_of(layer, piece + 1) : piece_of(next, 0); };
                EngineStore store = {};
                store.k = store.v = reinterpret_cast<const char *>(inputs.data());
                store.k_stride_token = store.v_stride_token = kHeads * kDim * sizeof(float);
                store.k_stride_head = store.v_stride_head = kDim * sizeof(float);
                store.k_idxs = store.v_idxs = cells.data();
                store.piece = piece_of(layer, 0);
                store.next = behind(0);
                plane.store(layer, view, store, plane.stream());
                for (int piece = 1; piece < n_pieces; ++piece) {
                    plane.stage(piece_of(layer, piece), behind(piece), view, plane.stream());
                }
            }
            CHECK(recording.end() && recording.launch(), "split %d of %d: %s", split, n_splits, gpu::last_error());
            test::must(plane.wait_for_step());
            const std::vector<char> all = staging.get();
            for (int piece = 0; piece < n_pieces; ++piece) {
                const EnginePiece of = piece_of(end - 1, piece);
                for (int cell = 0; cell < kView; ++cell) {
                    const size_t row = cell * kCellBytes + of.first_head * kRowBytes, there = cell * n_heads * kRowBytes;
                    CHECK(std::memcmp(all.data() + (of.k - staging.data()) + there, decoder.k(end - 1) + row, n_heads * kRowBytes) == 0 &&
                          std::memcmp(all.data() + (of.v - staging.data()) + there, decoder.v(end - 1) + row, n_heads * kRowBytes) == 0,
                          "turn %d split %d of %d piece %d of %d cell %d", turn, split, n_splits, piece, n_pieces, cell);
                }
            }
        }
    }
}

// ggml keeps what it recorded for a graph whose nodes are still the same, also when a context's plane is gone and another stands in its
// place with other memory: so no two planes of a process may share a generation.
void check_generations() {
    const auto generations = [] {
        Decoder decoder({ true, 0, false, "generations" });
        std::vector<int> seen = { decoder.plane->generation() };
        decoder.plane->renew();
        seen.push_back(decoder.plane->generation());
        return seen;
    };
    std::vector<int> all = generations();
    const std::vector<int> later = generations();
    all.insert(all.end(), later.begin(), later.end());
    std::sort(all.begin(), all.end());
    CHECK(std::adjacent_find(all.begin(), all.end()) == all.end(), "%d %d %d %d", all[0], all[1], all[2], all[3]);
}

#if !defined(__CUDACC__)
// A device that refuses the n-th allocation, copy or pin, for every n until a plane comes to be: each time a sentence, and nothing kept.
void check_refusals() {
    std::vector<char> home(2 * kLayers * kCells * kCellBytes);
    const auto make = [&]() -> std::string {
        gpu::GpuEngine plane(0, Decoder::shape_over(home.data(), 0), nullptr);
        const EngineView view = { 256, 1, 0, 1, 0, 0 };
        const bool all = plane.init() && plane.reserve_sketches() && plane.reserve_ring() &&
                          plane.reserve_workspace(0, view, true) && plane.reserve_arena(INT_MAX, 4);
        return all ? "" : edgekv_device_library()->last_error();
    };
    for (int what = 0; what < 3; ++what) {
        int n = 0;
        for (std::string sentence = "none"; !sentence.empty() && n < 200; ++n) {
            gpu::emulator::Limits limits;
            (what == 0 ? limits.allocs_left : limits.copies_left) = what == 2 ? gpu::emulator::Limits().copies_left : n;
            limits.pinned_bytes = what != 2 || n > 0 ? SIZE_MAX : 0;
            gpu::emulator::set_limits(limits);
            sentence = make();
            CHECK(!sentence.empty() || n > 0, "what %d: nothing was refused", what);
        }
        CHECK(n > (what == 2 ? 1 : 2) && n < 200, "what %d: %d refusals", what, n);
    }
    gpu::emulator::set_limits({});
    CHECK(make().empty(), "it comes to be afterwards");
}

// The engine keeps the first failure of a node, with the name where that can be known, and refuses every later step.
void check_failures() {
    const auto failed = [](const char * how, const gpu::emulator::Limits & limits) -> std::string {
        Decoder decoder({ false, 0, false, how });
        const auto step = [&](int token) {
            decoder.set_inputs(token);
            const bool begun = decoder.begin(token);
            decoder.nodes(0, kLayers);
            decoder.plane->end();
            return begun;
        };
        CHECK(step(0) && decoder.plane->wait() && !decoder.plane->failure(), "%s: it begins well", how);
        gpu::emulator::set_limits(limits);
        CHECK(step(1), "%s: nobody knows yet", how);
        decoder.plane->wait_for_step();
        gpu::emulator::set_limits({});
        CHECK(!step(2) && !step(3), "%s: the next steps", how);
        const std::string sentence = edgekv_device_library()->last_error();
        CHECK(decoder.plane->failure() && sentence == decoder.plane->failure(), "%s: %s", how, sentence.c_str());
        return sentence;
    };
    const auto expect = [](const std::string & said, const char * part) {
        CHECK(said.find(part) != std::string::npos, "%s is not in: %s", part, said.c_str());
    };
    gpu::emulator::Limits narrow, lost;
    narrow.shared_bytes = 0;  // no kernel that asks for shared memory can be started
    lost.operations_left = 9;  // of three layers' kernels and copies
    const std::string refused = failed("a launch is refused", narrow);
    expect(refused, "the GPU failed in the node store-0: a block cannot have");
    expect(failed("an operation is lost", lost), "the GPU failed in a step (EDGEKV_DEVICE_SYNC=1 finds the node): an operation on the device failed");
    setenv("EDGEKV_DEVICE_SYNC", "1", 1);
    expect(failed("an operation is lost", lost), "the GPU failed in the node ");
    expect(failed("a launch is refused", narrow), refused.c_str());
    unsetenv("EDGEKV_DEVICE_SYNC");

    // the layer before it has begun to fill the ring: a recording ends only if that is joined, and ggml ends the process otherwise
    {
        Decoder decoder({ false, 0, false, "a node fails while a graph is recorded" });
        decoder.set_inputs(0);
        test::must(decoder.begin(0));
        decoder.begin_split(0);
        Recording recording(decoder.plane->stream());
        decoder.nodes(0, 1);
        gpu::emulator::set_limits(narrow);
        decoder.nodes(1, kLayers);
        gpu::emulator::set_limits({});
        CHECK(decoder.plane->failure() && recording.end(), "a node fails while a graph is recorded: %s", gpu::last_error());
    }

    // ggml asks for the last error behind each of its nodes: what one of its own left is neither taken nor made ours
    Decoder decoder({ false, 0, false, "ggml's error" });
    decoder.set_inputs(0);
    test::must(decoder.begin(0));
    test::must(decoder.plane->wait());
    gpu::emulator::leave_error(gpu::emulator::Foreign::error);
    decoder.nodes(0, kLayers);
    CHECK(gpu::error_stands() && gpu::emulator::n_queued() == 0 && !decoder.plane->failure(), "a node ran behind an error of ggml's");
    test::must(decoder.begin(1));
    CHECK(gpu::error_stands(), "an error of ggml's was taken");
    gpu::emulator::leave_error(gpu::emulator::Foreign::not_ready);
    test::must(decoder.begin(1));
    decoder.nodes(1, kLayers);
    CHECK(!gpu::error_stands() && gpu::emulator::n_queued() > 0 && !decoder.plane->failure(), "a query's answer keeps a step's nodes from running");
    test::must(decoder.plane->wait());
}
#endif

}  // namespace

int main(int argc, char **) {
    gpu::Device card;
    if (!test::has_device(card)) {
        return 77;
    }
    const bool all = argc > 1;
    const auto tokens = [all](int n) { return all ? kCells : n; };
    check({ false, 0, true, "exact" }, tokens(140), Card::middling);  // over one change of the view
    check({ false, 0, false, "exact, nothing in the arena" }, tokens(40), Card::largest);
    // of two splits one has a layer, whose next one is another graph's, and one has two
    check({ false, 600u << 10, true, "exact, a ring of few pages, two splits", 2 }, tokens(120), Card::largest);
    check({ true, 0, true, "sparse, three splits", 3 }, tokens(60), Card::middling);
    for (int n_splits = 1; n_splits <= 3; ++n_splits) {
        check_staging(n_splits, 1);
        check_staging(n_splits, kHeads);
    }
    check({ true, 0, true, "sparse" }, tokens(210), Card::largest);
    check({ true, 0, false, "sparse, nothing in the arena" }, tokens(60), Card::largest);
    check({ true, 0, true, "sparse, copies of rows", 1, 100 }, tokens(80), Card::middling);
    check({ true, 0, false, "sparse, copies of rows alone", 3, 100 }, tokens(70), Card::largest);
    check_hot_rows();
    check_parts(Card::middling);
    check_parts(Card::largest);
    check_generations();
#if !defined(__CUDACC__)
    check_refusals();
    check_failures();
#endif
    return test::finish();
}
