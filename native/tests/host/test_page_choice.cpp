// Checks choose_pages(): the certain pages and the best of the others, also where scores are no numbers.
//   test_page_choice
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <vector>

#include "attend_cases.h"
#include "plane/host/page_choice.h"

using namespace edgekv;

namespace {

// Pages by falling score, the newer first where scores are equal; what is no number comes last. A sort of keys that have an order.
std::vector<int> best(const std::vector<float> & priority, int n) {
    std::vector<std::pair<double, int>> keys;
    for (int page = 0; page < static_cast<int>(priority.size()); ++page) {
        keys.push_back({std::isnan(priority[page]) ? std::numeric_limits<double>::infinity() : -static_cast<double>(priority[page]), -page});
    }
    std::sort(keys.begin(), keys.end());
    std::vector<int> pages;
    for (int i = 0; i < n; ++i) {
        pages.push_back(-keys[i].second);
    }
    std::sort(pages.begin(), pages.end());
    return pages;
}

}  // namespace

int main() {
    int failures = 0, n_cases = 0;
    cases::Random rng(3);
    for (const int n_pages : {4, 16, 17, 64, 333, 1000}) {
        for (const int tenths : {0, 1, 5, 9, 10}) {  // of the scores that are no numbers
            for (int repeat = 0; repeat < 20; ++repeat, ++n_cases) {
                std::vector<float> priority;
                for (int page = 0; page < n_pages; ++page) {
                    const bool none = static_cast<int>(rng.next() % 10) < tenths;
                    priority.push_back(none ? std::copysign(std::numeric_limits<float>::quiet_NaN(), rng.normal()) : rng.normal());
                }
                const std::vector<Sight> sight(static_cast<size_t>((n_pages + 3) / 4), Sight{~uint64_t{0}, 0});
                const int wanted = 1 + static_cast<int>(rng.next() % static_cast<uint64_t>(n_pages));
                PageChoice choice{};
                choice.n_cells = 16 * n_pages;
                choice.page_tokens = 16;
                choice.sight = sight.data();
                choice.priority = priority.data();
                choice.tokens = 16 * wanted;
                std::vector<int32_t> rows(static_cast<size_t>(choice.n_cells)), candidates;
                const ChoiceResult result = choose_pages(choice, rows.data(), candidates);
                std::vector<int> got;
                for (int i = 0; i < result.n_rows; i += 16) {
                    got.push_back(rows[static_cast<size_t>(i)] / 16);
                }
                if (result.n_rows != 16 * wanted || got != best(priority, wanted)) {
                    failures += 1;
                }
            }
        }
    }
    std::printf("%d cases, %d failures\n", n_cases, failures);
    return failures == 0 ? 0 : 1;
}
