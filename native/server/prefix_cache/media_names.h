// Names of media. Upstream's name is the SHA-256 of the file (with numbers of frames). But embeddings also depend on how the file became
// pixels: on options, on the decoding programs, on earlier parts of the prompt. So our name adds the XXH3 (128 bits) of the pixels. A client
// cannot forge a collision, because the SHA-256 stands beside it.
#pragma once

#include "hash/xxhash/xxhash.h"

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

// the pixels of an image, or the bands of a sound, with everything that decides how they are embedded. Entries: upstream's clip_image_f32
template <typename Entries>
void edgekv_add_pixels(const Entries & entries, std::vector<uint64_t> & to) {
    for (const auto & entry : entries) {
        const auto & values = entry.get_ro_buf();
        const auto   digest = XXH3_128bits(values.data(), values.size()*sizeof(values[0]));
        for (const uint64_t number : { digest.low64, digest.high64, static_cast<XXH64_hash_t>(values.size()) }) {
            to.push_back(number);
        }
        for (const int number : { entry.nx(), entry.ny(), static_cast<int>(entry.add_viewsep), static_cast<int>(entry.add_newline), entry.lead_pad,
                                  entry.anyres.grid_x, entry.anyres.grid_y, entry.anyres.orig_nx, entry.anyres.orig_ny }) {
            to.push_back(static_cast<uint64_t>(number));
        }
    }
}

inline void edgekv_add_name(std::string & id, const std::vector<uint64_t> & numbers) {
    const auto digest = XXH3_128bits(numbers.data(), numbers.size()*sizeof(numbers[0]));
    char text[34];
    std::snprintf(text, sizeof(text), "+%016llx%016llx", static_cast<unsigned long long>(digest.high64), static_cast<unsigned long long>(digest.low64));
    id += text;
}

// names the media of a prompt just cut into chunks (upstream's mtmd_input_chunk); does nothing if media only give their sizes
template <typename Chunks>
void edgekv_name_media(Chunks & chunks) {
    for (auto & chunk : chunks) {
        std::vector<uint64_t> numbers;
        if (chunk.tokens_image && !chunk.tokens_image->is_placeholder()) {
            auto & image = *chunk.tokens_image;
            numbers = { image.nx, image.ny, static_cast<uint64_t>(image.pos), image.image_idx, image.n_temporal_merge };
            edgekv_add_pixels(image.batch_f32.entries, numbers);
            edgekv_add_name(image.id, numbers);
        } else if (chunk.tokens_audio && !chunk.tokens_audio->is_placeholder()) {
            edgekv_add_pixels(chunk.tokens_audio->batch_f32.entries, numbers);
            edgekv_add_name(chunk.tokens_audio->id, numbers);
        }
    }
}
