#include "llama-edgekv-splits.h"

#include "llama-edgekv-expressions.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>

// ECMAScript's rule: the first alternative that leads to a match is taken, repeats take as much as they can. The search tries one way
// after another, with the ways that are left on a stack of its own. A repeat without bound remembers where it cannot lead to a match,
// so no way is tried twice: each character costs as many steps as the expression has, and no more.

namespace {

using namespace edgekv_splits;

class matcher {
  public:
    explicit matcher(const program & made) : made(made) {}

    void read(const char32_t * piece, size_t n) {
        text = piece;
        size = n;
        dead.assign(n + 1, 0);
        led.assign(n + 1, 0);
    }

    // the end of the match that begins here, if one does
    std::optional<size_t> match(int at, size_t pos, bool looks = false) {
        const size_t base = ways.size();
        while (true) {
            const step & now = made.steps[at];
            bool leads = true;
            switch (now.kind) {
                case what::SET:
                    leads = pos < size && made.sets[now.to].has(text[pos]);
                    pos += leads;
                    at++;
                    break;
                case what::EITHER:
                    ways.push_back({ static_cast<uint32_t>(pos), now.to });
                    at++;
                    break;
                case what::LOOP:
                    if (looks && (led[pos] >> now.loop & 1)) {
                        return found(base, pos);
                    }
                    leads = !(dead[pos] >> now.loop & 1);
                    if (leads) {
                        ways.push_back({ static_cast<uint32_t>(pos), ~now.loop });
                        ways.push_back({ static_cast<uint32_t>(pos), now.to });
                    }
                    at++;
                    break;
                case what::GO:
                    at = now.to;
                    break;
                case what::LOOK:
                case what::LOOK_NOT:
                    leads = match(at + 1, pos, true).has_value() == (now.kind == what::LOOK);
                    at = now.to;
                    break;
                case what::END:
                    leads = pos == size;
                    at++;
                    break;
                case what::FOUND:
                    return found(base, pos);
            }
            while (!leads) {
                if (ways.size() == base) {
                    return std::nullopt;
                }
                const auto [there, to] = ways.back();
                ways.pop_back();
                if (to < 0) {
                    dead[there] |= 1u << ~to;
                } else {
                    pos   = there;
                    at    = to;
                    leads = true;
                }
            }
        }
    }

  private:
    struct way {
        uint32_t pos;
        int      to;  // below 0: ~the loop whose ways from here end below this one
    };

    const program &  made;
    const char32_t * text = nullptr;
    size_t           size = 0;
    std::vector<uint32_t> dead;  // by character: loops from which nothing is found
    std::vector<uint32_t> led;   // loops inside a look from which it was
    std::vector<way>      ways;

    std::optional<size_t> found(size_t base, size_t pos) {
        for (size_t i = base; i < ways.size(); i++) {
            if (ways[i].to < 0) {
                led[ways[i].pos] |= 1u << ~ways[i].to;
            }
        }
        ways.resize(base);
        return pos;
    }
};

// null: not one of ours. A program lives as long as the process.
const program * program_of(const std::u32string & expression) {
    static std::mutex mutex;
    static std::unordered_map<std::u32string, std::unique_ptr<const program>> programs;
    const std::lock_guard<std::mutex> lock(mutex);
    const auto [entry, is_new] = programs.try_emplace(expression);
    if (is_new) {
        try {
            entry->second = std::make_unique<const program>(std::move(compiler(expression).made));
        } catch (const unknown &) {
        }
    }

    return entry->second.get();
}

}  // namespace

bool llama_edgekv_split(const std::u32string & text, const std::u32string & expression, const std::vector<size_t> & offsets,
                        std::vector<size_t> & found) {
    const program * made = program_of(expression);
    if (!made) {
        return false;
    }
    matcher search(*made);
    size_t  start = 0;
    for (const size_t size : offsets) {
        search.read(text.data() + start, size);
        size_t done = 0;
        for (size_t at = 0; at <= size; at++) {
            const auto end = search.match(0, at);
            if (!end) {
                continue;
            }
            if (at > done) {
                found.push_back(at - done);
            }
            found.push_back(*end - at);  // 0 where the expression only looks
            done = *end;
            at   = std::max(at, *end - (*end > at));
        }
        if (done < size) {
            found.push_back(size - done);
        }
        start += size;
    }
    return true;
}
