// Checks choose_pages(): the certain pages and the best of the others, also where scores are no numbers.
//   test_page_choice
#include "cell_rows.h"
#include "checks.h"
#include "attention/cpu/page_choice.h"

using namespace edgekv;
using namespace test;

namespace {

// Pages by falling score, the newer first where scores are equal; what is no number comes last. A sort of keys that have an order.
std::vector<int> best(const std::vector<float> & priority, int n) {
    std::vector<std::pair<double, int>> keys;
    for (int page = 0; page < static_cast<int>(priority.size()); ++page) {
        keys.push_back({std::isnan(priority[page]) ? static_cast<double>(kInf) : -static_cast<double>(priority[page]), -page});
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
    int n_cases = 0;
    Random rng(3);
    for (const int n_pages : {4, 16, 17, 64, 333, 1000}) {
        for (const int tenths : {0, 1, 5, 9, 10}) {  // of the scores that are no numbers
            for (int repeat = 0; repeat < 20; ++repeat, ++n_cases) {
                std::vector<float> priority;
                for (int page = 0; page < n_pages; ++page) {
                    const bool none = rng.below(10) < tenths;
                    priority.push_back(none ? std::copysign(kNan, rng.normal()) : rng.normal());
                }
                const std::vector<Sight> sight(static_cast<size_t>((n_pages + 3) / 4), Sight{~uint64_t{0}, 0});
                const int wanted = 1 + rng.below(n_pages);
                PageChoice choice{};
                choice.n_cells = 16 * n_pages;
                choice.page_tokens = 16;
                choice.sight = sight.data();
                choice.priority = priority.data();
                choice.tokens = 16 * wanted;
                choice.exact_tokens = 64 * static_cast<int>(sight.size()) - 1;
                std::vector<int32_t> rows(static_cast<size_t>(choice.n_cells)), candidates;
                const ChoiceResult result = choose_pages(choice, rows.data(), candidates);
                std::vector<int> got;
                for (int i = 0; i < result.n_rows; i += 16) {
                    got.push_back(rows[static_cast<size_t>(i)] / 16);
                }
                CHECK(result.n_rows == 16 * wanted, "%d pages, %d wanted: %d rows", n_pages, wanted, result.n_rows);
                CHECK(got == best(priority, wanted), "%d pages, %d wanted, %d tenths are no numbers", n_pages, wanted, tenths);
                choice.exact_tokens += 1;
                CHECK(choose_pages(choice, rows.data(), candidates).n_rows == choice.n_cells, "%d pages that are few", n_pages);
            }
        }
    }
    std::printf("%d cases\n", n_cases);
    return finish();
}
