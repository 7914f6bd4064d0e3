// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "dsakit/error.hpp"

namespace dsakit::io {

/// A regular file, opened without blocking (a FIFO cannot hang us) and read by pread with every length checked: one
/// that changes its size meanwhile is IO_ERROR, never a signal. Nothing is mapped.
class File {
 public:
  explicit File(std::string path);
  ~File();
  File(File&&) noexcept;
  File& operator=(File&&) = delete;

  const std::string& path() const { return path_; }
  std::string name() const;                     // the last part of the path, fit for a message
  std::uint64_t size() const { return size_; }  // when it was opened
  /// Exactly `bytes` bytes from `offset`; that range lies inside size().
  void read(std::uint64_t offset, void* to, std::size_t bytes) const;

 private:
  std::string path_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
};

/// The text of config.json and its like: at most 64 MiB, and found to be one JSON object; anything else is an
/// Error of status `wrong`.
std::string read_json_object(const std::string& path, Status wrong);

/// Whether there is anything under this name.
bool exists(const std::string& path);

/// Bytes that loaded tensors may take: DSAKIT_MEM_LIMIT, or 2^63-1 where it is absent or no positive number.
std::uint64_t memory_limit();

/// OUT_OF_MEMORY if `bytes` is more than `limit`.
void require_memory(const std::string& what, std::uint64_t bytes, std::uint64_t limit);

}  // namespace dsakit::io
