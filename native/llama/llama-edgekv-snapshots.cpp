// Snapshots: a sequence's windows of sliding layers and its recurrent states, or the whole sequence, read and put back by llama.cpp's own code
// for states. A snapshot holds the windows' number of bytes, the windows, the states, then the whole sequence; parts may be absent.
#include "llama-edgekv-access.h"

#include "llama-impl.h"
#include "llama-io.h"

#include <cstring>
#include <stdexcept>
#include <vector>

namespace {

// counts all bytes; copies those that have room
class writer : public llama_io_write_i {
public:
    writer(char * out, size_t capacity) : out(out), capacity(capacity) {}

    void write(const void * src, size_t size) override {
        if (char * to = next(size)) {
            std::memcpy(to, src, size);
        }
    }

    void write_tensor(ggml_tensor * tensor, size_t offset, size_t size) override {
        if (char * to = next(size)) {
            ggml_backend_tensor_get(tensor, to, offset, size);
        }
    }

    size_t n_bytes() override { return n; }

    // leaves out the next bytes, which must be whole writes
    void leave_out(size_t size) { n_left_out = size; }
    void take_back(size_t size) { n -= size; }

private:
    char * next(size_t size) {
        if (n_left_out > 0) {
            n_left_out -= size;
            return nullptr;
        }
        n += size;
        return out && n <= capacity ? out + n - size : nullptr;
    }

    char * out;
    size_t capacity;
    size_t n = 0;
    size_t n_left_out = 0;
};

class reader : public llama_io_read_i {
public:
    reader(const char * bytes, size_t n) : bytes(bytes), size(n) {}

    void read(void * dst, size_t n_read) override { std::memcpy(dst, next(n_read), n_read); }

    void read_tensor(ggml_tensor * tensor, size_t offset, size_t n_read) override {
        ggml_backend_tensor_set(tensor, next(n_read), offset, n_read);
    }

    size_t n_bytes() override { return n; }

private:
    const char * next(size_t n_read) {
        if (n_read > size - n) {
            throw std::runtime_error("a snapshot is too short");
        }
        n += n_read;
        return bytes + n - n_read;
    }

    const char * bytes;
    size_t size;
    size_t n = 0;
};

// A cache writes its number of streams and each stream's number of cells, 0 except for the sequence's stream: counts before and after its cells.
struct stream_counts {
    stream_counts(const llama_kv_cache & kv, int seq_id) : n(kv.get_n_stream()), before(sizeof(n) + kv.get_stream(seq_id)*sizeof(uint32_t)),
        behind((n - kv.get_stream(seq_id) - 1)*sizeof(uint32_t)) {}

    uint32_t n;
    size_t before;
    size_t behind;
};

// the memories that a context's snapshot reads; null: not part of it
struct snapshot_parts : llama_edgekv_besides {
    explicit snapshot_parts(llama_context * lctx) : llama_edgekv_besides(llama_edgekv_access::besides(lctx)) {
        if (llama_edgekv_what_is_kept(lctx) == LLAMA_EDGEKV_KEEPS_WHOLE) {
            windows = nullptr;
            states  = nullptr;
            all     = lctx->get_memory();
        }
    }

    llama_memory_i * all = nullptr;
};

}  // namespace

size_t llama_edgekv_get_snapshot(llama_context * lctx, int seq_id, void * out, size_t capacity) {
    if (!llama_edgekv_keeps_snapshots(lctx) || !llama_edgekv_access::has_sequence(lctx, seq_id)) {
        return 0;
    }
    lctx->synchronize();
    const snapshot_parts parts(lctx);
    writer snapshot(static_cast<char *>(out), capacity);
    uint64_t n_windows = 0;
    snapshot.write(&n_windows, sizeof(n_windows));
    if (parts.windows) {
        const stream_counts counts(*parts.windows, seq_id);
        snapshot.leave_out(counts.before);
        parts.windows->state_write(snapshot, seq_id, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY);
        snapshot.take_back(counts.behind);
        n_windows = snapshot.n_bytes() - sizeof(n_windows);
        if (out && capacity >= sizeof(n_windows)) {
            std::memcpy(out, &n_windows, sizeof(n_windows));
        }
    }
    if (parts.states) {
        parts.states->state_write(snapshot, seq_id, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY);
    }
    if (parts.all) {
        parts.all->state_write(snapshot, seq_id, LLAMA_STATE_SEQ_FLAGS_NONE);
    }

    return snapshot.n_bytes();
}

static void put_in(const snapshot_parts & parts, int seq_id, const char * bytes, size_t n_bytes) {
    reader snapshot(bytes, n_bytes);
    uint64_t n_windows = 0;
    snapshot.read(&n_windows, sizeof(n_windows));
    if (n_windows > n_bytes - sizeof(n_windows) || (n_windows > 0) != (parts.windows != nullptr)) {
        throw std::runtime_error("a snapshot is of another model");
    }
    if (parts.windows) {
        const stream_counts counts(*parts.windows, seq_id);
        std::vector<char> windows(counts.before + n_windows + counts.behind);
        std::memcpy(windows.data(), &counts.n, sizeof(counts.n));
        snapshot.read(windows.data() + counts.before, n_windows);
        reader all(windows.data(), windows.size());
        parts.windows->state_read(all, seq_id, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY);
    }
    if (parts.states) {
        parts.states->state_read(snapshot, seq_id, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY);
    }
    if (parts.all) {
        parts.all->state_read(snapshot, seq_id, LLAMA_STATE_SEQ_FLAGS_NONE);
    }
}

bool llama_edgekv_set_snapshot(llama_context * lctx, int seq_id, int position, const void * bytes, size_t n_bytes) {
    if (!llama_edgekv_keeps_snapshots(lctx) || !llama_edgekv_access::has_sequence(lctx, seq_id)) {
        return false;
    }
    lctx->synchronize();
    auto * memory = lctx->get_memory();
    bool ok = false;
    try {
        llama_edgekv_remove_cells(lctx, seq_id, position);
        put_in(snapshot_parts(lctx), seq_id, static_cast<const char *>(bytes), n_bytes);
        ok = memory->seq_pos_max(seq_id) == position - 1;
    } catch (const std::exception & error) {
        LLAMA_LOG_ERROR("%s: %s\n", __func__, error.what());
    }
    if (!ok) {
        memory->seq_rm(seq_id, -1, -1);
    }

    return ok;
}
