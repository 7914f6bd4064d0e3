// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "io/file.hpp"

namespace dsakit::io {

/// A file of a folder that is there whole or not at all: it is written as .NAME.partial, synced and renamed, and the
/// folder is synced. Whatever fails is IO_ERROR of `operation` and leaves nothing behind; a process that is killed before
/// commit() leaves the partial file. What is there and no regular file, a device for instance, is not replaced.
class DurableFile {
 public:
  DurableFile(const std::string& folder, const std::string& name, const char* operation);
  ~DurableFile();
  DurableFile(const DurableFile&) = delete;
  DurableFile& operator=(const DurableFile&) = delete;

  void write(const void* bytes, std::size_t count);
  void write(std::string_view text) { write(text.data(), text.size()); }
  /// Unsynced: whole in the eyes of other processes, whatever becomes of this one, but not of the machine.
  enum class Sync { no, yes };
  void commit(Sync = Sync::yes);

 private:
  [[noreturn]] void fail(const char* what) const;
  void forget_partial();

  std::string folder_, path_, partial_;
  const char* operation_;
  std::uint64_t written_ = 0;
  Descriptor descriptor_;
  int place_ = -1;  // among the partial files of the process
  bool committed_ = false;
};

/// For the handler of a signal that ends the process: it leaves no partial file. Whoever is at one then waits for the end.
void remove_partial_files() noexcept;

void write_durably(const std::string& folder, const std::string& name, std::string_view text, const char* operation);

/// An open descriptor, or IO_ERROR of `operation`.
Descriptor opened(const std::string& path, int flags, const char* operation);

}  // namespace dsakit::io
