// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "io/file.hpp"

namespace dsakit {

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
