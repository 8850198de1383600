#include "server/prefix_cache/media.h"

#include "server/prefix_cache/cache.h"
#include "server/scheduling/limits.h"

#include "mtmd-helper.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

const char * edgekv_server_projector() { return edgekv_server::the_cache().projector.c_str(); }

int64_t edgekv_server_projector_bytes(const char * path) {
    int64_t total = 0;
    for (const auto & [device, bytes] : mtmd_get_memory_usage(path, mtmd_context_params_default())) {
        total += static_cast<int64_t>(bytes);
    }
    return total;
}

namespace edgekv_server {

namespace {

int size_of(const mtmd_input_chunk * chunk) { return static_cast<int>(mtmd_input_chunk_get_n_tokens(chunk)); }

// Calls act(chunk, its first token) for each medium among the first n tokens.
template <typename Act>
void for_each_medium(const server_tokens & tokens, int n, Act act) {
    for (int i = 0; i < n; ++i) {
        if (tokens[i] == LLAMA_TOKEN_NULL) {
            const auto * chunk = tokens.find_chunk(i).get();
            act(chunk, i);
            i += size_of(chunk) - 1;
        }
    }
}

mtmd_decoder_pos position_of(const mtmd_input_chunk * chunk, llama_pos first, int i) {
    const auto * image = mtmd_input_chunk_get_tokens_image(chunk);
    if (image) {
        return mtmd_image_tokens_get_decoder_pos(image, first, i);
    }
    const auto at = static_cast<uint32_t>(first + i);

    return { at, at, at, at };
}

// computes tokens of text
bool compute_text(llama_context * lctx, int seq_id, const server_tokens & held, int first, int end) {
    const int    n_batch = static_cast<int>(llama_n_batch(lctx));
    const auto   start   = held.pos_next(first);
    common_batch batch(lctx);
    for (int i = first; i < end; ++i) {
        batch.add(held[i], start + i - first, seq_id, false);
    }
    bool ok = true;
    for (int i = 0; i < batch.size() && ok; i += n_batch) {
        ok = llama_process(lctx, LLAMA_PROCESS_TYPE_DECODE, batch.get_sub_batch(i, std::min(batch.size() - i, n_batch))) == 0;
    }

    return ok;
}

}  // namespace

const char * media_marker() {
    static const std::string marker = get_media_marker() + random_string() + ">";  // no letter, so that a text behind it begins a word
    return marker.c_str();
}

std::string marked_by_us(const std::string & prompt) {
    std::string marked = prompt;
    string_replace_all(marked, get_media_marker(), media_marker());
    return marked;
}

std::string marked_by_client(const std::string & prompt) {
    std::string marked = prompt;
    string_replace_all(marked, media_marker(), get_media_marker());
    return marked;
}

void fetch_medium(std::string & url) {
    if (url.rfind("data:", 0) == 0 || url.rfind("file://", 0) == 0 || url.find("://") == std::string::npos) {
        return;
    }
    std::string told = "media are taken as data URLs alone";
    if (!current().media || !current().media(url.c_str(), &told)) {
        throw std::invalid_argument(told);
    }
    url = told;
}

void refuse_format(const std::vector<unsigned char> & file) {
    const std::string head(file.begin(), file.begin() + std::min<size_t>(file.size(), 16));
    const auto is = [&](size_t at, const char * mark) { return head.size() > at && head.compare(at, std::strlen(mark), mark) == 0; };
    const char * format = is(0, "RIFF") && is(8, "WEBP") ? "WebP" : is(4, "ftypavif") ? "AVIF" : is(4, "ftyphei") || is(4, "ftypmif1") ? "HEIC" :
                          is(0, "II*") || is(0, "MM") ? "TIFF" : is(0, "<svg") || is(0, "<?xml") ? "SVG" : is(0, "%PDF") ? "PDF" : nullptr;
    if (format) {
        throw std::invalid_argument(std::string("an image in ") + format + " cannot be read; send it as PNG, JPEG, GIF, BMP, TGA, PSD or PNM" +
                                    (head.compare(0, 4, "RIFF") == 0 ? ", or install ffmpeg on the server's machine" : ""));
    }
}

void check_size(const mtmd_bitmap * bitmap) {
    constexpr uint32_t MOST_RATIO    = 200;   // a side of no pixels, scaled, is an assertion; a long one is millions of tokens
    constexpr uint32_t LEAST_SAMPLES = 1600;  // a tenth of a second at 16,000 Hz; less than a frame is an assertion
    const uint32_t width = mtmd_bitmap_get_nx(bitmap), height = mtmd_bitmap_get_ny(bitmap);
    if (mtmd_bitmap_is_audio(bitmap)) {
        if (width < LEAST_SAMPLES) {
            throw std::invalid_argument("a sound is shorter than a tenth of a second; send a longer one");
        }
    } else if (std::max(width, height) > MOST_RATIO * std::min(width, height)) {
        throw std::invalid_argument("an image is " + std::to_string(width) + " by " + std::to_string(height) + " pixels; one side may be " +
                                    std::to_string(MOST_RATIO) + " times the other at most");
    }
}

void projector_in(const std::string & path) {
    the_cache().projector = path;
    the_cache().context   = {};  // of the model before
}

void check_media(const server_tokens & prompt) {
    if (!prompt.empty() && prompt[prompt.size() - 1] == LLAMA_TOKEN_NULL) {
        throw std::invalid_argument("the prompt ends with an image or a sound; put text after it");
    }
}

int whole_media(const server_tokens & tokens, int n) {
    int whole = n;
    for_each_medium(tokens, n, [&](const mtmd_input_chunk * chunk, int first) {
        whole = first + size_of(chunk) > n ? first : whole;
    });

    return whole;
}

void append_tokens(server_tokens & held, const server_tokens & prompt, int first, int end) {
    for (int i = first; i < end; ++i) {
        if (prompt[i] == LLAMA_TOKEN_NULL) {
            const auto * chunk = prompt.find_chunk(i).get();
            held.push_back_placeholder(chunk);
            i += size_of(chunk) - 1;
        } else {
            held.push_back(prompt[i]);
        }
    }
}

bool compute_tokens(llama_context * lctx, mtmd_context * mctx, int seq_id, const server_tokens & held, const server_tokens & prompt, int first, int end) {
    bool ok = true;
    for (int i = first; i < end && ok;) {
        if (held[i] != LLAMA_TOKEN_NULL) {
            int text_end = i;
            while (text_end < end && held[text_end] != LLAMA_TOKEN_NULL) {
                ++text_end;
            }
            ok = compute_text(lctx, seq_id, held, i, text_end);
            i  = text_end;
            continue;
        }
        const auto * chunk = prompt.find_chunk(i).get();
        llama_pos next = 0;
        ok = mctx && mtmd_helper_eval_chunk_single(mctx, lctx, chunk, held.pos_next(i), seq_id, static_cast<int>(llama_n_batch(lctx)), false, &next) == 0;
        i += size_of(chunk);
    }

    return ok;
}

}  // namespace edgekv_server

edgekv_told_tokens::edgekv_told_tokens(const edgekv_prefix_slot & slot, const server_tokens & tokens, int n) : numbers(n) {
    using namespace edgekv_server;
    for (int i = 0; i < n; ++i) {
        numbers[i] = tokens[i];
    }
    for_each_medium(tokens, n, [&](const mtmd_input_chunk * chunk, int first) {
        const char * id = mtmd_input_chunk_get_id(chunk);
        media.push_back({ first, size_of(chunk), id ? id : "" });
    });
    told.tokens     = numbers.data();
    told.n_tokens   = n;
    told.media      = media.data();
    told.n_media    = static_cast<int>(media.size());
    told.lctx       = slot.lctx;
    told.seq_id     = slot.seq_id;
    told.adapters   = slot.adapters.data();
    told.n_adapters = static_cast<int>(slot.adapters.size());
    told.space      = tokens.edgekv_space.c_str();
    if (const auto & sequence = edgekv_sequence_of(slot.seq_id); slot.task >= 0 && sequence.task == slot.task) {
        told.marks     = sequence.marks.marks.data();
        told.n_marks   = static_cast<int>(sequence.marks.marks.size());
        told.in_memory = sequence.marks.in_memory;
    }
    if (media.empty() || !slot.mctx || !mtmd_decode_use_mrope(slot.mctx)) {
        return;
    }
    at.resize(3*n);
    told.at = at.data();
    const auto set = [&](int i, const mtmd_decoder_pos & pos) {
        at[i]       = static_cast<int32_t>(pos.t);
        at[i + n]   = static_cast<int32_t>(pos.y);
        at[i + 2*n] = static_cast<int32_t>(pos.x);
    };
    uint32_t next = 0;
    for (int i = 0; i < n; ++i) {
        if (tokens[i] != LLAMA_TOKEN_NULL) {
            set(i, { next, next, next, next });
            ++next;
            continue;
        }
        const auto * chunk = tokens.find_chunk(i).get();
        for (int j = 0; j < std::min(size_of(chunk), n - i); ++j) {
            set(i + j, position_of(chunk, static_cast<llama_pos>(next), j));
        }
        next += static_cast<uint32_t>(mtmd_input_chunk_get_n_pos(chunk));
        i += size_of(chunk) - 1;
    }
}
