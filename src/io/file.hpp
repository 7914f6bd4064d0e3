// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "dsakit/error.hpp"

namespace dsakit::io {

/// An open file, closed with its owner.
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  int number() const { return number_; }

 private:
  int number_;
};

/// A regular file, opened without blocking (a FIFO cannot hang us) and read by pread with every length checked: one
/// that changes its size meanwhile is IO_ERROR, never a signal. Nothing is mapped.
///
/// Where there is no file PATH but a folder PATH.parts, the file is what has been fetched of it: each regular file
/// BEGIN-END of the folder is its bytes BEGIN .. END - 1. Other names in there are none of ours.
class File {
 public:
  explicit File(std::string path);

  const std::string& path() const { return path_; }
  std::string name() const;  // the last part of the path, fit for a message
  /// When it was opened; of a file in pieces, the end of the last one.
  std::uint64_t size() const { return size_; }
  bool is_in_pieces() const { return in_pieces_; }
  /// Of a file that is not.
  int descriptor() const { return pieces_[0].descriptor.number(); }
  /// Whether bytes [offset, offset + bytes) are here.
  bool has(std::uint64_t offset, std::uint64_t bytes) const;
  /// Exactly `bytes` bytes from `offset`, which are here.
  void read(std::uint64_t offset, void* to, std::size_t bytes) const;

 private:
  struct Piece {
    std::string path;
    std::uint64_t begin, end;
    Descriptor descriptor;
  };
  static Piece opened(const std::string& path);
  void open_pieces();
  const Piece* piece_at(std::uint64_t offset) const;

  std::string path_;
  std::vector<Piece> pieces_;  // one, or those of a folder by where they begin
  bool in_pieces_ = false;
  std::uint64_t size_ = 0;
};

/// Whether there is a file of this path, whole or in pieces.
bool file_exists(const std::string& path);

/// All of a small file.
std::string text_of(const std::string& path);

/// The text of config.json and its like: at most 64 MiB, and found to be one JSON object; anything else is an
/// Error of status `wrong`.
std::string read_json_object(const std::string& path, Status wrong);

/// Whether there is anything under this name.
bool exists(const std::string& path);

/// Bytes that loaded tensors may take: DSAKIT_MEM_LIMIT, or 2^63-1 where it is absent or no positive number.
std::uint64_t memory_limit();

/// OUT_OF_MEMORY of `op` if `bytes` is more than `limit`.
void require_memory(const std::string& what, std::uint64_t bytes, std::uint64_t limit, const char* op = "load");

}  // namespace dsakit::io
