// SPDX-License-Identifier: Apache-2.0
#include "debug/edit.hpp"

#include <algorithm>
#include <cmath>

namespace dsakit::debug {
namespace {

template <class T>
void set_integer(void* to, std::int64_t i, double value) {
  constexpr double low = double(std::numeric_limits<T>::min()), high = double(std::numeric_limits<T>::max());
  static_cast<T*>(to)[i] = value >= high  ? std::numeric_limits<T>::max()
                           : value <= low ? std::numeric_limits<T>::min()
                                          : T(std::nearbyint(value));
}

}  // namespace

void set_number(Stored& stored, std::int64_t i, double value) {
  set_number(stored.bytes->data(), stored.type->dtype, i, value);
}

void set_number(void* to, DType type, std::int64_t i, double value) {
  switch (type) {
    case DType::f16:
      static_cast<f16*>(to)[i] = to_f16_once(value);
      break;
    case DType::bf16:
      static_cast<bf16*>(to)[i] = to_bf16_once(value);
      break;
    case DType::f32:
      static_cast<float*>(to)[i] = float(value);
      break;
    case DType::f64:
      static_cast<double*>(to)[i] = value;
      break;
    case DType::i8:
      set_integer<std::int8_t>(to, i, value);
      break;
    case DType::u8:
    case DType::boolean:
      set_integer<std::uint8_t>(to, i, value);
      break;
    case DType::i32:
      set_integer<std::int32_t>(to, i, value);
      break;
    case DType::i64:
      set_integer<std::int64_t>(to, i, value);
      break;
    default:
      break;  // no operator takes the others
  }
}

bool Edit::has_parameter(std::string_view name) const {
  const auto& all = op().parameters;
  return std::any_of(all.begin(), all.end(), [&](const Parameter& p) { return p.field.name == name; });
}

bool Edit::has(std::string_view name) const {
  if (!has_parameter(name)) return false;
  const Tensor& t = tensor(name);
  return t && t.elements() > 0 && t.format == Format::ND;
}

void Edit::set(std::string_view name, const Stored& stored) {
  const Tensor before = tensor(name);
  bound_.memory.push_back(stored);
  std::get<Tensor>(bound_.arguments.at(name)) = stored.tensor();
  for (std::size_t i = 0; i < op().parameters.size(); ++i)
    if (auto* t = std::get_if<Tensor>(&bound_.arguments.values[i]);
        op().parameters[i].field.kind == Kind::cache && t && t->data == before.data &&
        t->elements() == before.elements() && t->dtype == before.dtype)
      *t = stored.tensor();
}

void Edit::give(std::string_view name, const Stored& stored) {
  bound_.memory.push_back(stored);
  bound_.arguments.at(name) = stored.tensor();
}

bool Edit::set(std::string_view name, const Argument& value) {
  if (!has_parameter(name)) return false;
  Argument& argument = bound_.arguments.at(name);
  const auto number = [](const Argument& a) {
    const auto* d = std::get_if<double>(&a);
    const auto* i = std::get_if<std::int64_t>(&a);
    return d ? *d : i ? double(*i) : std::nan("");
  };
  const auto* text = std::get_if<std::string>(&argument);
  if (number(argument) == number(value) ||
      (text && value.index() == argument.index() && *text == std::get<std::string>(value)))
    return false;
  argument = value;
  return true;
}

bool Edit::swap(std::string_view a, std::string_view b) {
  if (!has(a) || !has(b)) return false;
  auto &x = std::get<Tensor>(bound_.arguments.at(a)), &y = std::get<Tensor>(bound_.arguments.at(b));
  if (x.data == y.data || x.dtype != y.dtype || x.rank != y.rank ||
      !std::equal(x.shape.begin(), x.shape.begin() + x.rank, y.shape.begin()))
    return false;
  std::swap(x, y);
  return true;
}

}  // namespace dsakit::debug
