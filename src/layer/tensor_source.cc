// SPDX-License-Identifier: Apache-2.0
#include "layer/tensor_source.hpp"

#include <initializer_list>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/check.hpp"
#include "core/float16.hpp"
#include "dsakit/error.hpp"

namespace dsakit {
namespace {

template <class From, class To>
void convert(const Tensor& from, To* to) {
  const auto value = [](From x) -> float {
    if constexpr (std::is_same_v<From, float>) return x;
    else return to_float(x);
  };
  const bool matrix = from.rank == 2;
  const std::int64_t rows = matrix ? from.shape[0] : 1, columns = from.shape[from.rank - 1];
  for (std::int64_t r = 0; r < rows; ++r) {
    const From* row = static_cast<const From*>(from.data) + (matrix ? r * from.stride[0] : 0);
    for (std::int64_t c = 0; c < columns; ++c)
      to[r * columns + c] = round_to<To>(value(row[c * from.stride[from.rank - 1]]));
  }
}

class TensorSource final : public WeightSource {
 public:
  explicit TensorSource(std::shared_ptr<const NamedTensors> tensors) : tensors_(std::move(tensors)) {}
  bool has(const std::string& name) const override { return tensors_->contains(name); }
  io::AlignedArray<bf16> matrix(const std::string& name, std::int64_t rows, std::int64_t columns) const override {
    return read<bf16>(name, {rows, columns});
  }
  io::AlignedArray<float> matrix_f32(const std::string& name, std::int64_t rows, std::int64_t columns) const override {
    return read<float>(name, {rows, columns});
  }
  io::AlignedArray<bf16> vector_bf16(const std::string& name, std::int64_t size) const override {
    return read<bf16>(name, {size});
  }
  io::AlignedArray<float> vector_f32(const std::string& name, std::int64_t size) const override {
    return read<float>(name, {size});
  }

 private:
  template <class T>
  io::AlignedArray<T> read(const std::string& name, std::initializer_list<std::int64_t> shape) const {
    const auto found = tensors_->find(name);
    if (found == tensors_->end())
      throw Error(Status::missing_tensor, "load", name, "", "is missing",
                  "a tensor of shape " + brackets(std::span(shape.begin(), shape.size())));
    const Tensor& t = found->second;
    const Check check("load", Level::portable);
    check.dtype(t, name.c_str(), {DType::bf16, DType::f16, DType::f32});
    check.shape(t, name.c_str(), shape, "");
    io::AlignedArray<T> values(std::size_t(t.elements()));
    if (t.dtype == DType::bf16) convert<bf16>(t, values.data());
    else if (t.dtype == DType::f16) convert<f16>(t, values.data());
    else convert<float>(t, values.data());
    return values;
  }

  std::shared_ptr<const NamedTensors> tensors_;
};

}  // namespace

std::unique_ptr<WeightSource> tensor_source(std::shared_ptr<const NamedTensors> tensors) {
  return std::make_unique<TensorSource>(std::move(tensors));
}

}  // namespace dsakit
