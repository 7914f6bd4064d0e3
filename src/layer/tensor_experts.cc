// SPDX-License-Identifier: Apache-2.0
#include "layer/tensor_experts.hpp"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "core/check.hpp"
#include "layer/chunk.hpp"
#include "layer/expert_rows.hpp"
#include "layer/tensor_source.hpp"

namespace dsakit {
namespace {

/// Matrix e of a stack [E, rows, columns].
Tensor matrix_of(const Tensor& stack, std::int64_t e) {
  Tensor t = shaped(stack.dtype, {stack.shape[1], stack.shape[2]});
  t.stride[0] = stack.stride[1], t.stride[1] = stack.stride[2];
  t.data = static_cast<std::byte*>(stack.data) + e * stack.stride[0] * size_of(stack.dtype);
  return t;
}

}  // namespace

TensorExperts::TensorExperts(const Tensor& gate, const Tensor& up, const Tensor& down) {
  const Check check("experts", Level::portable);
  check.rank(gate, "gate_proj", 3, "experts, width, hidden_size");
  const std::int64_t count = gate.shape[0];
  wide_ = gate.shape[1], hidden_ = gate.shape[2];
  check.shape(up, "up_proj", {count, wide_, hidden_}, "those of gate_proj");
  check.shape(down, "down_proj", {count, hidden_, wide_}, "those of gate_proj, turned");
  for (std::int64_t e = 0; e < count; ++e) {
    const auto tensors = std::make_shared<const NamedTensors>(
        NamedTensors{{"gate_proj", matrix_of(gate, e)}, {"up_proj", matrix_of(up, e)}, {"down_proj", matrix_of(down, e)}});
    const auto source = tensor_source(tensors);
    const auto packed = [&](const char* name, std::int64_t out, std::int64_t in) {
      return transposed_matrix(source->matrix(name, out, in).data(), out, in);
    };
    experts_.push_back({packed("gate_proj", wide_, hidden_), packed("up_proj", wide_, hidden_),
                        packed("down_proj", hidden_, wide_)});
  }
}

std::size_t TensorExperts::bytes() const {
  std::size_t sum = 0;
  for (const Expert& e : experts_) sum += e.gate.bytes() + e.up.bytes() + e.down.bytes();
  return sum;
}

void TensorExperts::check(const Tensor& x, const Tensor& expert, const Tensor& weight, const Tensor& out) const {
  const Check check("experts", Level::portable);
  check.rank(expert, "top_k_index", 2, "tokens and choices");
  const std::int64_t rows = expert.shape[0], k = expert.shape[1];
  const auto ask = [&](const Tensor& t, const char* name, DType dtype, std::int64_t width) {
    check.required(t, name);
    check.dtype(t, name, {dtype});
    check.shape(t, name, {rows, width}, "tokens and width");
    if (rows > 1 && t.stride[0] != width)
      check.fail(Status::invalid_stride, name, "", "has rows " + std::to_string(t.stride[0]) + " elements apart",
                 std::to_string(width));
  };
  ask(expert, "top_k_index", DType::i32, k);
  ask(weight, "top_k_weights", DType::f32, k);
  ask(x, "hidden_states", DType::f32, hidden_);
  ask(out, "out", DType::f32, hidden_);
  check.writable(out, "out");
  const auto* e = data_of<const std::int32_t>(expert);
  const auto* bad = std::find_if(e, e + rows * k, [](std::int32_t i) { return i < 0; });
  if (bad != e + rows * k)
    check.fail(Status::invalid_index, "top_k_index", subscript(expert, bad - e), "is " + std::to_string(*bad),
               "at least 0");
}

void TensorExperts::forward(const Tensor& x, const Tensor& expert, const Tensor& weight, const Tensor& out,
                            Context& context) const {
  check(x, expert, weight, out);
  const ExpertRows rows(data_of<const std::int32_t>(expert), expert.shape[0], expert.shape[1],
                        std::int64_t(experts_.size()));
  const auto windows = rows.windows(rows.expert.size(), ExpertRows::kGathered);
  std::int64_t gathered = 0;
  for (const auto& [first, last] : windows) gathered = std::max(gathered, rows.rows(first, last));

  Call call(context, "experts", [&](const Call& call) {
    return bytes_of<MlpArrays>(Activations::bf16, gathered, hidden_, wide_, call.threads());
  });
  Carver memory(call.memory());
  const MlpArrays arrays(Activations::bf16, gathered, hidden_, wide_, call.threads(), memory);
  float* sum = data_of<float>(out);
  std::fill_n(sum, out.elements(), 0.0f);
  for (const auto& [first, last] : windows) {
    const std::int64_t begin = rows.begin[first];
    std::vector<MlpRows> jobs;
    for (std::size_t i = first; i < last; ++i) {
      const Expert& mlp = experts_[rows.expert[i]];
      jobs.push_back(
          {{{mlp.gate.view()}, {mlp.up.view()}, {mlp.down.view()}}, rows.begin[i] - begin, rows.rows(i, i + 1)});
    }
    set_input(call, data_of<const float>(x), rows.token.data() + begin, rows.rows(first, last), arrays);
    gate_and_up(call, jobs, arrays);
    add_weighted(call, jobs, arrays, rows, first, data_of<const float>(weight), sum);
  }
  call.finish();
}

}  // namespace dsakit
