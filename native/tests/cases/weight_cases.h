// Blocks of weights at random, of every type, and what ggml makes of several rows: eight or sixteen side by side.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/matmul/products.h"
#include "kernels/matmul/weight_blocks.h"

namespace test {

using edgekv::WeightType;

struct Type {
    WeightType type;
    const char * name;
    size_t bytes;  // of a block
    std::vector<size_t> halves;  // where a block has f16
    bool repacked = false;  // there is a form of eight rows
    bool tiled = false;     // and of sixteen
};

inline const Type kTypes[] = {
    {WeightType::q4_0, "Q4_0", sizeof(edgekv::BlockQ4_0), {0}, true, true},
    {WeightType::q4_1, "Q4_1", sizeof(edgekv::BlockQ4_1), {0, 2}, false, true},
    {WeightType::q5_0, "Q5_0", sizeof(edgekv::BlockQ5_0), {0}},
    {WeightType::q5_1, "Q5_1", sizeof(edgekv::BlockQ5_1), {0, 2}},
    {WeightType::q8_0, "Q8_0", sizeof(edgekv::BlockQ8_0), {0}, false, true},
    {WeightType::q4_k, "Q4_K", sizeof(edgekv::BlockQ4_K), {0, 2}, true, true},
    {WeightType::q5_k, "Q5_K", sizeof(edgekv::BlockQ5_K), {0, 2}, false, true},
    {WeightType::q6_k, "Q6_K", sizeof(edgekv::BlockQ6_K), {208}, false, true},
    {WeightType::iq4_nl, "IQ4_NL", sizeof(edgekv::BlockIQ4_NL), {0}, true},
    {WeightType::iq4_xs, "IQ4_XS", sizeof(edgekv::BlockIQ4_XS), {0}, false, true},
    {WeightType::mxfp4, "MXFP4", sizeof(edgekv::BlockMXFP4), {}, true},
};

// Bytes at random, with factors of 0.0078 to 0.03, of either sign.
inline std::vector<char> random_block(const Type & type, std::mt19937 & random) {
    std::vector<char> block(type.bytes);
    std::generate(block.begin(), block.end(), [&] { return static_cast<char>(random()); });
    for (const size_t at : type.halves) {
        const auto half = static_cast<uint16_t>((random() % 2) << 15 | (0x2000 + random() % 0x800));
        std::memcpy(&block[at], &half, sizeof half);
    }
    if (type.type == WeightType::mxfp4) {
        block[0] = static_cast<char>(120 + random() % 4);
    }
    if (type.type == WeightType::q8_0) {
        std::replace(block.begin() + 2, block.end(), static_cast<char>(-128), static_cast<char>(127));  // not among ggml's
    }
    return block;
}

// Eight rows' blocks side by side: numbers first, codes in pieces of eight bytes.
inline std::vector<char> eight_of(WeightType type, const std::vector<char> (&rows)[8]) {
    std::vector<char> eight;
    const auto take = [&](size_t at, size_t n) {
        for (const auto & row : rows) {
            eight.insert(eight.end(), row.begin() + static_cast<std::ptrdiff_t>(at), row.begin() + static_cast<std::ptrdiff_t>(at + n));
        }
    };
    size_t at = type == WeightType::mxfp4 ? 1 : 2;
    take(0, at);
    if (type == WeightType::q4_k) {
        take(2, 2);
        for (int j = 0; j < 8; ++j) {  // six bits of each row, packed as the eight of a row are
            uint8_t packed[12] = {};
            for (int r = 0; r < 8; ++r) {
                const auto * from = reinterpret_cast<const uint8_t *>(rows[r].data() + 4);
                const int scale = j < 4 ? from[j] & 63 : (from[j + 4] & 15) | (from[j - 4] >> 6) << 4;
                const int min   = j < 4 ? from[j + 4] & 63 : from[j + 4] >> 4 | (from[j] >> 6) << 4;
                if (r < 4) {
                    packed[r] |= static_cast<uint8_t>(scale);
                    packed[r + 4] |= static_cast<uint8_t>(min);
                } else {
                    packed[r + 4] = static_cast<uint8_t>((scale & 15) | (min & 15) << 4);
                    packed[r - 4] |= static_cast<uint8_t>(scale >> 4 << 6);
                    packed[r] |= static_cast<uint8_t>(min >> 4 << 6);
                }
            }
            eight.insert(eight.end(), packed, packed + 12);
        }
        at = 16;
    }
    const size_t codes = eight.size();
    for (; at < rows[0].size(); at += 8) {
        take(at, 8);
    }
    for (size_t i = codes; type == WeightType::q4_0 && i < eight.size(); ++i) {
        eight[i] = static_cast<char>(eight[i] ^ 0x88);
    }
    return eight;
}

inline uint8_t byte_at(const std::vector<char> & block, size_t at) { return static_cast<uint8_t>(block[at]); }

// The code of a value, of four bits, five or six; or its byte.
inline uint8_t code_of(WeightType type, const std::vector<char> & block, size_t at) {
    const auto nibble = [&](size_t byte, bool high) { return static_cast<uint8_t>(high ? byte_at(block, byte) >> 4 : byte_at(block, byte) & 15); };
    switch (type) {
        case WeightType::q4_0: return nibble(2 + at % 16, at >= 16);
        case WeightType::q4_1: return nibble(4 + at % 16, at >= 16);
        case WeightType::q8_0: return byte_at(block, 2 + at);
        case WeightType::q4_k: return nibble(16 + at / 64 * 32 + at % 32, at / 32 % 2);
        case WeightType::q5_k:
            return static_cast<uint8_t>(nibble(48 + at / 64 * 32 + at % 32, at / 32 % 2) | (byte_at(block, 16 + at % 32) >> at / 32 & 1) << 4);
        case WeightType::q6_k: {
            const size_t half = at / 128, quarter = at % 128 / 32;
            const int upper = byte_at(block, 128 + 32 * half + at % 32) >> 2 * quarter & 3;
            return static_cast<uint8_t>(nibble(64 * half + 32 * (quarter % 2) + at % 32, quarter >= 2) | upper << 4);
        }
        case WeightType::iq4_xs: return nibble(8 + at / 32 * 16 + at % 16, at % 32 >= 16);
        default: return 0;
    }
}

// Sixteen rows' blocks as ggml packs them for tiles: quads of codes, first their low bits, then the others, then numbers.
inline std::vector<char> sixteen_of(WeightType type, const std::vector<char> (&rows)[16]) {
    std::vector<char> out;
    const size_t n = static_cast<size_t>(edgekv::weight_values(type));
    const auto put = [&](int byte) { out.push_back(static_cast<char>(byte)); };
    const auto quads = [&](size_t quad, size_t row, size_t i) { return code_of(type, rows[row], 4 * quad + i); };
    const auto each = [&](auto with) {
        for (size_t row = 0; row < 16; ++row) {
            for (size_t i = 0; i < 4; ++i) {
                with(row, i);
            }
        }
    };
    const bool bytes = type == WeightType::q8_0;
    for (size_t quad = 0; quad < n / 4; quad += bytes ? 1 : 2) {
        each([&](size_t row, size_t i) { put(bytes ? quads(quad, row, i) : (quads(quad, row, i) & 15) | (quads(quad + 1, row, i) & 15) << 4); });
    }
    const size_t per_high = type == WeightType::q5_k ? 8 : 4, bits = type == WeightType::q5_k ? 1 : 2;
    for (size_t quad = 0; (type == WeightType::q5_k || type == WeightType::q6_k) && quad < n / 4; quad += per_high) {
        each([&](size_t row, size_t i) {
            int high = 0;
            for (size_t j = 0; j < per_high; ++j) {
                high |= quads(quad + j, row, i) >> 4 << bits * j;
            }
            put(high);
        });
    }
    const auto six = [&](size_t row, size_t j, bool min) {  // of Q4_K and Q5_K
        const size_t from = j + (min ? 4 : 0);
        return j < 4 ? byte_at(rows[row], 4 + from) & 63
                     : (min ? byte_at(rows[row], 8 + j) >> 4 : byte_at(rows[row], 8 + j) & 15) | (byte_at(rows[row], from) >> 6) << 4;
    };
    if (type == WeightType::q4_k || type == WeightType::q5_k) {
        for (size_t j = 0; j < 8; ++j) {
            for (size_t row = 0; row < 16; ++row) {
                put(six(row, j, false));
            }
        }
        for (size_t j = 0; j < 8; j += 2) {
            for (size_t row = 0; row < 16; ++row) {
                put(six(row, j, true));
                put(six(row, j + 1, true));
            }
        }
    }
    for (size_t j = 0; type == WeightType::q6_k && j < 16; ++j) {
        for (const auto & row : rows) {
            put(row[192 + j]);
        }
    }
    for (size_t j = 0; type == WeightType::iq4_xs && j < 8; ++j) {
        for (const auto & row : rows) {
            put(((byte_at(row, 4 + j / 2) >> 4 * (j % 2) & 15) | ((byte_at(row, 2 + j / 4) >> 2 * (j % 4) & 3) << 4)) - 32);
        }
    }
    const size_t halves = type == WeightType::q6_k ? 208 : 0, n_halves = type == WeightType::q4_1 || type == WeightType::q4_k || type == WeightType::q5_k ? 2 : 1;
    for (size_t i = 0; i < n_halves; ++i) {
        for (const auto & row : rows) {
            put(row[halves + 2 * i]);
            put(row[halves + 2 * i + 1]);
        }
    }
    for (size_t row = 0; bytes && row < 16; ++row) {
        int32_t sum = 0;
        for (size_t i = 0; i < n; ++i) {
            sum += 128 * static_cast<int8_t>(code_of(type, rows[row], i));
        }
        out.insert(out.end(), reinterpret_cast<char *>(&sum), reinterpret_cast<char *>(&sum) + sizeof sum);
    }
    return out;
}

}  // namespace test
