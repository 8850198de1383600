#include "server/prefix_cache/slot_files.h"

#define XXH_INLINE_ALL
#include "hash/xxhash/xxhash.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <unistd.h>
#include <vector>

namespace edgekv_server {

namespace {

// Behind llama.cpp's format, whose reader does not look there.
struct seal_of_file {
    char     magic[8];
    uint64_t n_bytes;
    uint64_t checksum;
};

constexpr char   MAGIC[9] = "edgekv\1\n";
constexpr size_t PIECE    = 1 << 20;

using file = std::unique_ptr<std::FILE, int (*)(std::FILE *)>;

file open(const std::string & path, const char * how) { return { std::fopen(path.c_str(), how), std::fclose }; }

// the seal that n_bytes from here on should have; with fewer bytes than that, the number says so
seal_of_file seal_for(std::FILE * f, uint64_t n_bytes) {
    seal_of_file seal = {};
    std::memcpy(seal.magic, MAGIC, sizeof(seal.magic));
    const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t *)> state(XXH3_createState(), XXH3_freeState);
    XXH3_64bits_reset(state.get());
    std::vector<char> piece(PIECE);
    while (seal.n_bytes < n_bytes) {
        const size_t n = std::fread(piece.data(), 1, std::min<uint64_t>(PIECE, n_bytes - seal.n_bytes), f);
        if (n == 0) {
            break;
        }
        XXH3_64bits_update(state.get(), piece.data(), n);
        seal.n_bytes += n;
    }
    seal.checksum = XXH3_64bits_digest(state.get());

    return seal;
}

std::string file_of(const std::string & path, const std::string & space) {
    const std::string key = space.substr(0, space.find('/'));
    return key.empty() ? path : path + "." + key;
}

}  // namespace

// no client's name has a colon (fs_validate_filename)
saved_slot::saved_slot(std::string & path, const std::string & shown, const std::string & space)
    : path(file_of(path, space)), aside(path.substr(0, path.rfind('/') + 1) + ":part-" + std::to_string(getpid())), shown(shown) {
    path = aside;
}

saved_slot::~saved_slot() {
    if (!aside.empty()) {
        std::remove(aside.c_str());
    }
}

std::string saved_slot::seal(size_t n_bytes) {
    const auto refused = [&](const char * why) { return "the slot was not saved: " + shown + " cannot be written: " + why; };
    auto f = open(aside, "r+b");
    if (!f) {
        return refused(std::strerror(errno));
    }
    const auto seal = seal_for(f.get(), n_bytes);
    if (seal.n_bytes != n_bytes) {
        return refused("the disk is full or fails");
    }
    std::fseek(f.get(), 0, SEEK_END);
    if (std::fwrite(&seal, sizeof(seal), 1, f.get()) != 1 || std::fflush(f.get()) != 0 || fsync(fileno(f.get())) != 0 ||
        std::rename(aside.c_str(), path.c_str()) != 0) {
        return refused(std::strerror(errno));
    }
    aside.clear();

    return "";
}

std::string broken_slot_file(std::string & path, const std::string & shown, const std::string & space) {
    path = file_of(path, space);
    const std::string wrong = "Unable to restore slot: " + shown;
    const auto f = open(path, "rb");
    if (!f) {
        return wrong + " cannot be read: " + std::strerror(errno);
    }
    seal_of_file kept = {};
    const bool sealed = std::fseek(f.get(), -static_cast<long>(sizeof(kept)), SEEK_END) == 0 && std::fread(&kept, sizeof(kept), 1, f.get()) == 1 &&
                        std::memcmp(kept.magic, MAGIC, sizeof(kept.magic)) == 0;
    const long end = std::ftell(f.get());
    if (!sealed || kept.n_bytes != static_cast<uint64_t>(end) - sizeof(kept)) {
        return wrong + " lacks its end, or this server did not save it; save the slot again";
    }
    std::rewind(f.get());
    if (seal_for(f.get(), kept.n_bytes).checksum != kept.checksum) {
        return wrong + " was changed after it was saved; save the slot again";
    }

    return "";
}

}  // namespace edgekv_server
