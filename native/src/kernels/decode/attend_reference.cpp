// The specification of attend.h, in double precision.
#include "kernels/decode/attend_reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/half.h"

namespace edgekv {
namespace {

template <class T>
T read(const char * p) {
    T x;
    std::memcpy(&x, p, sizeof(T));
    return x;
}

double mask_value(const AttendProblem & p, int token, int cell) {
    const char * of_token = p.mask + static_cast<size_t>(token) * p.mask_stride_token;
    switch (p.mask_type) {
        case MaskType::none: return 0.0;
        case MaskType::f16: return half_to_double(read<uint16_t>(of_token + static_cast<size_t>(cell) * 2));
        case MaskType::f32: return read<float>(of_token + static_cast<size_t>(cell) * 4);
    }
    return 0.0;
}

std::vector<double> query(const AttendProblem & p, const ReferenceRules & rules, int token, int head) {
    const char * src = p.q + static_cast<size_t>(token) * p.q_stride_token + static_cast<size_t>(head) * p.q_stride_head;
    std::vector<double> q(static_cast<size_t>(p.head_dim));
    for (int i = 0; i < p.head_dim; ++i) {
        q[i] = read<float>(src + 4 * i);
    }
    const bool quantised = rules.quantised_queries && in_blocks(p.k_type);
    for (int b = 0; quantised && b < p.head_dim / 32; ++b) {
        float amax = 0.0f;
        for (int i = 32 * b; i < 32 * b + 32; ++i) {
            amax = std::fmax(amax, std::fabs(static_cast<float>(q[i])));
        }
        const float inverse = amax > 0.0f ? 127.0f / amax : 0.0f;  // in float, as the kernels do: ties must fall alike
        for (int i = 32 * b; i < 32 * b + 32; ++i) {
            q[i] = std::rint(static_cast<float>(q[i]) * inverse) * (static_cast<double>(amax) / 127.0);
        }
    }
    return q;
}

// The factor of the exponential of a cell's logit. 0: the cell is not attended.
std::vector<double> weights(const AttendProblem & p, const ReferenceRules & rules, int token, int kv) {
    std::vector<double> of_cell(static_cast<size_t>(p.n_cells));
    if (p.rows.stride == 0) {
        const uint8_t * dropped = rules.dropped ? rules.dropped + static_cast<size_t>(kv) * rules.dropped_stride : nullptr;
        for (int c = 0; c < p.n_cells; ++c) {
            of_cell[c] = mask_value(p, token, c) == -INFINITY || (dropped && dropped[c / p.page_tokens]) ? 0.0 : 1.0;
        }
        return of_cell;
    }
    const size_t list = static_cast<size_t>(token * p.n_head_kv + kv);
    for (int i = 0; i < p.rows.n_rows[list]; ++i) {
        const size_t at = list * p.rows.stride + static_cast<size_t>(i);
        of_cell[p.rows.cells[at]] = p.rows.weights != nullptr ? p.rows.weights[at] : 1.0;
    }
    return of_cell;
}

// A row of V.
struct Values {
    CellType type;
    const char * row;
};

Values values(const AttendProblem & p, int kv, int cell) {
    if (p.v_in_k != 0) {
        return {p.k_type, p.k + static_cast<size_t>(cell) * p.k_stride_cell + static_cast<size_t>(kv) * p.k_stride_head};
    }
    return {p.v_type, p.v + static_cast<size_t>(cell) * p.v_stride_cell + static_cast<size_t>(kv) * p.v_stride_head};
}

// The estimated relative error of a query head's output: see AttendProblem.
void add_error(const AttendProblem & p, int kv, const std::vector<double> & counts, const std::vector<double> & logit, double max,
               double total, const std::vector<double> & out) {
    if (p.hits == nullptr || p.rows.weights == nullptr || p.error_every == 0 || (kv + p.error_turn) % p.error_every != 0) {
        return;
    }
    if (std::all_of(counts.begin(), counts.end(), [](double x) { return x == 0.0; })) {
        return;  // no rows, nothing to estimate from
    }
    double norm = 0.0, variance = 0.0;
    for (double x : out) {
        norm += x * x;
    }
    for (int c = 0; c < p.n_cells; ++c) {
        if (counts[c] <= 1.0) {
            continue;
        }
        const double share = counts[c] * std::exp(logit[c] - max) / total;
        const Values v = values(p, kv, c);
        for (size_t i = 0; i < out.size(); ++i) {
            const double apart = channel(v.type, v.row, static_cast<int>(i)) - out[i];
            variance += (1.0 - 1.0 / counts[c]) * share * share * apart * apart;
        }
    }
    p.hits[kv].error += norm > 0.0 ? std::sqrt(variance / norm) : 0.0;
    p.hits[kv].n_errors += 1.0;
}

}  // namespace

void attend_by_rules(const AttendProblem & p, const ReferenceRules & rules) {
    const int group = p.n_head / p.n_head_kv;
    const int n_pages = (p.n_cells + p.page_tokens - 1) / p.page_tokens;
    std::vector<double> logit(static_cast<size_t>(p.n_cells));
    for (int kv = 0; kv < p.n_head_kv; ++kv) {
        for (int t = 0; t < p.n_tokens; ++t) {
            std::vector<double> page_max(static_cast<size_t>(n_pages)), page_sum(static_cast<size_t>(n_pages));
            const std::vector<double> counts = weights(p, rules, t, kv);
            for (int head = kv * group; head < (kv + 1) * group; ++head) {
                const std::vector<double> q = query(p, rules, t, head);
                double max = p.sinks != nullptr ? p.sinks[head] : -INFINITY;
                for (int c = 0; c < p.n_cells; ++c) {
                    const double bias = p.rows.stride == 0 ? alibi_slope(p, head) * mask_value(p, t, c) : 0.0;
                    logit[c] = -INFINITY;
                    if (counts[c] == 0.0) {
                        continue;
                    }
                    const char * row = p.k + static_cast<size_t>(c) * p.k_stride_cell + static_cast<size_t>(kv) * p.k_stride_head;
                    double dot = 0.0;
                    for (int i = 0; i < p.head_dim; ++i) {
                        dot += q[i] * channel(p.k_type, row, i);
                    }
                    dot *= p.scale;
                    logit[c] = (p.softcap != 0.0f ? p.softcap * std::tanh(dot / p.softcap) : dot) + bias;
                    max = std::fmax(max, logit[c]);
                }

                double total = p.sinks != nullptr ? std::exp(p.sinks[head] - max) : 0.0;
                for (int c = 0; c < p.n_cells; ++c) {
                    total += logit[c] == -INFINITY ? 0.0 : counts[c] * std::exp(logit[c] - max);
                }
                std::vector<double> out(static_cast<size_t>(attend_v_dim(p))), mass(static_cast<size_t>(n_pages));
                for (int c = 0; c < p.n_cells; ++c) {
                    if (logit[c] == -INFINITY) {
                        continue;
                    }
                    const double weight = counts[c] * std::exp(logit[c] - max) / total;
                    const Values v = values(p, kv, c);
                    for (int i = 0; i < attend_v_dim(p); ++i) {
                        out[i] += weight * channel(v.type, v.row, i);
                    }
                    mass[c / p.page_tokens] += weight;
                }
                add_error(p, kv, counts, logit, max, total, out);
                char * dst = p.out + static_cast<size_t>(t) * p.out_stride_token + static_cast<size_t>(head) * p.out_stride_head;
                for (int i = 0; i < attend_v_dim(p); ++i) {
                    const float x = static_cast<float>(out[i]);
                    std::memcpy(dst + 4 * i, &x, 4);
                }
                for (int page = 0; page < n_pages; ++page) {
                    page_max[page] = std::fmax(page_max[page], mass[page]);
                    page_sum[page] += mass[page];
                }
            }
            for (int page = 0; page < n_pages; ++page) {
                if (p.mass_max != nullptr && t >= rules.first_observed) {
                    p.mass_max[static_cast<size_t>(kv) * p.mass_stride + page] += static_cast<float>(page_max[page]);
                }
                if (p.mass_sum != nullptr && t >= rules.first_observed) {
                    p.mass_sum[static_cast<size_t>(kv) * p.mass_stride + page] += static_cast<float>(page_sum[page]);
                }
            }
        }
    }
}

void attend_reference(const AttendProblem & p) {
    attend_by_rules(p, {true, nullptr, 0, 0});
}

}  // namespace edgekv
