// SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "arrays.hpp"
#include "io/safetensors.hpp"
#include "module.hpp"

namespace dsakit::python {
namespace {

constexpr std::uint64_t kBetweenSignals = 64 << 20;  // bytes: some hundredths of a second

nb::dict load_safetensors(nb::handle path) {
  const io::SafetensorsFile file(path_of(path));
  file.require_memory_for_all();
  nb::dict arrays;
  for (const io::FileTensor& tensor : file.tensors()) {
    const std::string_view type = tensor.type->name;
    std::vector<std::int64_t> shape(tensor.shape.begin(), tensor.shape.begin() + tensor.rank);
    nb::handle dtype = numpy_dtype(tensor.type->dtype == DType::other ? DType::u8 : tensor.type->dtype);
    nb::object complex64;
    if (type == "C64") {
      dtype = complex64 = nb::module_::import_("numpy").attr("dtype")("complex64");
    } else if (tensor.type->bits < 8) {
      shape = {std::int64_t(tensor.bytes())};
    }
    const nb::object array = numpy_empty(shape, dtype);
    if (tensor.bytes() > 0) {
      void* data = reinterpret_cast<void*>(nb::cast<std::uintptr_t>(array.attr("ctypes").attr("data")));
      for (std::uint64_t at = 0; at < tensor.bytes(); at += kBetweenSignals) {
        if (PyErr_CheckSignals() != 0) throw nb::python_error();
        const nb::gil_scoped_release release;
        file.read(tensor, at, static_cast<std::byte*>(data) + at, std::min(kBetweenSignals, tensor.bytes() - at));
      }
    }
    arrays[nb::str(tensor.name.data(), tensor.name.size())] = array;
  }
  return arrays;
}

}  // namespace

void bind_files(nb::module_& m) {
  m.def("load_safetensors", load_safetensors, nb::arg("path"),
        "The tensors of a safetensors file: name -> numpy array. bfloat16 and float8 as ml_dtypes; element types that\n"
        "numpy lacks as bytes (F8_E8M0 in its shape, F4 and F6 as one row).");
}

}  // namespace dsakit::python
