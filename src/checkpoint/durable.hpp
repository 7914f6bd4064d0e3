// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "io/file.hpp"

namespace dsakit {

/// A file of a folder that is there whole or not at all: it is written as .NAME.partial, synced and renamed, and the
/// folder is synced. Whatever fails is IO_ERROR and leaves nothing behind; a process that ends before commit() leaves
/// the partial file.
class DurableFile {
 public:
  DurableFile(const std::string& folder, const std::string& name);
  ~DurableFile();
  DurableFile(const DurableFile&) = delete;
  DurableFile& operator=(const DurableFile&) = delete;

  void write(const void* bytes, std::size_t count);
  void write(std::string_view text) { write(text.data(), text.size()); }
  void commit();

 private:
  [[noreturn]] void fail(const char* what) const;

  std::string folder_, path_, partial_;
  std::uint64_t written_ = 0;
  io::Descriptor descriptor_;
  bool committed_ = false;
};

void write_durably(const std::string& folder, const std::string& name, std::string_view text);

/// The folder is ours alone while this lives: a lock on its file .convert.lock, which goes with it. Another process
/// that has it is CONFLICT.
class FolderLock {
 public:
  explicit FolderLock(const std::string& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  std::string path_;
  io::Descriptor descriptor_;
};

}  // namespace dsakit
