// The specification of decode attention, in double precision.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "attend.h"

namespace edgekv {
namespace {

template <class T>
T read(const char * p) {
    T x;
    std::memcpy(&x, p, sizeof(T));
    return x;
}

double half_to_double(uint16_t h) {
    const int exponent = h >> 10 & 31;
    const double mantissa = h & 1023;
    const double sign = h & 0x8000 ? -1.0 : 1.0;
    if (exponent == 31) {
        return mantissa != 0 ? NAN : sign * INFINITY;
    }
    return sign * (exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(mantissa + 1024, exponent - 25));
}

double element(CellType type, const char * row, int i) {
    if (type == CellType::f16) {
        return half_to_double(read<uint16_t>(row + 2 * i));
    }
    const char * block = row + i / 32 * 34;
    return half_to_double(read<uint16_t>(block)) * read<int8_t>(block + 2 + i % 32);
}

double mask_value(const AttendProblem & p, int token, int cell) {
    const char * row = p.mask + static_cast<size_t>(token) * p.mask_stride_token;
    switch (p.mask_type) {
        case MaskType::none: return 0.0;
        case MaskType::f16: return half_to_double(read<uint16_t>(row + static_cast<size_t>(cell) * 2));
        case MaskType::f32: return read<float>(row + static_cast<size_t>(cell) * 4);
    }
    return 0.0;
}

std::vector<double> query(const AttendProblem & p, int token, int head) {
    const char * src = p.q + static_cast<size_t>(token) * p.q_stride_token + static_cast<size_t>(head) * p.q_stride_head;
    std::vector<double> q(static_cast<size_t>(p.head_dim));
    for (int i = 0; i < p.head_dim; ++i) {
        q[i] = read<float>(src + 4 * i);
    }
    for (int b = 0; p.k_type == CellType::q8_0 && b < p.head_dim / 32; ++b) {
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

bool selected(const AttendProblem & p, int token, int kv, int page) {
    if (p.selection.pages == nullptr) {
        return true;
    }
    const size_t list = static_cast<size_t>(token * p.n_head_kv + kv);
    const int32_t * pages = p.selection.pages + list * p.selection.stride;
    return std::find(pages, pages + p.selection.n_pages[list], page) != pages + p.selection.n_pages[list];
}

}  // namespace

void attend_reference(const AttendProblem & p) {
    const int group = p.n_head / p.n_head_kv;
    const int n_pages = (p.n_cells + p.page_tokens - 1) / p.page_tokens;
    std::vector<double> logit(static_cast<size_t>(p.n_cells));
    for (int kv = 0; kv < p.n_head_kv; ++kv) {
        for (int t = 0; t < p.n_tokens; ++t) {
            std::vector<double> page_max(static_cast<size_t>(n_pages)), page_sum(static_cast<size_t>(n_pages));
            for (int head = kv * group; head < (kv + 1) * group; ++head) {
                const std::vector<double> q = query(p, t, head);
                double max = p.sinks != nullptr ? p.sinks[head] : -INFINITY;
                for (int c = 0; c < p.n_cells; ++c) {
                    const double bias = mask_value(p, t, c);
                    logit[c] = -INFINITY;
                    if (bias == -INFINITY || !selected(p, t, kv, c / p.page_tokens)) {
                        continue;
                    }
                    const char * row = p.k + static_cast<size_t>(c) * p.k_stride_cell + static_cast<size_t>(kv) * p.k_stride_head;
                    double dot = 0.0;
                    for (int i = 0; i < p.head_dim; ++i) {
                        dot += q[i] * element(p.k_type, row, i);
                    }
                    dot *= p.scale;
                    logit[c] = (p.softcap != 0.0f ? p.softcap * std::tanh(dot / p.softcap) : dot) + bias;
                    max = std::fmax(max, logit[c]);
                }

                double total = p.sinks != nullptr ? std::exp(p.sinks[head] - max) : 0.0;
                for (int c = 0; c < p.n_cells; ++c) {
                    total += logit[c] == -INFINITY ? 0.0 : std::exp(logit[c] - max);
                }
                std::vector<double> out(static_cast<size_t>(p.head_dim)), mass(static_cast<size_t>(n_pages));
                for (int c = 0; c < p.n_cells; ++c) {
                    if (logit[c] == -INFINITY) {
                        continue;
                    }
                    const double weight = std::exp(logit[c] - max) / total;
                    const char * row = p.v + static_cast<size_t>(c) * p.v_stride_cell + static_cast<size_t>(kv) * p.v_stride_head;
                    for (int i = 0; i < p.head_dim; ++i) {
                        out[i] += weight * element(p.v_type, row, i);
                    }
                    mass[c / p.page_tokens] += weight;
                }
                char * dst = p.out + static_cast<size_t>(t) * p.out_stride_token + static_cast<size_t>(head) * p.out_stride_head;
                for (int i = 0; i < p.head_dim; ++i) {
                    const float x = static_cast<float>(out[i]);
                    std::memcpy(dst + 4 * i, &x, 4);
                }
                const double covered = p.selection.coverage != nullptr ? p.selection.coverage[t * p.n_head + head] : 1.0;
                for (int page = 0; page < n_pages; ++page) {
                    mass[page] *= covered;
                    page_max[page] = std::fmax(page_max[page], mass[page]);
                    page_sum[page] += mass[page];
                }
            }
            for (int page = 0; page < n_pages; ++page) {
                if (p.mass_max != nullptr) {
                    p.mass_max[static_cast<size_t>(kv) * p.mass_stride + page] += static_cast<float>(page_max[page]);
                }
                if (p.mass_sum != nullptr) {
                    p.mass_sum[static_cast<size_t>(kv) * p.mass_stride + page] += static_cast<float>(page_sum[page]);
                }
            }
        }
    }
}

}  // namespace edgekv
