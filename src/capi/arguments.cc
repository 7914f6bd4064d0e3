// SPDX-License-Identifier: Apache-2.0
#include "capi/arguments.hpp"

#include <algorithm>
#include <cstring>

#include "core/dlpack.hpp"
#include "core/level.hpp"
#include "core/nearest.hpp"
#include "io/json.hpp"

namespace dsakit::capi {
namespace {

const char* word_of(std::int32_t kind) {
  switch (kind) {
    case DSAKIT_NONE:
      return "nothing";
    case DSAKIT_TENSOR:
      return "a tensor";
    case DSAKIT_TENSORS:
      return "an array of tensors";
    case DSAKIT_PACKED_WEIGHT:
      return "a packed weight";
    case DSAKIT_INTEGER:
      return "an integer";
    case DSAKIT_INTEGERS:
      return "an array of integers";
    case DSAKIT_REAL:
      return "a real number";
    case DSAKIT_BOOLEAN:
      return "a boolean";
    case DSAKIT_STRING:
      return "a string";
  }
  return nullptr;
}

/// What of a caller's text is shown.
std::string shown(const char* text) { return io::printable(std::string_view(text, strnlen(text, 500))); }

/// The form of an argument, whatever its parameter is.
void check_form(const Check& check, const dsakit_argument& a) {
  if (!word_of(a.kind))
    check.fail(Status::invalid_argument, a.name, "", "has kind " + std::to_string(a.kind), "one of dsakit_kind");
  if (a.flags != 0 && a.kind != DSAKIT_TENSOR && a.kind != DSAKIT_TENSORS)
    check.fail(Status::invalid_argument, a.name, "", "has flags " + std::to_string(a.flags), "0");
  const bool array = a.kind == DSAKIT_TENSORS || a.kind == DSAKIT_INTEGERS;
  if (a.count != 0 && !array)
    check.fail(Status::invalid_argument, a.name, "", "has count " + std::to_string(a.count), "0 beside a single value");
  const bool pointer =
      array ? a.count != 0 : a.kind == DSAKIT_TENSOR || a.kind == DSAKIT_PACKED_WEIGHT || a.kind == DSAKIT_STRING;
  if (pointer && !a.value.tensor)
    check.fail(Status::invalid_argument, a.name, "", "is a null pointer", word_of(a.kind), "DSAKIT_NONE is for none");
}

template <class T>
std::int64_t as_int64(const void* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  if constexpr (std::is_same_v<T, std::uint64_t>) return std::int64_t(std::min<T>(value, INT64_MAX));
  else return value;
}

std::int64_t integer_of(const Tensor& t, std::int64_t i) {
  const auto* p = static_cast<const std::byte*>(t.data) + offset_of(t, i) * size_of(t.dtype);
  switch (t.dtype) {
    case DType::u8:
      return as_int64<std::uint8_t>(p);
    case DType::i8:
      return as_int64<std::int8_t>(p);
    case DType::u16:
      return as_int64<std::uint16_t>(p);
    case DType::i16:
      return as_int64<std::int16_t>(p);
    case DType::u32:
      return as_int64<std::uint32_t>(p);
    case DType::u64:
      return as_int64<std::uint64_t>(p);
    default:
      return as_int64<std::int64_t>(p);
  }
}

}  // namespace

Tensor tensor_of(const Check& check, const char* name, const dsakit_tensor* from, std::uint32_t flags,
                 const std::string& position) {
  const auto fail = [&](Status status, std::string got, std::string wanted) {
    check.fail(status, name, position, std::move(got), std::move(wanted));
  };
  if (flags & ~std::uint32_t(DSAKIT_READ_ONLY | DSAKIT_FRACTAL_NZ))
    fail(Status::invalid_argument, "has flags " + std::to_string(flags), "DSAKIT_READ_ONLY, DSAKIT_FRACTAL_NZ");
  if (from->device.device_type != kDLPackCpu)
    fail(Status::invalid_device, "is on DLPack device " + std::to_string(from->device.device_type), "1 (cpu)");
  const DType dtype = from->dtype.lanes == 1 ? dtype_of_dlpack(from->dtype.code, from->dtype.bits) : DType::other;
  if (dtype == DType::other)
    fail(Status::invalid_dtype,
         "has DLPack code " + std::to_string(from->dtype.code) + ", " + std::to_string(from->dtype.bits) + " bits, " +
             std::to_string(from->dtype.lanes) + " lanes",
         "a plain number");
  if (from->ndim < 0 || from->ndim > 8)
    fail(Status::invalid_shape, "has rank " + std::to_string(from->ndim), "at most 8");
  if (from->ndim > 0 && !from->shape) fail(Status::invalid_shape, "has no shape", "an array of ndim lengths");
  Tensor t{.dtype = dtype,
           .format = flags & DSAKIT_FRACTAL_NZ ? Format::NZ : Format::ND,
           .read_only = (flags & DSAKIT_READ_ONLY) != 0,
           .rank = from->ndim};
  if (from->data) t.data = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(from->data) + from->byte_offset);
  std::copy_n(from->shape, t.rank, t.shape.begin());
  if (!from->strides || t.format == Format::NZ) {
    for (std::int64_t a = t.rank - 1, step = 1; a >= 0; --a) {
      t.stride[a] = step;
      if (__builtin_mul_overflow(step, t.shape[a], &step)) step = INT64_MAX;
    }
    return t;
  }
  std::int64_t inner = 1;  // the stride of an axis of length 1 says nothing, and comes as it likes
  for (int a = t.rank - 1; a >= 0; --a) {
    t.stride[a] = t.shape[a] == 1 ? inner : from->strides[a];
    if (__builtin_mul_overflow(t.shape[a], t.stride[a], &inner)) inner = INT64_MAX;  // the operator refuses it
  }
  return t;
}

Arguments::Arguments(const Signature& signature, const dsakit_argument* arguments, std::size_t count)
    : signature_(signature), check_(signature.op.c_str(), Level::portable) {
  // Pointers and no division: this is a fifth of the smallest call, and all places are below `all`.
  const Slot* const slots = signature.slots.data();
  const std::size_t all = signature.slots.size();
  const dsakit_argument** const given = given_.data();
  const auto after = [all](std::size_t place) { return place + 1 == all ? 0 : place + 1; };
  if (count != 0 && !arguments) check_.fail(Status::invalid_argument, "arguments", "", "is a null pointer", "an array");
  std::size_t next = 0;  // whoever keeps to the documented order finds every name at once
  for (std::size_t i = 0; i < count; ++i) {
    const dsakit_argument& a = arguments[i];
    if (!a.name)
      check_.fail(Status::invalid_argument, "arguments", subscript({std::int64_t(i)}), "has no name",
                  "the name of a parameter");
    std::size_t at = next, tried = 0;
    while (tried < all && std::strcmp(a.name, slots[at].field.name) != 0) at = after(at), ++tried;
    if (tried == all) {
      std::vector<std::string_view> names;
      for (const Slot& s : signature.slots) names.emplace_back(s.field.name);
      check_.fail(Status::invalid_argument, shown(a.name), "", "is unknown", "a parameter of this operator",
                  "nearest: " + std::string(nearest(shown(a.name), names)));
    }
    check_form(check_, a);
    if (given[at]) check_.fail(Status::invalid_argument, a.name, "", "is given twice", "once");
    given[at] = &a;
    next = after(at);
  }
  for (std::size_t i = 0; i < all; ++i) {
    if (given[i] && given[i]->kind == DSAKIT_NONE && slots[i].field.role != Role::tolerated) given[i] = nullptr;
    if (slots[i].needed && !given[i])
      check_.fail(Status::invalid_argument, slots[i].field.name, "", "is missing", word_of(slots[i].given_as));
  }
}

void Arguments::wrong_kind(const Field& field, const dsakit_argument& a, const char* wanted) const {
  check_.fail(Status::invalid_dtype, field.name, "", std::string("is ") + word_of(a.kind), wanted);
}

void Arguments::check_kind(const Field& field, const dsakit_argument& a, dsakit_kind wanted) const {
  if (a.kind != wanted) wrong_kind(field, a, word_of(wanted));
}

/// As the operators read lengths, which callers have in integers of any width.
Tensor Arguments::lengths(const char* name, std::int64_t count, std::int64_t (*at)(const void*, std::int64_t),
                          const void* values) {
  memory_.push_back(std::make_unique_for_overwrite<std::int32_t[]>(std::size_t(count)));
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t value = at(values, i);
    if (value < INT32_MIN || value > INT32_MAX)
      check_.fail(Status::invalid_seqlen, name, subscript({i}), "is " + std::to_string(value), "an int32");
    memory_.back()[std::size_t(i)] = std::int32_t(value);
  }
  Tensor t = shaped(DType::i32, {count});
  t.data = memory_.back().get();
  return t;
}

void Arguments::read(const Field& field, const dsakit_argument& a, Tensor& value) {
  const bool lengths_wanted = field.kind == Kind::lengths, weight_wanted = field.kind == Kind::weight;
  if (a.kind == DSAKIT_PACKED_WEIGHT && weight_wanted) {
    value = a.value.packed_weight->weight.tensor();
    return;
  }
  if (a.kind == DSAKIT_INTEGERS && lengths_wanted) {
    value = lengths(
        field.name, std::int64_t(a.count),
        [](const void* values, std::int64_t i) { return static_cast<const std::int64_t*>(values)[i]; },
        a.value.integers);
    return;
  }
  check_kind(field, a, DSAKIT_TENSOR);
  value = tensor_of(check_, field.name, a.value.tensor, a.flags);
  if (value.format != Format::ND && !weight_wanted)
    check_.fail(Status::invalid_argument, field.name, "", "is in a weight's format", "a plain strided tensor");
  if (lengths_wanted && value.dtype >= DType::u8 && value.dtype <= DType::i64 && value.dtype != DType::i32) {
    check_.readable(value, field.name);
    const Tensor given = value;
    value = lengths(
        field.name, given.elements(),
        [](const void* t, std::int64_t i) { return integer_of(*static_cast<const Tensor*>(t), i); }, &given);
    value.rank = given.rank;
    value.shape = given.shape;
    make_contiguous(value);
  }
}

void Arguments::read(const Field& field, const dsakit_argument& a, TensorList& value) {
  check_kind(field, a, DSAKIT_TENSORS);
  lists_.push_back(std::make_unique<Tensor[]>(a.count));
  for (std::size_t i = 0; i < a.count; ++i) {
    const std::string position = subscript({std::int64_t(i)});
    lists_.back()[i] = tensor_of(check_, field.name, a.value.tensors + i, a.flags, position);
    if (lists_.back()[i].format != Format::ND)
      check_.fail(Status::invalid_argument, field.name, position, "is in a weight's format", "a plain strided tensor");
  }
  value = TensorList(lists_.back().get(), a.count);
}

void Arguments::read(const Field& field, const dsakit_argument& a, std::int64_t& value) {
  check_kind(field, a, DSAKIT_INTEGER);
  value = a.value.integer;
}

void Arguments::read(const Field& field, const dsakit_argument& a, double& value) {
  if (a.kind == DSAKIT_INTEGER) value = double(a.value.integer);
  else check_kind(field, a, DSAKIT_REAL), value = a.value.real;
}

void Arguments::read(const Field& field, const dsakit_argument& a, bool& value) {
  check_kind(field, a, DSAKIT_BOOLEAN);
  value = a.value.boolean;
}

void Arguments::read(const Field& field, const dsakit_argument& a, std::string_view& value) {
  check_kind(field, a, DSAKIT_STRING);
  value = a.value.string;
  if (value.empty() && field.kind == Kind::dtype)  // "" is what the library has for an absent one
    check_.fail(Status::invalid_argument, field.name, "", "is \"\"", "the name of a dtype");
}

void Arguments::read(const Field& field, const dsakit_argument& a, Level& value) {
  check_kind(field, a, DSAKIT_STRING);
  value = level_of(a.value.string, signature_.op, field.name);
}

void Arguments::without_member(const Field& field, const dsakit_argument& a) const {
  if (field.role == Role::hint) return;
  if (field.role == Role::reserved) check_.fail(Status::unsupported, field.name, "", "is given", "absent", "reserved");
  bool strict = false;
  for (std::size_t i = 0; i < signature_.slots.size(); ++i)
    if (const dsakit_argument* level = given_[i]; level && signature_.slots[i].field.kind == Kind::level)
      strict = level->kind == DSAKIT_STRING && std::strcmp(level->value.string, "strict") == 0;
  if (a.kind != DSAKIT_NONE || strict)
    check_.fail(Status::invalid_argument, field.name, "", "is given", "absent",
                a.kind == DSAKIT_NONE ? "no parameter of this operator; portable accepts DSAKIT_NONE"
                                      : "no parameter of this operator");
}

}  // namespace dsakit::capi
