// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/folder_lock.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "io/durable.hpp"
#include "io/json.hpp"

namespace dsakit {

FolderLock::FolderLock(const std::string& folder)
    : path_(folder + "/.convert.lock"), descriptor_(io::opened(path_, O_RDWR | O_CREAT, "convert")) {
  struct stat status {};
  const bool ours = ::flock(descriptor_.number(), LOCK_EX | LOCK_NB) == 0;
  if (!ours && errno != EWOULDBLOCK) throw Error(Status::io_error, "convert", io::printable(path_), "", "cannot be locked", "a file system with locks",
                std::strerror(errno));
  // The process that had it may have ended, and taken the file away, in between.
  if (!ours || ::fstat(descriptor_.number(), &status) != 0 || status.st_nlink == 0)
    throw Error(Status::conflict, "convert", io::printable(folder), "", "is being written by another process",
                "a folder of our own");
}

FolderLock::~FolderLock() { ::unlink(path_.c_str()); }

}  // namespace dsakit
