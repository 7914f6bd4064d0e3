// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dsakit/tensor.hpp"
#include "io/aligned_array.hpp"
#include "io/file.hpp"

namespace dsakit::io {

/// One element type of the format.
struct FileDType {
  const char* name;  // as the file spells it
  int bits;
  DType dtype;  // `other` where Tensor has none: loadable as bytes only
};

/// One tensor of a file.
struct FileTensor {
  std::string name;
  const FileDType* type;
  int rank;
  std::array<std::int64_t, 8> shape;
  std::uint64_t begin, end;  // bytes, from the start of the data section

  std::uint64_t bytes() const { return end - begin; }
};

/// "[1536, 7168]"
std::string shape_text(const std::int64_t* shape, int rank);

/// A safetensors file whose header has been read and believed. The constructor refuses, as INVALID_FILE with the reason
/// in Error::reason, what tests/corpus/make_bad_safetensors.py lists, in that order; everything after it may rely on
/// it: ranges tile the data section, sizes fit shapes, names are unique. Opening reads the header only. A file in
/// pieces may lack tensors, but not its header.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);

  const File& file() const { return file_; }
  const std::deque<FileTensor>& tensors() const { return tensors_; }  // in header order
  const FileTensor* find(std::string_view name) const;
  std::uint64_t data_start() const { return data_start_; }
  std::uint64_t data_bytes() const { return data_bytes_; }
  bool has(const FileTensor& tensor) const { return file_.has(data_start_ + tensor.begin, tensor.bytes()); }
  std::map<std::string, std::string> metadata() const;

  /// Where a tensor begins in the file.
  std::uint64_t position(const FileTensor& tensor) const { return data_start_ + tensor.begin; }
  /// Bytes [offset, offset + bytes) of a tensor of this file.
  void read(const FileTensor& tensor, std::uint64_t offset, void* to, std::size_t bytes) const;
  AlignedArray<std::byte> read(const FileTensor& tensor) const;
  /// For those who will read everything: OUT_OF_MEMORY before anything is allocated, if it is more than the limit.
  void require_memory_for_all() const { require_memory(file_.name(), data_bytes(), memory_limit()); }

 private:
  void read_header(std::string_view header);
  void check_tiling();

  File file_;
  std::uint64_t data_start_ = 0, data_bytes_ = 0;
  std::deque<FileTensor> tensors_;      // a deque grows without copying: headers may have 100 MB
  std::vector<std::uint32_t> by_name_;  // places in tensors_
  std::string metadata_;                // the text of __metadata__
};

/// Length of the header that the first 8 bytes tell; they are here, the header need not be. One that cannot be is
/// INVALID_FILE.
std::uint64_t safetensors_header_length(const File& file);

/// One tensor to write: its bytes are dense and row-major.
struct TensorToWrite {
  std::string name;
  const FileDType* type;
  int rank;
  std::array<std::int64_t, 8> shape;
  const void* data;

  std::uint64_t bytes() const;
};

/// The type of the format that holds `dtype`, which is not `other`.
const FileDType& file_dtype_of(DType dtype);

/// What stands in front of the data, the length word included: the tensors follow one after the other.
std::string safetensors_header(const std::vector<TensorToWrite>& tensors,
                               const std::map<std::string, std::string>& metadata);

/// Writes contiguous tensors in the given order; an existing file is replaced.
void write_safetensors(const std::string& path, const std::vector<std::pair<std::string, Tensor>>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace dsakit::io
