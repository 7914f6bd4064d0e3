// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dsakit/error.hpp"
#include "dsakit/field.hpp"
#include "dsakit/tensor_list.hpp"

namespace dsakit::python {

namespace nb = nanobind;

/// Reads the Python objects of one call as tensors, by address, and keeps alive for its duration what had to be made:
/// int32 lengths from lists, contiguous copies of reversed views, DLPack exports.
class Arrays {
 public:
  /// `shapes_only`: tensors come as tuples (shape, strides, name of the dtype, None or what integers they hold), for
  /// `infer`.
  explicit Arrays(const char* op, bool strict = false, bool shapes_only = false)
      : op_(op), strict_(strict), shapes_only_(shapes_only) {}
  ~Arrays();
  Arrays(const Arrays&) = delete;
  Arrays& operator=(const Arrays&) = delete;

  /// None is an absent tensor. `written`: a view that would have to be copied is handed on as it is, to be refused.
  /// `kind`: lengths come as integers of any width or a list, weights as FRACTAL_NZ or packed too.
  Tensor read(PyObject* object, const char* parameter, bool written, Kind kind = Kind::data);
  /// A list or a tuple of tensors.
  TensorList list(PyObject* object, const char* parameter);
  /// Integers of any width in an array, a list, a tuple or bytes, as contiguous int32; `beyond`: the status of one that
  /// does not fit.
  Tensor integers(PyObject* object, const char* parameter, Status beyond);
  /// What `infer` answered, made in the kind of the first tensor read: a numpy array or a torch tensor.
  nb::object allocate(const Tensor& shape, const char* parameter) const;

  const char* op() const { return op_; }  // in refusals
  [[noreturn]] void refuse(Status status, const char* parameter, std::string got, std::string wanted,
                           std::string position = {}) const;

 private:
  enum class Source { none, numpy, torch, other };
  Tensor shape_only(PyObject* described, const char* parameter);
  Tensor numpy(PyObject* array, const char* parameter);
  Tensor torch(PyObject* tensor, const char* parameter);
  Tensor dlpack(PyObject* object, const char* parameter);
  Tensor fractal_nz(PyObject* weight, const char* parameter);
  Tensor any(PyObject* object, const char* parameter, bool weight = false);
  Tensor forwards(const Tensor& t);
  void stay_inside(PyObject* array, const Tensor& t, const char* parameter) const;
  std::byte* memory(std::size_t bytes);

  const char* op_;
  bool strict_;
  bool shapes_only_;
  std::size_t place_ = 0;  // of the last tensor without memory
  Source first_ = Source::none;
  std::vector<nb::object> objects_;
  std::vector<std::unique_ptr<std::byte[]>> memory_;
  std::vector<std::unique_ptr<Tensor[]>> lists_;
  std::vector<std::pair<void*, void (*)(void*)>> exports_;
};

/// Whether torch records this call: one of the values is a tensor, and a mode is on or the tensor is one of those that
/// have a dispatch of their own (fake and functional tensors).
bool is_traced(PyObject* values);
/// Whether one of the values is a tensor of torch on its device "meta".
bool has_meta(PyObject* values);

/// Between tensors of one shape and dtype.
void copy_elements(const Tensor& from, const Tensor& to);

/// The dtype object that numpy (bf16: ml_dtypes) has for `t`.
nb::handle numpy_dtype(DType t);
/// numpy.empty(shape, dtype)
nb::object numpy_empty(const std::vector<std::int64_t>& shape, nb::handle dtype);

/// "int8" from "int8", numpy.int8, numpy.dtype("int8") or torch.int8; "" from None.
std::string dtype_name(PyObject* object);
/// (2, 3)
nb::tuple shape_of(const Tensor& t);
/// What a message calls the object: "None", "a list", "a numpy.ndarray".
std::string type_of(PyObject* object);

}  // namespace dsakit::python
