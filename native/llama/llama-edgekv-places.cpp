// Where the tokens of several sequences in one cache go: each sequence gets whole groups of cells.
//
// Sketches are made of 64 cells, and attention scans, reads and skips 64 cells at a time. Where a group has tokens of several sequences, each
// of them pays for all of it, and by the keys, since the sketch tells of others' tokens too. So:
//
//   1. A token goes behind the newest token of its sequence, if their group has cells left and no token of others.
//   2. Otherwise it begins an empty group, the next one behind that token: rows are summed in the order of cells, which stays that of tokens.
//   3. Where no group is empty, it goes to free cells of groups, then of pages, that have no token of others.
//   4. Where there are none, it goes to any free cell: a cache is full when its cells are.
//
// "Others" are tokens that do not belong to exactly the same sequences. So where a sequence was copied, both go on in groups of their own.
#include "llama-edgekv-access.h"
#include "llama-edgekv-home.h"
#include "llama-edgekv-parked.h"
#include "llama-edgekv-places.h"

#include "llama-impl.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace {

constexpr uint32_t kGroup = llama_edgekv_group;
constexpr uint32_t kPage  = 16;  // the least page

class placing {
public:
    explicit placing(const llama_kv_cache & kv) :
        kv(kv), cells(llama_edgekv_access::cells(kv, 0)), guesses(llama_edgekv_access::clock(llama_edgekv_access::cells(kv, 0)).newest_cells) {
        taken.assign(cells.size(), 0);
        guesses.resize(LLAMA_MAX_SEQ, 0);
    }

    // `n` cells for the next tokens of these sequences, in order; false: there are not so many
    bool place(const llama_edgekv_sequences & of, size_t n, std::vector<uint32_t> & out) {
        mine = of;
        turn += 1;
        got.clear();
        want = n;
        const int64_t at = newest();
        const uint32_t behind = at < 0 ? 0 : (static_cast<uint32_t>(at)/kGroup + 1)*kGroup;
        if (at >= 0 && has_no_others(behind - kGroup, kGroup)) {
            take(static_cast<uint32_t>(at) + 1, behind);
        }
        const auto is_empty = [&](uint32_t first, uint32_t end) { return is_free(first, end); };
        take_units(kGroup, is_empty, behind);
        take_units(kGroup, is_empty);
        for (const uint32_t unit : { kGroup, kPage }) {
            take_units(unit, [&](uint32_t first, uint32_t end) { return has_no_others(first, end - first); });
        }
        take(0, cells.size());
        if (got.size() < want) {
            return false;
        }
        for (uint32_t s = 0; s < LLAMA_MAX_SEQ; ++s) {
            if (mine.test(s)) {
                guesses[s] = got.back();
            }
        }
        out = got;
        return true;
    }

private:
    // upstream's rule: empty, or no token of its sequence will see it again
    bool can_use(uint32_t i) const {
        return cells.is_empty(i) || (cells.seq_count(i) == 1 && llama_edgekv_access::is_masked(kv, cells.pos_get(i), cells.seq_pos_max(cells.seq_get(i)) + 1));
    }

    bool is_free(uint32_t first, uint32_t end) const {
        for (uint32_t i = first; i < end; ++i) {
            if (taken[i] || !can_use(i)) {
                return false;
            }
        }
        return true;
    }

    bool has_no_others(uint32_t first, uint32_t n) const {
        for (uint32_t i = first; i < std::min(first + n, cells.size()); ++i) {
            if (taken[i] ? taken[i] != turn : !can_use(i) && llama_edgekv_access::sequences(cells, i) != mine) {
                return false;
            }
        }
        return true;
    }

    void take(uint32_t first, uint32_t end) {
        for (uint32_t i = first; i < std::min(end, cells.size()) && got.size() < want; ++i) {
            if (!taken[i] && can_use(i)) {
                taken[i] = turn;
                got.push_back(i);
            }
        }
    }

    template <class Serves>
    void take_units(uint32_t unit, Serves && serves, uint32_t from = 0) {
        for (uint32_t first = from; first < cells.size() && got.size() < want; first += unit) {
            if (serves(first, std::min(first + unit, cells.size()))) {
                take(first, first + unit);
            }
        }
    }

    // the cell of the newest token that belongs to these sequences and no other; -1: the newest token of the first has others, or there is none
    int64_t newest() const {
        uint32_t s = 0;
        while (s < LLAMA_MAX_SEQ && !mine.test(s)) {
            ++s;
        }
        const llama_pos last = s < LLAMA_MAX_SEQ ? cells.seq_pos_max(s) : -1;
        if (last < 0) {
            return -1;
        }
        const auto is = [&](uint32_t i) { return !cells.is_empty(i) && cells.pos_get(i) == last && cells.seq_has(i, s); };
        if (guesses[s] < cells.size() && is(guesses[s])) {
            return llama_edgekv_access::sequences(cells, guesses[s]) == mine ? int64_t{guesses[s]} : -1;
        }
        for (uint32_t i = cells.used_max_p1(); i > 0; --i) {
            if (is(i - 1)) {
                return llama_edgekv_access::sequences(cells, i - 1) == mine ? i - 1 : int64_t{-1};
            }
        }
        return -1;
    }

    const llama_kv_cache & kv;
    const llama_kv_cells & cells;
    std::vector<uint32_t> & guesses;
    llama_edgekv_sequences mine;
    uint16_t turn = 0;
    size_t want = 0;
    std::vector<uint32_t> got;
    static thread_local std::vector<uint16_t> taken;  // [cell] the turn that took it, 0: none
};

thread_local std::vector<uint16_t> placing::taken;

llama_edgekv_sequences sequences_of(const llama_ubatch & ubatch, uint32_t token) {
    llama_edgekv_sequences found;
    for (int32_t k = 0; k < ubatch.n_seq_id[token]; ++k) {
        found.set(ubatch.seq_id[token][k]);
    }
    return found;
}

bool serves(const llama_kv_cache & kv) {
    const auto * hooks = llama_edgekv_get_hooks();
    return hooks && hooks->enabled() && llama_edgekv_access::mixes_sequences(kv);
}

// K, or V, of the cells `from` goes to the cells `to`. V is not transposed: attention is flash attention where hooks serve.
void copy_rows(ggml_tensor * rows, const std::vector<uint32_t> & from, const std::vector<uint32_t> & to) {
    std::vector<char> row(rows ? ggml_row_size(rows->type, rows->ne[0]) : 0);
    for (size_t i = 0; rows && i < from.size(); ++i) {
        ggml_backend_tensor_get(rows, row.data(), from[i]*rows->nb[1], row.size());
        ggml_backend_tensor_set(rows, row.data(), to[i]*rows->nb[1], row.size());
    }
}

}  // namespace

bool llama_edgekv_place(const llama_kv_cache & kv, const llama_ubatch & ubatch, std::vector<uint32_t> & cells) {
    if (!serves(kv)) {
        return false;
    }

    std::vector<llama_edgekv_sequences> kinds;
    std::vector<std::vector<uint32_t>> tokens;  // [kind]
    for (uint32_t i = 0; i < ubatch.n_tokens; ++i) {
        const auto of = sequences_of(ubatch, i);
        const size_t kind = std::find(kinds.begin(), kinds.end(), of) - kinds.begin();
        if (kind == kinds.size()) {
            kinds.push_back(of);
            tokens.emplace_back();
        }
        tokens[kind].push_back(i);
    }

    placing places(kv);
    std::vector<uint32_t> found(ubatch.n_tokens), of_kind;
    for (size_t kind = 0; kind < kinds.size(); ++kind) {
        if (!places.place(kinds[kind], tokens[kind].size(), of_kind)) {
            return false;
        }
        for (size_t i = 0; i < of_kind.size(); ++i) {
            found[tokens[kind][i]] = of_kind[i];
        }
    }
    cells = std::move(found);
    return true;
}

std::vector<uint32_t> llama_edgekv_cells_for(
        const llama_kv_cache & kv, uint32_t stream, int seq_id, const llama_edgekv_returning & parked, uint32_t n) {
    if (!llama_edgekv_grows(parked.rows[0])) {
        return {};
    }
    const auto & cells = llama_edgekv_access::cells(kv, stream);
    const auto & one = *parked.holds[0];
    uint64_t period = llama_edgekv_group;  // after so many cells pages agree with each other's again, and tokens lie in groups as they did
    for (const auto & of : one.rows) {
        period = std::lcm(period, of.unit/std::gcd(of.unit, of.bytes));
    }
    llama_edgekv_sequences mine;
    mine.set(seq_id);
    for (uint64_t first = (one.cells.front() + period - parked.first[0]%period)%period; first + n <= cells.size(); first += period) {
        const auto serves = [&](uint64_t i) {
            return cells.is_empty(i) || ((i < first || i >= first + n) && llama_edgekv_access::sequences(cells, i) == mine);
        };
        const uint64_t begin = first/llama_edgekv_group*llama_edgekv_group;
        uint64_t i = std::min<uint64_t>(GGML_PAD(first + n, llama_edgekv_group), cells.size());
        while (i > begin && serves(i - 1)) {
            --i;
        }
        if (i == begin) {
            std::vector<uint32_t> found(n);
            std::iota(found.begin(), found.end(), static_cast<uint32_t>(first));
            return found;
        }
        first += i > first ? (i - 1 - first)/period*period : 0;  // behind the cell that is in the way
    }
    return {};
}

void llama_edgekv_own(llama_kv_cache & kv, int seq_id, int p0, int p1) {
    if (!serves(kv) || llama_edgekv_access::v_transposed(kv)) {
        return;
    }
    llama_kv_cells & cells = llama_edgekv_access::cells(kv, 0);
    std::vector<uint32_t> from, to;
    for (uint32_t i = 0; i < cells.size(); ++i) {
        if (cells.pos_in(i, p0, p1) && cells.seq_has(i, seq_id) && cells.seq_count(i) > 1) {
            from.push_back(i);
        }
    }
    if (from.empty()) {
        return;
    }
    std::sort(from.begin(), from.end(), [&](uint32_t a, uint32_t b) { return cells.pos_get(a) < cells.pos_get(b); });
    llama_edgekv_sequences mine;
    mine.set(seq_id);
    if (placing(kv).place(mine, from.size(), to) && llama_edgekv_reaches(kv, { 0 }, { to })) {
        for (const auto & layer : llama_edgekv_access::layers(kv)) {
            copy_rows(layer.k, from, to);
            copy_rows(layer.v, from, to);
        }
        for (size_t i = 0; i < from.size(); ++i) {
            llama_edgekv_access::copy_cell(cells, from[i], to[i], seq_id);
        }
    } else {
        LLAMA_LOG_ERROR("%s: sequence %d would move %zu tokens that others have too, and there are no cells for copies; it loses them\n", __func__, seq_id, from.size());
    }
    for (const uint32_t i : from) {
        cells.seq_rm(i, seq_id);
    }
}
