// SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>

#include <cstdint>
#include <iterator>
#include <string>
#include <utility>

#include "arrays.hpp"
#include "dsakit/packed_weight.hpp"
#include "module.hpp"
#include "ops/pypto/pypto.hpp"

namespace dsakit::python {
namespace {

/// The memory of an object for one call, by Python's buffer protocol: of a numpy array, whose own dtype only has to
/// have the size of the one that is meant (bf16 comes as uint16). That takes less than reading an array of any kind.
class Buffer {
 public:
  Buffer(const char* op, const char* parameter) : op_(op), parameter_(parameter) {}
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { PyBuffer_Release(&view_); }

  /// Contiguous memory as one axis; `code`: what is meant, by the numbers of pypto.DataType.
  Tensor elements(nb::handle object, int code, bool written) {
    Tensor t = open(object, code, PyBUF_SIMPLE, written);
    const Py_ssize_t size = size_of(t.dtype);
    if (view_.len % size != 0) refuse_size(t.dtype);
    t.rank = 1, t.shape[0] = view_.len / size, t.stride[0] = 1;
    return t;
  }

  /// With its axes.
  Tensor array(nb::handle object, int code, bool written) {
    Tensor t = open(object, code, PyBUF_STRIDES, written);
    const Py_ssize_t size = size_of(t.dtype);
    if (view_.itemsize != size) refuse_size(t.dtype);
    if (view_.ndim > 3) refuse(Status::invalid_shape, "has rank " + std::to_string(view_.ndim), "2 or 3");
    t.rank = view_.ndim;
    std::int64_t inner = 1;  // the stride of an axis of length 1 says nothing, and comes as it likes
    for (int a = t.rank - 1; a >= 0; inner = t.shape[a] * t.stride[a], --a) {
      if (view_.strides[a] % size != 0)
        refuse(Status::invalid_stride, "has strides of parts of elements", "strides of whole ones");
      t.shape[a] = view_.shape[a];
      t.stride[a] = t.shape[a] == 1 ? inner : view_.strides[a] / size;
    }
    return t;
  }

 private:
  [[noreturn]] void refuse(Status status, std::string got, std::string wanted, std::string why = {}) const {
    throw Error(status, op_, parameter_, "", std::move(got), std::move(wanted), std::move(why));
  }
  [[noreturn]] void refuse_size(DType dtype) const {
    refuse(Status::invalid_dtype, "has elements of " + std::to_string(view_.itemsize) + " bytes",
           std::to_string(size_of(dtype)), name_of(dtype));
  }

  DType dtype_of(int code) const {
    using enum DType;
    constexpr DType kTypes[] = {other, i8,    i16,   i32, i64, other, f16, f32,
                                bf16,  other, other, u8,  u16, u32,   u64, boolean};
    if (code >= 0 && code < int(std::size(kTypes)) && kTypes[code] != other) return kTypes[code];
    refuse(Status::invalid_dtype, "has the dtype number " + std::to_string(code), "1..4, 6..8 or 11..15");
  }

  Tensor open(nb::handle object, int code, int how, bool written) {
    const DType dtype = dtype_of(code);
    if (PyObject_GetBuffer(object.ptr(), &view_, how | (written ? PyBUF_WRITABLE : 0)) != 0) {
      PyErr_Clear();
      refuse(Status::invalid_stride, "is " + type_of(object.ptr()) + " that gives no such memory",
             std::string(how == PyBUF_SIMPLE ? "contiguous memory" : "an array") +
                 (written ? " that can be written" : ""));
    }
    return {.data = view_.buf, .dtype = dtype, .read_only = view_.readonly != 0};
  }

  const char *op_, *parameter_;
  Py_buffer view_{};
};

void matmul(nb::handle a, nb::handle b, nb::handle c, int dtype, int out_dtype, bool fma) {
  constexpr const char* op = "pypto.matmul";
  Buffer input(op, "input"), mat2(op, "mat2"), out(op, "out");
  const Tensor x = input.array(a, dtype, false), y = out.array(c, out_dtype, true),
               w = nb::isinstance<PackedWeight>(b) ? nb::cast<const PackedWeight&>(b).tensor()
                                                   : mat2.array(b, dtype, false);
  nb::gil_scoped_release release;
  pypto_op::matmul(x, w, y, fma, context());
}

void cast(nb::handle x, int from, nb::handle y, int to, int mode, bool saturate) {
  constexpr const char* op = "pypto.cast";
  Buffer input(op, "input"), out(op, "out");
  const Tensor in = input.elements(x, from, false), result = out.elements(y, to, true);
  nb::gil_scoped_release release;
  pypto_op::cast(in, result, pypto_op::CastMode(mode), saturate, context());
}

using OfFloats = void (*)(const Tensor&, const Tensor&, Context&);

void run(OfFloats function, const char* op, nb::handle x, nb::handle y) {
  constexpr int kFloat32 = 7;
  Buffer input(op, "input"), out(op, "out");
  const Tensor in = input.elements(x, kFloat32, false), result = out.elements(y, kFloat32, true);
  nb::gil_scoped_release release;
  function(in, result, context());
}

/// min, max, counts of NaN, infinities and zeros, checksum.
nb::tuple statistics(nb::handle x, int dtype) {
  Buffer input("pypto.statistics", "input");
  const Tensor t = input.elements(x, dtype, false);
  const auto s = [&] {
    nb::gil_scoped_release release;
    return pypto_op::statistics(t, context());
  }();
  return nb::make_tuple(s.min, s.max, s.nan, s.inf, s.zero, s.checksum);
}

}  // namespace

void bind_pypto(nb::module_& m) {
  m.def("pypto_matmul", matmul);
  m.def("pypto_cast", cast);
  m.def("pypto_statistics", statistics);
  m.def("pypto_row_sum", [](nb::handle x, nb::handle y) { run(pypto_op::row_sum, "pypto.sum", x, y); });
  m.def("pypto_exp", [](nb::handle x, nb::handle y) { run(pypto_op::exp, "pypto.exp", x, y); });
}

}  // namespace dsakit::python
