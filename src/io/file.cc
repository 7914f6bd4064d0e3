// SPDX-License-Identifier: Apache-2.0
#include "io/file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "io/json.hpp"

namespace dsakit::io {
namespace {

constexpr std::uint64_t kMaxText = 64ull << 20;
constexpr int kMaxDepth = 64;  // configurations nest about 6 deep

[[noreturn]] void fail(const std::string& path, const std::string& got, const std::string& wanted, int error = 0) {
  throw Error(Status::io_error, "load", printable(path), "", got, wanted, error ? std::strerror(error) : "");
}

}  // namespace

File::File(std::string path) : path_(std::move(path)) {
  if (path_.find('\0') != std::string::npos)
    throw Error(Status::invalid_path, "load", printable(path_), "", "holds a NUL", "the name of a file");
  do {
    descriptor_ = ::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
  } while (descriptor_ < 0 && errno == EINTR);
  if (descriptor_ < 0) fail(path_, "cannot be opened", "a readable file", errno);
  struct stat status;
  const int error = ::fstat(descriptor_, &status) == 0 ? 0 : errno;
  if (error != 0 || !S_ISREG(status.st_mode)) {
    ::close(descriptor_);
    fail(path_,
         error                     ? "cannot be examined"
         : S_ISDIR(status.st_mode) ? "is a directory"
                                   : "is a pipe or a device",
         "a regular file", error);
  }
  size_ = static_cast<std::uint64_t>(status.st_size);
}

File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

File::File(File&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)), size_(other.size_) {}

std::string File::name() const { return printable(path_.substr(path_.find_last_of('/') + 1)); }

void File::read(std::uint64_t offset, void* to, std::size_t bytes) const {
  auto* at = static_cast<std::byte*>(to);
  while (bytes > 0) {
    // Linux reads at most 2 GiB - 4 KiB at a time
    const ssize_t n = ::pread(descriptor_, at, std::min(bytes, std::size_t(1) << 30), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0)
      fail(path_, "cannot be read at byte " + std::to_string(offset), "its " + std::to_string(size_) + " bytes", errno);
    if (n == 0)
      fail(path_, "ends at byte " + std::to_string(offset),
           "the " + std::to_string(size_) + " bytes it had when opened");
    at += n;
    offset += static_cast<std::uint64_t>(n);
    bytes -= static_cast<std::size_t>(n);
  }
  struct stat status;
  if (::fstat(descriptor_, &status) != 0 || static_cast<std::uint64_t>(status.st_size) != size_)
    fail(path_, "changed its size while it was read", "the " + std::to_string(size_) + " bytes it had when opened");
}

std::string read_json_object(const std::string& path, Status wrong) {
  const File file(path);
  const auto refuse = [&](const std::string& got, const std::string& wanted) {
    throw Error(wrong, "load", file.name(), "", got, wanted);
  };
  if (file.size() > kMaxText)
    refuse("has " + std::to_string(file.size()) + " bytes", "at most " + std::to_string(kMaxText));
  std::string text(file.size(), '\0');
  file.read(0, text.data(), text.size());
  if (const auto fault = find_json_fault(text, kMaxDepth)) refuse(fault->got, fault->wanted);
  if (!Json(text).is_object()) refuse("is " + printable(Json(text).text()), "one JSON object");
  return text;
}

bool exists(const std::string& path) {
  struct stat status;
  return ::lstat(path.c_str(), &status) == 0;
}

std::uint64_t memory_limit() {
  const char* text = std::getenv("DSAKIT_MEM_LIMIT");
  const long long value = text ? std::strtoll(text, nullptr, 10) : 0;
  return value > 0 ? static_cast<std::uint64_t>(value) : INT64_MAX;
}

void require_memory(const std::string& what, std::uint64_t bytes, std::uint64_t limit) {
  if (bytes > limit)
    throw Error(Status::out_of_memory, "load", what, "", "needs " + std::to_string(bytes) + " bytes",
                "at most " + std::to_string(limit), "DSAKIT_MEM_LIMIT");
}

}  // namespace dsakit::io
