#include "server/http/infill.h"

#include <algorithm>
#include <utility>

namespace edgekv_server {
namespace {

constexpr int N_MARKS = 5;  // the marks of prefix, suffix and middle, the first token of all, and one that must be computed

// Drops the first tokens until n are left at most, in steps: so a prompt begins as the one before it did while the cursor moves on.
void keep_last(token_list & tokens, int n) {
    const int size = static_cast<int>(tokens.size());
    if (size > n) {
        const int step = std::max(1, n/8);
        tokens.erase(tokens.begin(), tokens.begin() + std::min(size, (size - n + step - 1)/step*step));
    }
}

}  // namespace

infill take_infill(token_list & prefix, token_list & suffix, token_list & extra, size_t n_prompt, int n_predict, int n_ctx) {
    const int n_answer = n_predict > 0 ? n_predict : n_ctx/8;
    const int n_all    = std::max(0, n_ctx - n_answer - static_cast<int>(n_prompt) - N_MARKS);
    const int n_prefix = static_cast<int>(prefix.size());
    const int n_suffix = static_cast<int>(suffix.size());
    const int n_extra  = static_cast<int>(extra.size());
    // a quarter for further files, and of the rest a quarter for what is behind the cursor; each may take what the others leave
    const int n_here   = n_all - std::min(n_extra, n_all/4);
    const int n_behind = std::min(n_suffix, std::max(n_here/4, n_here - n_prefix));

    infill taken{ std::move(prefix), std::move(suffix), std::move(extra) };
    prefix.clear();
    suffix.clear();
    extra.clear();
    keep_last(taken.prefix, n_here - n_behind);
    taken.suffix.resize(n_behind);
    keep_last(taken.extra, n_all - static_cast<int>(taken.prefix.size()) - n_behind);
    return taken;
}

}  // namespace edgekv_server
