// SPDX-License-Identifier: Apache-2.0
#include "io/durable.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iterator>

#include "io/json.hpp"

namespace dsakit::io {
namespace {

Error io_error(const char* operation, const std::string& path, const std::string& got, const std::string& wanted) {
  return Error(Status::io_error, operation, printable(path), "", got, wanted, std::strerror(errno));
}

void sync_folder(const std::string& folder, const char* operation) {
  const Descriptor descriptor = opened(folder, O_RDONLY | O_DIRECTORY, operation);
  if (::fsync(descriptor.number()) != 0) throw io_error(operation, folder, "cannot be synced", "a folder that can");
}

/// Those of the process, as far as there is room, which there is: few threads write at a time.
std::atomic<const char*> partial_files[64];
constexpr char kRemoved = 0;  // its address

}  // namespace

void remove_partial_files() noexcept {
  for (std::atomic<const char*>& path : partial_files)
    if (const char* name = path.exchange(&kRemoved); name && name != &kRemoved) ::unlink(name);
}

void DurableFile::forget_partial() {
  const char* mine = partial_.c_str();
  if (place_ < 0 || partial_files[place_].compare_exchange_strong(mine, nullptr)) return;
  for (;;) ::pause();  // its name is in use
}

Descriptor opened(const std::string& path, int flags, const char* operation) {
  const int number = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
  if (number < 0) throw io_error(operation, path, "cannot be opened", "a file that can be written");
  return Descriptor(number);
}

DurableFile::DurableFile(const std::string& folder, const std::string& name, const char* operation)
    : folder_(folder),
      path_(folder + "/" + name),
      partial_(folder + "/." + name + ".partial"),
      operation_(operation),
      descriptor_(-1) {
  struct stat status;
  if (::stat(path_.c_str(), &status) == 0 && !S_ISREG(status.st_mode))
    throw Error(Status::io_error, operation, printable(path_), "", "is a directory, a pipe or a device",
                "a file that can be written");
  for (int i = 0; place_ < 0 && i < int(std::size(partial_files)); ++i)
    if (const char* nothing = nullptr; partial_files[i].compare_exchange_strong(nothing, partial_.c_str())) place_ = i;
  try {
    descriptor_ = opened(partial_, O_WRONLY | O_CREAT | O_TRUNC, operation);
  } catch (...) {
    forget_partial();
    throw;
  }
}

DurableFile::~DurableFile() {
  if (!committed_) ::unlink(partial_.c_str());
  forget_partial();
}

void DurableFile::fail(const char* what) const { throw io_error(operation_, path_, what, "a file that can be written"); }

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

void DurableFile::commit(Sync sync) {
  if (sync == Sync::yes && ::fsync(descriptor_.number()) != 0) fail("cannot be synced");
  if (std::rename(partial_.c_str(), path_.c_str()) != 0) fail("cannot be renamed");
  committed_ = true;
  if (sync == Sync::yes) sync_folder(folder_, operation_);
}

void write_durably(const std::string& folder, const std::string& name, std::string_view text, const char* operation) {
  DurableFile file(folder, name, operation);
  file.write(text);
  file.commit();
}

}  // namespace dsakit::io
