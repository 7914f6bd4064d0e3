// SPDX-License-Identifier: Apache-2.0
// Safetensors files (io/safetensors.hpp): refused with a reason, or all that the header promises is there.
#include "fuzz.hpp"
#include "io/json.hpp"
#include "io/safetensors.hpp"

namespace dsakit::fuzz {
namespace {

constexpr std::uint64_t kMostVisits = 8;  // of a byte, as in io/test_safetensors.cc

void read_all(const io::SafetensorsFile& file) {
  std::uint64_t bytes = 0;
  for (const io::FileTensor& t : file.tensors()) {
    require(file.find(t.name) == &t, "a tensor is not found by its name");
    require(file.has(t) && file.read(t).size() == t.bytes(), "a tensor is not there");
    bytes += t.bytes();
  }
  require(bytes == file.data_bytes(), "the tensors are not the data");
}

/// What we write of a header that was read is read as the same.
void write_again(const io::SafetensorsFile& file, const Folder& folder) {
  std::vector<io::TensorToWrite> tensors;
  for (const io::FileTensor& t : file.tensors()) tensors.push_back({t.name, t.type, t.rank, t.shape, nullptr});
  const std::string header = io::safetensors_header(tensors, file.metadata());
  const io::SafetensorsFile again(folder.write("again", header + std::string(file.data_bytes(), '\0')));
  require(again.metadata() == file.metadata(), "metadata is not written as it was read");
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const io::FileTensor &a = file.tensors()[i], &b = again.tensors()[i];
    require(a.name == b.name && a.type == b.type && a.rank == b.rank && a.shape == b.shape && a.bytes() == b.bytes(),
            "a tensor is not written as it was read");
  }
}

}  // namespace
}  // namespace dsakit::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace dsakit;
  using namespace dsakit::fuzz;
  static const Folder folder;
  const std::string bytes = safetensors_of({data, size}), path = folder.write("x.safetensors", bytes);
  const std::uint64_t before = io::json_bytes_visited();
  const auto refused = refusal([&] {
    const io::SafetensorsFile file(path);
    require(io::json_bytes_visited() - before <= kMostVisits * bytes.size(),
            "reading a header takes more than linear work");
    read_all(file);
    write_again(file, folder);
  });
  if (!refused) return 0;
  require(refused->status == Status::invalid_file && !refused->reason.empty(), refused->what());
  require(answer([&] { io::SafetensorsFile{path}; }) == refused->what(), "the second answer is another");
  return 0;
}
