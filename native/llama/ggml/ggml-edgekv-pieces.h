// Copies of rows that were pinned part by part (patches/core/0023-pinned-parts.patch): CUDA refuses a copy that leaves what one call pinned.
#pragma once

#include "ggml-backend.h"

#include <cstddef>

#define EDGEKV_PIECES_API __attribute__((visibility("default")))

// Of n_bytes of a buffer from p on: how many are pinned together, or not at all. n_bytes: all, as of each other buffer.
using edgekv_pieces = size_t (*)(ggml_backend_buffer_t buffer, const void * p, size_t n_bytes);
EDGEKV_PIECES_API void edgekv_set_pieces(edgekv_pieces pieces);

// Copies a tensor of host memory into `dst`, which may lie on a device, piece by piece. false: it is one piece, and nothing was copied.
EDGEKV_PIECES_API bool edgekv_copy_pieces(const ggml_tensor * src, ggml_tensor * dst);
