// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace dsakit::io {

/// Token ids from a file: one-dimensional integers of any width, as numpy writes them (.npy), or the tensor `input_ids`
/// of a safetensors file, [T] or [1, T]. Another file is INVALID_FILE; an id that is not in 0..vocab_size-1,
/// INVALID_VALUE with its position.
std::vector<std::int32_t> read_tokens(const std::string& path, std::int64_t vocab_size);

/// Hidden states [T, width], T > 0, from a file: float32 as numpy writes them (.npy), or the tensor `hidden` of a
/// safetensors file in BF16, F16 or F32. Another file is INVALID_FILE; a NaN or an infinity, INVALID_VALUE with its
/// position.
std::vector<float> read_hidden(const std::string& path, std::int64_t width);

}  // namespace dsakit::io
