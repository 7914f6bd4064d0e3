// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <memory>

#include "io/file.hpp"

namespace dsakit::io {

/// Large reads of a file that is opened once more, past the page cache: with O_DIRECT where the file system has it, else
/// what was read is dropped from the cache. A file that is no longer the one that was opened (size or time of change) is
/// IO_ERROR. Of a file in pieces: plain reads. Any thread may read.
class DirectFile {
 public:
  explicit DirectFile(const File& file);

  /// A buffer for reads of up to `bytes` bytes.
  static std::size_t buffer_bytes(std::size_t bytes) { return (bytes + 3 * kBlock - 1) / kBlock * kBlock; }
  static constexpr std::size_t kBlock = 4096;  // offsets, lengths and addresses of direct reads are multiples

  /// Bytes [offset, offset + bytes), somewhere in `buffer`, which begins at a multiple of kBlock.
  const std::byte* read(std::uint64_t offset, std::size_t bytes, std::byte* buffer) const;

 private:
  bool read_direct(std::uint64_t begin, std::size_t bytes, std::size_t needed, std::byte* to) const;
  void require_unchanged() const;

  const File& file_;
  Descriptor descriptor_;
  bool direct_ = false;
  timespec changed_{};
};

}  // namespace dsakit::io
