// SPDX-License-Identifier: Apache-2.0
#include "layer/tensor_experts.hpp"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "core/check.hpp"
#include "layer/chunk.hpp"
#include "layer/mlp.hpp"
#include "layer/tensor_source.hpp"

namespace dsakit {
namespace {

constexpr std::int64_t kGathered = 4096;  // rows that are gathered at once, unless one expert has more

/// Rows of a [E, rows, columns] stack that are one matrix.
Tensor matrix_of(const Tensor& stack, std::int64_t e, std::int64_t first, std::int64_t rows) {
  Tensor t = shaped(stack.dtype, {rows, stack.shape[2]});
  t.stride[0] = stack.stride[1], t.stride[1] = stack.stride[2];
  t.data = static_cast<std::byte*>(stack.data) +
           (e * stack.stride[0] + first * stack.stride[1]) * size_of(stack.dtype);
  return t;
}

}  // namespace

/// Which rows each expert takes: places i of the choices, expert by expert, each list ascending.
struct TensorExperts::Lists {
  std::vector<std::int64_t> begin;  // of expert e, in the next; one more than experts
  std::vector<std::int32_t> place, token;
};

TensorExperts::TensorExperts(const Tensor& gate_up, const Tensor& down) {
  const Check check("experts", Level::portable);
  check.rank(gate_up, "gate_up_proj", 3, "experts, both widths, hidden_size");
  const std::int64_t count = gate_up.shape[0];
  hidden_ = gate_up.shape[2], wide_ = gate_up.shape[1] / 2;
  check.shape(gate_up, "gate_up_proj", {count, 2 * wide_, hidden_}, "gate and up of one width");
  check.shape(down, "down_proj", {count, hidden_, wide_}, "those of gate_up_proj");
  for (std::int64_t e = 0; e < count; ++e) {
    const auto tensors = std::make_shared<const NamedTensors>(NamedTensors{
        {"gate_proj", matrix_of(gate_up, e, 0, wide_)},
        {"up_proj", matrix_of(gate_up, e, wide_, wide_)},
        {"down_proj", matrix_of(down, e, 0, hidden_)},
    });
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

TensorExperts::Lists TensorExperts::list(const Tensor& expert) const {
  const auto* choice = data_of<const std::int32_t>(expert);
  const std::int64_t k = expert.shape[1], all = expert.shape[0] * k, count = std::int64_t(experts_.size());
  Lists lists;
  lists.begin.resize(std::size_t(count) + 1);
  for (std::int64_t i = 0; i < all; ++i)
    if (choice[i] < count) ++lists.begin[choice[i] + 1];
  for (std::int64_t e = 0; e < count; ++e) lists.begin[e + 1] += lists.begin[e];
  lists.place.resize(std::size_t(lists.begin.back()));
  lists.token.resize(lists.place.size());
  std::vector<std::int64_t> at(lists.begin.begin(), lists.begin.end() - 1);
  for (std::int64_t i = 0; i < all; ++i)
    if (choice[i] < count) {
      const std::int64_t to = at[choice[i]]++;
      lists.place[to] = std::int32_t(i), lists.token[to] = std::int32_t(i / k);
    }
  return lists;
}

void TensorExperts::forward(const Tensor& x, const Tensor& expert, const Tensor& weight, const Tensor& out,
                            Context& context) const {
  check(x, expert, weight, out);
  const Lists lists = list(expert);
  const std::int64_t count = std::int64_t(experts_.size());
  std::vector<std::int64_t> windows{0};  // experts that begin one
  std::int64_t gathered = 0;
  for (std::int64_t e = 0; e < count; ++e) {
    const std::int64_t first = windows.back();
    if (e > first && lists.begin[e + 1] - lists.begin[first] > kGathered) windows.push_back(e);
    gathered = std::max(gathered, lists.begin[e + 1] - lists.begin[windows.back()]);
  }
  windows.push_back(count);

  Call call(context, "experts", [&](const Call& call) {
    return bytes_of<MlpArrays>(Activations::bf16, gathered, hidden_, wide_, call.threads());
  });
  Carver memory(call.memory());
  const MlpArrays arrays(Activations::bf16, gathered, hidden_, wide_, call.threads(), memory);
  float* to = data_of<float>(out);
  std::fill_n(to, out.elements(), 0.0f);
  for (std::size_t w = 0; w + 1 < windows.size(); ++w) {
    const std::int64_t begin = lists.begin[windows[w]], rows = lists.begin[windows[w + 1]] - begin;
    if (rows == 0) continue;
    const std::int32_t *token = lists.token.data() + begin, *place = lists.place.data() + begin;
    std::vector<MlpRows> jobs;
    for (std::int64_t e = windows[w]; e < windows[w + 1]; ++e)
      if (const std::int64_t some = lists.begin[e + 1] - lists.begin[e]; some > 0) {
        const Expert& mlp = experts_[e];
        jobs.push_back({{{mlp.gate.view()}, {mlp.up.view()}, {mlp.down.view()}}, lists.begin[e] - begin, some});
      }
    set_input(call, data_of<const float>(x), token, rows, arrays);
    gate_and_up(call, jobs, arrays);
    down(call, jobs, arrays,
         [&](std::size_t, std::int64_t row, std::int64_t column, std::int64_t columns, const float* sums) {
           float* sum = to + token[row] * hidden_ + column;
           const float factor = data_of<const float>(weight)[place[row]];
           for (std::int64_t j = 0; j < columns; ++j) sum[j] += factor * sums[j];
         });
  }
  call.finish();
}

}  // namespace dsakit
