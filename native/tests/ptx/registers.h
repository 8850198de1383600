// A thread's registers by their symbols, for the simulator: a hash table without chains, which halves the time of a run.
#pragma once

#include <utility>
#include <vector>

namespace ptx {

template <class Symbol, class Value>
class Registers {
public:
    using Entry          = std::pair<const Symbol *, Value>;  // of a free place: nullptr
    using iterator       = Entry *;
    using const_iterator = const Entry *;

    iterator begin() { return table.data(); }
    iterator end() { return table.data() + table.size(); }
    const_iterator begin() const { return table.data(); }
    const_iterator end() const { return table.data() + table.size(); }
    bool empty() const { return n_used == 0; }
    size_t size() const { return n_used; }
    void clear() { *this = Registers(); }

    iterator find(const Symbol * symbol) {
        Entry & entry = place(symbol);
        return entry.first != nullptr ? &entry : end();
    }
    Value & operator[](const Symbol * symbol) {
        if (2 * n_used >= table.size()) {
            std::vector<Entry> before(2 * table.size());
            before.swap(table);
            for (const Entry & entry : before) {
                if (entry.first != nullptr) {
                    place(entry.first) = entry;
                }
            }
        }
        Entry & entry = place(symbol);
        n_used += entry.first == nullptr;
        entry.first = symbol;
        return entry.second;
    }

private:
    Entry & place(const Symbol * symbol) {
        size_t at = (reinterpret_cast<size_t>(symbol) >> 4) * 0x9e3779b97f4a7c15u >> 32;
        while (table[at %= table.size()].first != nullptr && table[at].first != symbol) {
            ++at;
        }
        return table[at];
    }

    std::vector<Entry> table{16};
    size_t n_used = 0;
};

}  // namespace ptx
