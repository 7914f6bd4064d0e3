// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/durable.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "io/json.hpp"

namespace dsakit {
namespace {

Error io_error(const std::string& path, const std::string& got, const std::string& wanted) {
  return Error(Status::io_error, "convert", io::printable(path), "", got, wanted, std::strerror(errno));
}

io::Descriptor opened(const std::string& path, int flags) {
  const int number = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
  if (number < 0) throw io_error(path, "cannot be opened", "a file that can be written");
  return io::Descriptor(number);
}

void sync_folder(const std::string& folder) {
  const io::Descriptor descriptor = opened(folder, O_RDONLY | O_DIRECTORY);
  if (::fsync(descriptor.number()) != 0) throw io_error(folder, "cannot be synced", "a folder that can");
}

}  // namespace

DurableFile::DurableFile(const std::string& folder, const std::string& name)
    : folder_(folder),
      path_(folder + "/" + name),
      partial_(folder + "/." + name + ".partial"),
      descriptor_(opened(partial_, O_WRONLY | O_CREAT | O_TRUNC)) {}

DurableFile::~DurableFile() {
  if (!committed_) ::unlink(partial_.c_str());
}

void DurableFile::fail(const char* what) const { throw io_error(path_, what, "a file that can be written"); }

void DurableFile::write(const void* bytes, std::size_t count) {
  const auto* at = static_cast<const std::byte*>(bytes);
  while (count > 0) {
    const ssize_t n = ::write(descriptor_.number(), at, std::min(count, std::size_t(1) << 30));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(("cannot be written at byte " + std::to_string(written_)).c_str());
    at += n;
    count -= std::size_t(n);
    written_ += std::uint64_t(n);
  }
}

void DurableFile::commit() {
  if (::fsync(descriptor_.number()) != 0) fail("cannot be synced");
  if (std::rename(partial_.c_str(), path_.c_str()) != 0) fail("cannot be renamed");
  committed_ = true;
  sync_folder(folder_);
}

void write_durably(const std::string& folder, const std::string& name, std::string_view text) {
  DurableFile file(folder, name);
  file.write(text);
  file.commit();
}

FolderLock::FolderLock(const std::string& folder)
    : path_(folder + "/.convert.lock"), descriptor_(opened(path_, O_RDWR | O_CREAT)) {
  struct stat status {};
  const bool ours = ::flock(descriptor_.number(), LOCK_EX | LOCK_NB) == 0;
  if (!ours && errno != EWOULDBLOCK) throw io_error(path_, "cannot be locked", "a file system with locks");
  // The process that had it may have ended, and taken the file away, in between.
  if (!ours || ::fstat(descriptor_.number(), &status) != 0 || status.st_nlink == 0)
    throw Error(Status::conflict, "convert", io::printable(folder), "", "is being written by another process",
                "a folder of our own");
}

FolderLock::~FolderLock() { ::unlink(path_.c_str()); }

}  // namespace dsakit
