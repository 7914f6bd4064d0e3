// SPDX-License-Identifier: Apache-2.0
#include "io/file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>

#include "core/environment.hpp"
#include "io/json.hpp"

namespace dsakit::io {
namespace {

constexpr std::uint64_t kMaxText = 64ull << 20;
constexpr int kMaxDepth = 64;  // configurations nest about 6 deep
constexpr char kParts[] = ".parts";

[[noreturn]] void fail(const std::string& path, const std::string& got, const std::string& wanted, int error = 0) {
  throw Error(Status::io_error, "load", printable(path), "", got, wanted, error ? std::strerror(error) : "");
}

/// Begin and end of "BEGIN-END"; nothing for another name.
std::optional<std::pair<std::uint64_t, std::uint64_t>> piece_range(const std::string& name) {
  std::uint64_t begin = 0, end = 0;
  const char *const first = name.data(), *const last = first + name.size();
  const auto a = std::from_chars(first, last, begin);
  if (a.ec != std::errc() || a.ptr == last || *a.ptr != '-') return {};
  const auto b = std::from_chars(a.ptr + 1, last, end);
  if (b.ec != std::errc() || b.ptr != last || end <= begin || end > INT64_MAX) return {};
  return std::pair(begin, end);
}

}  // namespace

Descriptor::~Descriptor() {
  if (number_ >= 0) ::close(number_);
}

File::Piece File::opened(const std::string& path) {
  int number;
  do {
    number = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
  } while (number < 0 && errno == EINTR);
  if (number < 0) fail(path, "cannot be opened", "a readable file", errno);
  Descriptor descriptor(number);
  struct stat status;
  const int error = ::fstat(number, &status) == 0 ? 0 : errno;
  if (error != 0 || !S_ISREG(status.st_mode))
    fail(path,
         error                     ? "cannot be examined"
         : S_ISDIR(status.st_mode) ? "is a directory"
                                   : "is a pipe or a device",
         "a regular file", error);
  return {path, 0, static_cast<std::uint64_t>(status.st_size), std::move(descriptor)};
}

File::File(std::string path) : path_(std::move(path)) {
  if (path_.find('\0') != std::string::npos)
    throw Error(Status::invalid_path, "load", printable(path_), "", "holds a NUL", "the name of a file");
  in_pieces_ = !exists(path_) && exists(path_ + kParts);
  if (in_pieces_) open_pieces();
  else pieces_.push_back(opened(path_));
  for (const Piece& piece : pieces_) size_ = std::max(size_, piece.end);
}

void File::open_pieces() {
  namespace fs = std::filesystem;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(path_ + kParts, error)) {
    const std::string range = entry.path().filename().string();
    const auto named = piece_range(range);
    if (!named) continue;
    Piece piece = opened(entry.path().string());
    const std::uint64_t size = piece.end, wanted = named->second - named->first;
    if (size != wanted)
      throw Error(Status::invalid_file, "load", printable(path_ + kParts + "/" + range), "",
                  "has " + std::to_string(size) + " bytes", std::to_string(wanted), "its name");
    piece.begin = named->first, piece.end = named->second;
    pieces_.push_back(std::move(piece));
  }
  if (error) fail(path_ + kParts, "cannot be read", "a folder of pieces BEGIN-END", error.value());
  std::sort(pieces_.begin(), pieces_.end(), [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
}

std::string File::name() const { return printable(path_.substr(path_.find_last_of('/') + 1)); }

/// Of the pieces with the byte at `offset`, the one that goes on longest.
const File::Piece* File::piece_at(std::uint64_t offset) const {
  const Piece* best = nullptr;
  for (const Piece& piece : pieces_)
    if (piece.begin <= offset && offset < piece.end && (!best || piece.end > best->end)) best = &piece;
  return best;
}

bool File::has(std::uint64_t offset, std::uint64_t bytes) const {
  for (const std::uint64_t end = offset + bytes; offset < end;) {
    const Piece* piece = piece_at(offset);
    if (!piece) return false;
    offset = piece->end;
  }
  return true;
}

void File::read(std::uint64_t offset, void* to, std::size_t bytes) const {
  auto* at = static_cast<std::byte*>(to);
  while (bytes > 0) {
    const Piece* piece = in_pieces_ ? piece_at(offset) : &pieces_[0];
    if (!piece) fail(path_, "lacks byte " + std::to_string(offset), "a piece that has it");
    const std::uint64_t size = piece->end - piece->begin;
    const std::string whole = "the " + std::to_string(size) + " bytes it had when opened";
    // Linux reads at most 2 GiB - 4 KiB at a time
    std::size_t some = std::min(bytes, std::size_t(1) << 30);
    if (in_pieces_) some = std::min<std::uint64_t>(some, piece->end - offset);
    const ssize_t n = ::pread(piece->descriptor.number(), at, some, static_cast<off_t>(offset - piece->begin));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0)
      fail(piece->path, "cannot be read at byte " + std::to_string(offset - piece->begin),
           "its " + std::to_string(size) + " bytes", errno);
    if (n == 0) fail(piece->path, "ends at byte " + std::to_string(offset - piece->begin), whole);
    at += n;
    offset += static_cast<std::uint64_t>(n);
    bytes -= static_cast<std::size_t>(n);
    struct stat status;
    if (::fstat(piece->descriptor.number(), &status) != 0 || static_cast<std::uint64_t>(status.st_size) != size)
      fail(piece->path, "changed its size while it was read", whole);
  }
}

bool file_exists(const std::string& path) { return exists(path) || exists(path + kParts); }

std::string text_of(const std::string& path) {
  const File file(path);
  std::string text(file.size(), '\0');
  file.read(0, text.data(), text.size());
  return text;
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
  const long long value = number_from_environment("DSAKIT_MEM_LIMIT");
  return value > 0 ? static_cast<std::uint64_t>(value) : INT64_MAX;
}

void require_memory(const std::string& what, std::uint64_t bytes, std::uint64_t limit, const char* op) {
  if (bytes > limit)
    throw Error(Status::out_of_memory, op, what, "", "needs " + std::to_string(bytes) + " bytes",
                "at most " + std::to_string(limit), "DSAKIT_MEM_LIMIT");
}

}  // namespace dsakit::io
