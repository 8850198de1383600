"""Faults of the native code and of the patches. Their numbers are those of their lines here: add new ones at the end."""

from .fault import Fault

KERNELS, HOST, PAGES = "native/src/kernels/", "native/src/attention/cpu/", "native/src/cache/"
SERVER, CUDA = "native/server/", "native/cuda/kernels/"

NATIVE = [
    # kernels
    Fault("attend-no-sink-in-sum", "attend", KERNELS + "decode/attend_merge.h", "p.sinks != nullptr && top > -INFINITY ? expf(p.sinks[head] - top) : 0.0f",
          "0.0f"),
    Fault("attend-sum-not-rescaled", "attend", KERNELS + "decode/attend_softmax.h", "*state[r].sum * factor[r]", "*state[r].sum"),
    Fault("attend-counter-kept", "attend", KERNELS + "decode/attend.cpp", "header[1].store(0, std::memory_order_relaxed);", ""),
    Fault("attend-small-workspace", "attend", KERNELS + "decode/attend.cpp", "static_cast<size_t>(n_threads) * plan.partial_bytes",
          "static_cast<size_t>(n_threads - 1) * plan.partial_bytes"),
    Fault("prompt-mass-one-page-off", "prompt", KERNELS + "prefill/prompt_mass.h",
          "static_cast<size_t>(s.item.head) * s.p.mass_stride + static_cast<size_t>(page)",
          "static_cast<size_t>(s.item.head) * s.p.mass_stride + static_cast<size_t>(page > 0 ? page - 1 : 0)"),
    Fault("prompt-mass-sign", "prompt", KERNELS + "prefill/prompt_mass.h", "top = x > top ? x : top;", "top = x < top ? x : top;"),
    Fault("sketch-reach-of-negatives", "sketch", KERNELS + "sketch/sketch_build.h", "Simd::max(reach, magnitude(Simd::load(low + i)))",
          "Simd::max(reach, Simd::load(low + i))"),
    Fault("sketch-last-key-left-out", "sketch", KERNELS + "sketch/sketch_build.h", "valid & (valid - 1)", "valid & (valid - 1) & ~(uint64_t{1} << 63)"),
    Fault("select-exact-bound", "select", KERNELS + "select/draw.h", "n_cells <= exact_tokens", "n_cells < exact_tokens"),
    Fault("select-certain-not-read", "select", KERNELS + "select/sample_kernel.h", "visible & p.sight[group].certain", "uint64_t{0}"),
    Fault("select-shares-not-divided", "select", KERNELS + "select/sample_kernel.h", "p.resolution / static_cast<float>(p.group) * (1 << kChanceBits) / total",
          "p.resolution * (1 << kChanceBits) / total"),
    Fault("products-wrong-row", "products", KERNELS + "matmul/products_unpack.h", "(r + 4 * group) % 8 * 8", "(r + 4 * group) % 4 * 8"),
    # pages
    Fault("pages-stale-not-marked", "pages", PAGES + "cells.cpp", "stale.mark(stream, c / kGroupCells);", ""),
    Fault("pages-oldest-not-kept", "pages", PAGES + "cells.cpp", "page_oldest[id] = oldest;", ""),
    Fault("pages-undrop-not-counted", "pages", PAGES + "drops.cpp", "total                    -= one;", ""),
    Fault("pages-last-pinned-page", "pages", PAGES + "pins.cpp", "cells.pos[c] / dims.page_tokens <= span.last / dims.page_tokens",
          "cells.pos[c] / dims.page_tokens < span.last / dims.page_tokens"),
    Fault("pages-row-not-forgotten", "pages", PAGES + "row_cache.cpp", "*entry = {};", ""),
    # plane, state, context
    Fault("plane-disk-row-of-head-0", "disk", HOST + "disk_rows.cpp", "(static_cast<uint64_t>(stream) * n_heads + head) * ctx.shape.n_cells + cell",
          "static_cast<uint64_t>(stream) * n_heads * ctx.shape.n_cells + cell"),
    Fault("state-arrivals-one-layer-early", "state", "native/src/state/arrivals.cpp", "layer < end.load(std::memory_order_acquire)",
          "layer <= end.load(std::memory_order_acquire)"),
    Fault("state-arrivals-without-lock", "state", "native/src/state/arrivals.cpp", "std::lock_guard<std::mutex> lock(mutex);",
          "std::unique_lock<std::mutex> lock(mutex, std::defer_lock); if (!PLANTED) { lock.lock(); }"),
    Fault("state-sums-not-reset", "state", "native/src/state/ubatch.cpp", "pending   = {};", ""),
    Fault("context-selection-forgotten", "context", "native/src/context/context.cpp", "params.selection = selection;", ""),
    # glue: core
    Fault("glue-gaps-sign", "gaps", "native/llama/llama-edgekv-gaps.cpp", "closed.add(first, p - rotated);", "closed.add(first, rotated - p);"),
    Fault("glue-labels-not-loaded", "glue", "native/llama/llama-edgekv-cells.cpp", "to.edgekv_clock.labels[cells[i]] |= saved[i].labels;", ""),
    Fault("glue-snapshot-not-checked", "glue", "native/llama/llama-edgekv-snapshots.cpp", "ok = memory->seq_pos_max(seq_id) == position - 1;", "ok = true;"),
    Fault("glue-held-cell-not-waited-for", "glue", "native/llama/llama-edgekv-cells.cpp",
          "llama_edgekv_access::cells(*kv, stream).edgekv_clock.wait_for(cells[i]);", ""),
    # glue: server
    Fault("server-one-place-more", "server", SERVER + "scheduling/limits.cpp", "static_cast<int64_t>(s.places.size()) >= most",
          "static_cast<int64_t>(s.places.size()) > most"),
    Fault("server-place-not-left", "server", SERVER + "scheduling/limits.cpp", "s.places.erase(place);", ""),
    Fault("server-busy-is-500", "server", SERVER + "scheduling/requests.cpp", "format_error_response(why, ERROR_TYPE_UNAVAILABLE)",
          "format_error_response(why, ERROR_TYPE_SERVER)"),
    Fault("server-empty-key", "keys", SERVER + "scheduling/requests.cpp", "key.size() == given.size() ? 0 : 1", "0"),
    Fault("server-token-past-the-end", "fields", SERVER + "http/bias.cpp", "id >= llama_vocab_n_tokens(vocab)", "id > llama_vocab_n_tokens(vocab)"),
    Fault("server-usage-counts-twice", "fields", SERVER + "http/answers.cpp", "i % n_each == 0", "true"),
    Fault("server-batch-without-answers", "pace", SERVER + "scheduling/pace.cpp", "std::min(n_prompt, n_batch - n_answers)", "std::min(n_prompt, n_batch)"),
    Fault("server-changed-slot-file", "slot files", SERVER + "prefix_cache/slot_files.cpp",
          "seal_for(f.get(), kept.n_bytes).checksum != kept.checksum", "false"),
    Fault("server-cut-not-told", "fields", SERVER + "chat/cut.cpp", 'response["status"]             = "incomplete";', ""),
    Fault("server-suffix-begins-late", "fields", SERVER + "http/infill.cpp", "std::max(n_here/4, n_here - n_prefix)", "std::min(n_here/4, n_here - n_prefix)"),
    # api
    Fault("api-sequence-past-the-end", "api", "native/src/api/context_calls.cpp", "(n_seq > 0 && seq_ids[i] >= n_seq)", "(n_seq > 0 && seq_ids[i] > n_seq)"),
    Fault("api-share-above-one", "api", "native/src/api/pages.cpp", "s.share >= 0.0f && s.share <= 1.0f", "s.share >= 0.0f"),
    # kernels of the device
    Fault("cuda-hot-row-kept", "cuda hot rows", CUDA + "hot_rows.cuh", "atomicExch(places + i, 0ull);", ""),
    Fault("cuda-no-sink-in-sum", "cuda attend", CUDA + "attend_final.cuh", "sum += sink > -INFINITY ? __expf(sink - max) : 0.0f;", ""),
    Fault("cuda-recent-page-hidden", "cuda sight", CUDA + "sight_device.cu", "other >= recent", "other > recent"),
    # patches
    Fault("patch-groups-not-whole", "one cache", "patches/core/0017-whole-groups.patch", "if (llama_edgekv_place(*this, ubatch, res.idxs[s])) {",
          "if (!PLANTED && llama_edgekv_place(*this, ubatch, res.idxs[s])) {"),
    Fault("patch-gaps-not-closed", "gaps", "patches/core/0016-closed-gaps.patch", "llama_edgekv_close_gaps(this, balloc->get_batch());", ""),
    Fault("patch-broken-slot-file-is-500", "slot files", "patches/server/0026-slot-files.patch", "send_error(task, edgekv_why, ERROR_TYPE_INVALID_REQUEST)",
          "send_error(task, edgekv_why, ERROR_TYPE_SERVER)"),
]
