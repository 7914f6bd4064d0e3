// SPDX-License-Identifier: Apache-2.0
#include "io/direct_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "dsakit/error.hpp"

namespace dsakit::io {

DirectFile::DirectFile(const File& file) : file_(file), descriptor_(-1) {
  if (file_.is_in_pieces()) return;
  constexpr int kFlags = O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY;
  descriptor_ = Descriptor(::open(file_.path().c_str(), kFlags | O_DIRECT));
  direct_ = descriptor_.number() >= 0;
  if (!direct_) descriptor_ = Descriptor(::open(file_.path().c_str(), kFlags));
  struct stat status, first;
  if (descriptor_.number() < 0 || ::fstat(descriptor_.number(), &status) != 0 ||
      ::fstat(file_.descriptor(), &first) != 0)
    throw Error(Status::io_error, "load", file_.name(), "", "cannot be opened", "a readable file");
  if (status.st_dev != first.st_dev || status.st_ino != first.st_ino)
    throw Error(Status::io_error, "load", file_.name(), "", "was replaced while it was opened",
                "the file whose header was read");
  changed_ = status.st_mtim;
}

void DirectFile::require_unchanged() const {
  struct stat status;
  if (::fstat(descriptor_.number(), &status) != 0 || std::uint64_t(status.st_size) != file_.size() ||
      status.st_mtim.tv_sec != changed_.tv_sec || status.st_mtim.tv_nsec != changed_.tv_nsec)
    throw Error(Status::io_error, "load", file_.name(), "", "was changed while it was in use",
                "the file that was opened");
}

/// Whole blocks from `begin` on, of which `needed` bytes must come (the file ends within the last one). False where the
/// file system takes no direct reads after all.
bool DirectFile::read_direct(std::uint64_t begin, std::size_t bytes, std::size_t needed, std::byte* to) const {
  std::size_t done = 0;
  while (done < needed) {
    const ssize_t n = ::pread(descriptor_.number(), to + done, bytes - done, off_t(begin + done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0 || (std::size_t(n) % kBlock != 0 && done + std::size_t(n) < needed)) return false;
    done += std::size_t(n);
  }
  return true;
}

const std::byte* DirectFile::read(std::uint64_t offset, std::size_t bytes, std::byte* buffer) const {
  if (file_.is_in_pieces()) {
    file_.read(offset, buffer, bytes);
    return buffer;
  }
  require_unchanged();
  const std::uint64_t begin = offset / kBlock * kBlock, before = offset - begin;
  const std::size_t blocks = (before + bytes + kBlock - 1) / kBlock * kBlock;
  if (direct_ && read_direct(begin, blocks, before + bytes, buffer)) return buffer + before;
  file_.read(offset, buffer, bytes);  // says what is wrong, if it is more than the kind of read
  ::posix_fadvise(descriptor_.number(), off_t(offset), off_t(bytes), POSIX_FADV_DONTNEED);
  return buffer;
}

}  // namespace dsakit::io
