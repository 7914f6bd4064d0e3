// SPDX-License-Identifier: Apache-2.0
#include "debug/record.hpp"

#include <algorithm>
#include <cstring>

#include "core/check.hpp"
#include "core/view.hpp"
#include "debug/addressing.hpp"
#include "debug/bind.hpp"
#include "debug/execute.hpp"
#include "dsakit/version.hpp"
#include "ops/weight.hpp"

namespace dsakit::debug {
namespace {

Integers shape_of(const Tensor& t) { return {t.shape.begin(), t.shape.begin() + t.rank}; }
Integers stride_of(const Tensor& t) { return {t.stride.begin(), t.stride.begin() + t.rank}; }

bool is_dense(const Tensor& t) {
  Tensor dense = t;
  make_contiguous(dense);
  for (int a = 0; a < t.rank; ++a)
    if (t.shape[a] != 1 && t.stride[a] != dense.stride[a]) return false;
  return true;
}

/// Row-major, element by element: what a caller packed comes back as the matrix that it was made from.
Stored unpacked(const Parameter& p, const Tensor& t) {
  const bool stack = t.rank == 3;
  const std::int64_t batch = stack ? t.shape[0] : 1, k = t.shape[stack], n = t.shape[stack + 1];
  const Weight weight =
      check_weight(Check("case", Level::portable), t, p.field.name, t.dtype, stack ? batch : 0, k, n, "as packed");
  Stored stored(io::file_dtype_of(t.dtype), shape_of(t));
  const Tensor to = stored.tensor();
  for (std::int64_t i = 0, all = batch * k * n; i < all; ++i) {
    const float x = weight.at(i / (k * n), i / n % k, i % n);
    if (t.dtype == DType::i8) static_cast<std::int8_t*>(to.data)[i] = std::int8_t(x);
    else store(to, i, x);
  }
  return stored;
}

/// FRACTAL_NZ storage of the logical shape, as it lies.
Stored nz_storage(const Tensor& t) {
  const std::int64_t c0 = 32 / size_of(t.dtype), k = t.shape[t.rank - 2], n = t.shape[t.rank - 1];
  Integers shape(t.shape.begin(), t.shape.begin() + t.rank - 2);
  shape.insert(shape.end(), {(n + c0 - 1) / c0, (k + 15) / 16, 16, c0});
  Stored stored(io::file_dtype_of(t.dtype), shape);
  std::copy_n(static_cast<const std::byte*>(t.data), stored.bytes->size(), stored.bytes->data());
  return stored;
}

Attribute attribute_of(const Argument& value) {
  return std::visit(
      []<class T>(const T& v) -> Attribute {
        if constexpr (std::is_same_v<T, Tensor> || std::is_same_v<T, std::vector<Tensor>>) return {};
        else return v;
      },
      value);
}

bool is_nothing(const Attribute& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return text->empty();
  if (const auto* list = std::get_if<Integers>(&value)) return list->empty();
  return value.index() == 0;
}

}  // namespace

bool is_readable(const Tensor& t) {
  if (!t || t.dtype == DType::other || t.rank > 8) return false;
  std::int64_t elements = 1, extent = 0;
  for (int a = 0; a < t.rank; ++a)
    if (t.shape[a] < 0 || __builtin_mul_overflow(elements, t.shape[a], &elements)) return false;
  if (elements == 0) return true;
  for (int a = 0; a < t.rank && t.format == Format::ND; ++a) {
    std::int64_t way = 0;
    if (t.stride[a] < 0 || __builtin_mul_overflow(t.shape[a] - 1, t.stride[a], &way) ||
        __builtin_add_overflow(extent, way, &extent))
      return false;
  }
  return t.data != nullptr && elements < (std::int64_t(1) << 48);
}

/// Results beside the caches are whole, so the caches are too.
bool Recording::has_own_results(const PageUse& use) const {
  return std::any_of(use.caches.begin(), use.caches.end(), [&](std::string_view cache) {
    const std::string out = std::string(cache) + "_out";
    for (std::size_t i = 0; i < arguments_.values.size(); ++i)
      if (arguments_.op->parameters[i].field.name == out)
        return arguments_.tensor(out) && arguments_.tensor(out).data != arguments_.tensor(cache).data;
    return false;
  });
}

Recording::Recording(const Arguments& arguments, Caches caches) : arguments_(arguments), caches_(caches) {
  const Operator& op = *arguments_.op;
  const bool readable = std::all_of(arguments_.values.begin(), arguments_.values.end(), [](const Argument& a) {
    const auto* t = std::get_if<Tensor>(&a);
    return !t || !*t || is_readable(*t);
  });
  if (caches != Caches::whole && readable)
    for (const PageUse& use : pages_of(arguments_))
      for (const std::string_view cache : use.caches)
        if (!has_own_results(use))
          pages_[std::string(cache)] = caches == Caches::touched ? use.entries_of(use.needed()) : Integers();
  for (std::size_t i = 0; i < op.parameters.size(); ++i) {
    const Parameter& p = op.parameters[i];
    const auto* t = std::get_if<Tensor>(&arguments_.values[i]);
    if (t && *t && p.field.role != Role::out && is_updated(op, p)) store("in." + std::string(p.field.name), p, *t);
  }
}

void Recording::store(const std::string& key, const Parameter& p, const Tensor& t) {
  if (!is_readable(t)) return;  // of a call that is refused for it
  const auto pages = pages_.find(p.field.name);
  if (t.format == Format::NZ) {
    if (t.rank < 2) return;
    case_.tensors[key] = nz_storage(t);
    case_.layouts[key].format = "NZ", case_.layouts[key].shape = shape_of(t);
  } else if (t.format != Format::ND) {
    case_.tensors[key] = unpacked(p, t);
  } else if (pages != pages_.end()) {
    store_pages(key, "pages." + pages->first, t, pages->second);
  } else if (!key.starts_with("in.") || !store_view(key, t)) {
    case_.tensors[key] = Stored(t);
    if (is_dense(t)) whole_.push_back({key, t});
    else case_.layouts[key].stride = stride_of(t);
  }
}

void Recording::store_pages(const std::string& key, const std::string& pages_key, const Tensor& t,
                            const Integers& pages) {
  Stored numbers(io::file_dtype_of(DType::i64), {std::int64_t(pages.size())});
  if (!pages.empty()) std::memcpy(numbers.bytes->data(), pages.data(), pages.size() * sizeof pages[0]);
  case_.tensors[pages_key] = numbers;
  Tensor entry = t;
  entry.shape[0] = 1;
  Integers shape = shape_of(t);
  shape[0] = std::int64_t(pages.size());
  Stored stored(io::file_dtype_of(t.dtype), shape);
  const std::size_t bytes = pages.empty() ? 0 : stored.bytes->size() / pages.size();
  for (std::size_t i = 0; i < pages.size(); ++i) {
    entry.data = static_cast<std::byte*>(t.data) + pages[i] * t.stride[0] * size_of(t.dtype);
    std::memcpy(stored.bytes->data() + i * bytes, Stored(entry).bytes->data(), bytes);
  }
  case_.tensors[key] = stored;
  Layout& layout = case_.layouts[key];
  layout.pages = pages_key, layout.full = shape_of(t);
  if (!is_dense(t)) layout.stride = stride_of(t);
}

/// Inside another argument of the same type that is stored already: kept as such, so that aliases survive.
bool Recording::store_view(const std::string& key, const Tensor& t) {
  const std::int64_t size = size_of(t.dtype);
  for (const Whole& w : whole_) {
    if (w.tensor.dtype != t.dtype || t.elements() == 0 || !w.key.starts_with("in.")) continue;
    const auto way = reinterpret_cast<std::intptr_t>(t.data) - reinterpret_cast<std::intptr_t>(w.tensor.data);
    std::int64_t last = way / size;
    for (int a = 0; a < t.rank; ++a) last += (t.shape[a] - 1) * t.stride[a];
    if (way < 0 || way % size != 0 || last >= w.tensor.elements()) continue;
    Layout layout{.of = w.key};
    if (way != 0 || shape_of(t) != shape_of(w.tensor) || !is_dense(t))
      layout.shape = shape_of(t), layout.stride = stride_of(t), layout.offset = way / size;
    case_.layouts[key] = layout;
    return true;
  }
  return false;
}

void Recording::inputs() {
  const Operator& op = *arguments_.op;
  for (std::size_t i = 0; i < op.parameters.size(); ++i) {
    const Parameter& p = op.parameters[i];
    const Argument& value = arguments_.values[i];
    const std::string key = "in." + std::string(p.field.name);
    if (p.field.role == Role::out || case_.has(key)) continue;
    if (const auto* t = std::get_if<Tensor>(&value)) {
      if (*t) store(key, p, *t);
    } else if (const auto* list = std::get_if<std::vector<Tensor>>(&value)) {
      for (std::size_t e = 0; e < list->size(); ++e) store(key + "." + std::to_string(e), p, (*list)[e]);
    } else if (const Attribute attribute = attribute_of(value); !is_nothing(attribute)) {
      case_.attributes[p.field.name] = attribute;
    }
  }
}

Case Recording::finish(bool refused, const Context& context) {
  const Operator& op = *arguments_.op;
  inputs();
  for (std::size_t i = 0; i < op.parameters.size() && !refused; ++i) {
    const Parameter& p = op.parameters[i];
    const auto* t = std::get_if<Tensor>(&arguments_.values[i]);
    if (!t || !*t) continue;
    const std::string name = p.field.name;
    if (p.field.role != Role::out) {
      if (p.field.role != Role::in && p.field.role != Role::in_opt && is_updated(op, p)) store("after." + name, p, *t);
      continue;
    }
    // The argument itself, under another name: what became of it is under `after`.
    const std::string twin = name.ends_with("_out") ? name.substr(0, name.size() - 4) : "";
    const Parameter* argument = nullptr;
    for (const Parameter& other : op.parameters)
      if (other.field.name == twin) argument = &other;
    const bool same = argument && t->data && arguments_.tensor(twin).data == t->data;
    if (same && (argument->field.role == Role::in || argument->field.role == Role::in_opt))
      store("after." + twin, *argument, *t);
    if (!same) store("out." + name, p, *t);
  }
  case_.call = "dsakit." + std::string(op.name);
  case_.metadata["producer"] = std::string("dsakit ") + DSAKIT_VERSION;
  case_.metadata["versions"] = recorded_on(context);
  return std::move(case_);
}

}  // namespace dsakit::debug
