// SPDX-License-Identifier: Apache-2.0
#include "core/check.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/text.hpp"

namespace dsakit {
namespace {

std::string list(std::initializer_list<std::string_view> words) {
  std::string s;
  std::size_t i = 0;
  for (std::string_view w : words) {
    if (i > 0) s += ++i == words.size() ? " or " : ", ";
    else ++i;
    s += w;
  }
  return s;
}

std::span<const std::int64_t> shape_of(const Tensor& t) {
  return {t.shape.data(), std::size_t(std::clamp(t.rank, 0, 8))};
}

/// Bytes of an element in memory: of codes with scales the numbers are longer than what is kept.
int kept_size(const Tensor& t) { return t.format == Format::scaled ? 1 : size_of(t.dtype); }

/// The axes longer than 1, outermost first, neighbours merged where they are contiguous with each other.
struct Steps {
  std::int64_t count[8], step[8];  // step in bytes
  int n = 0;

  explicit Steps(const Tensor& t) {
    const std::int64_t size = kept_size(t);
    for (int a = 0; a < t.rank; ++a) {
      if (t.shape[a] == 1) continue;
      const std::int64_t bytes = t.stride[a] * size;
      if (n > 0 && step[n - 1] == bytes * t.shape[a]) count[n - 1] *= t.shape[a], step[n - 1] = bytes;
      else count[n] = t.shape[a], step[n] = bytes, ++n;
    }
  }
};

/// One past the last; -1 where no number can say: then the strides are refused (readable).
std::int64_t last_byte(const Tensor& t) {
  std::int64_t end = kept_size(t);
  for (int a = 0; a < t.rank; ++a) {
    std::int64_t step;
    if (__builtin_mul_overflow(t.shape[a] - 1, t.stride[a], &step) ||
        __builtin_mul_overflow(step, kept_size(t), &step) || __builtin_add_overflow(end, step, &end))
      return -1;
  }
  return end;
}

}  // namespace

std::string brackets(std::span<const std::int64_t> shape) {
  std::string s = "[";
  for (std::size_t a = 0; a < shape.size(); ++a) s += (a ? ", " : "") + std::to_string(shape[a]);
  return s + "]";
}

std::string subscript(std::initializer_list<std::int64_t> position) {
  std::string s;
  for (std::int64_t i : position) s += "[" + std::to_string(i) + "]";
  return s;
}

std::string subscript(const Tensor& t, std::int64_t linear) {
  std::string s;
  for (int a = t.rank - 1; a >= 0; linear /= t.shape[a--]) s = "[" + std::to_string(linear % t.shape[a]) + "]" + s;
  return s;
}

bool same_storage(const Tensor& a, const Tensor& b) {
  if (a.data != b.data || a.dtype != b.dtype || a.rank != b.rank) return false;
  for (int axis = 0; axis < a.rank; ++axis)
    if (a.shape[axis] != b.shape[axis] || (a.shape[axis] > 1 && a.stride[axis] != b.stride[axis])) return false;
  return true;
}

bool overlap(const Tensor& a, const Tensor& b) {
  if (a.elements() == 0 || b.elements() == 0) return false;
  const std::int64_t a_bytes = last_byte(a), b_bytes = last_byte(b);
  if (a_bytes < 0 || b_bytes < 0) return false;
  const auto a0 = reinterpret_cast<std::uintptr_t>(a.data), b0 = reinterpret_cast<std::uintptr_t>(b.data);
  const auto a_end = a0 + std::uintptr_t(a_bytes), b_end = b0 + std::uintptr_t(b_bytes);
  if (a_end <= b0 || b_end <= a0) return false;
  // Columns of one pitched buffer: inside a pitch, each holds one interval.
  const Steps x(a), y(b);
  std::int64_t pitch = 0;
  for (const Steps* axes : {&x, &y})
    for (int i = 0; i < axes->n; ++i)
      if (axes->step[i] > pitch && !(i == axes->n - 1 && axes->step[i] <= 8)) pitch = axes->step[i];
  for (const Steps* axes : {&x, &y})  // the smallest step that is not the innermost run
    for (int i = 0; i < axes->n; ++i)
      if (!(i == axes->n - 1 && axes->step[i] <= 8)) pitch = std::min(pitch, axes->step[i]);
  if (pitch <= 0) return true;
  auto run = [&](const Steps& axes, const Tensor& t) -> std::int64_t {  // bytes inside a pitch, -1: does not fit the picture
    std::int64_t inner = kept_size(t);
    for (int i = 0; i < axes.n; ++i) {
      if (axes.step[i] % pitch == 0 && axes.step[i] > 0) continue;
      if (i == axes.n - 1 && axes.step[i] == kept_size(t)) inner = axes.count[i] * axes.step[i];
      else return -1;
    }
    return inner;
  };
  const std::int64_t a_run = run(x, a), b_run = run(y, b);
  if (a_run < 0 || b_run < 0) return true;
  const std::int64_t apart = std::int64_t((b0 - a0) % std::uintptr_t(pitch) + std::uintptr_t(pitch)) % pitch;
  const std::int64_t shift = b0 >= a0 ? apart : (pitch - std::int64_t((a0 - b0) % std::uintptr_t(pitch))) % pitch;
  return !(shift >= a_run && shift + b_run <= pitch);
}

void Check::fail(Status status, std::string_view parameter, std::string position, std::string got, std::string wanted,
                 std::string why) const {
  throw Error(status, op_, std::string(parameter), std::move(position), std::move(got), std::move(wanted),
              std::move(why));
}

void Check::required(const Tensor& t, const char* name) const {
  if (!t) fail(Status::invalid_argument, name, "", "is missing", "a tensor");
}

void Check::absent(const Tensor& t, const char* name, const char* why) const {
  const std::span<const std::int64_t> shape = shape_of(t);  // nobody has asked yet whether its product can be counted
  const bool empty = std::find(shape.begin(), shape.end(), 0) != shape.end();
  if (t && (strict() || !empty)) fail(Status::invalid_argument, name, "", "is given", "absent", why);
}

void Check::dtype(const Tensor& t, const char* name, std::initializer_list<DType> wanted, const char* why) const {
  for (DType d : wanted)
    if (t.dtype == d) return;
  std::string names;
  std::size_t i = 0;
  for (DType d : wanted) {
    if (i > 0) names += i + 1 == wanted.size() ? " or " : ", ";
    names += name_of(d), ++i;
  }
  fail(Status::invalid_dtype, name, "", std::string("has dtype ") + name_of(t.dtype), names, why);
}

void Check::sizes(const Tensor& t, const char* name) const {
  if (t.rank < 0 || t.rank > 8)
    fail(Status::invalid_shape, name, "", "has rank " + std::to_string(t.rank), "0..8");
  std::int64_t count = 1;
  bool overflow = false;
  for (int a = 0; a < t.rank; ++a) {
    if (t.shape[a] < 0)
      fail(Status::invalid_shape, name, "", "has shape " + brackets(shape_of(t)), "no negative dimension");
    overflow |= __builtin_mul_overflow(count, t.shape[a], &count);
  }
  overflow |= __builtin_mul_overflow(count, std::int64_t(std::max(size_of(t.dtype), 1)), &count);
  if (overflow)
    fail(Status::invalid_shape, name, "", "has shape " + brackets(shape_of(t)), "at most 2^63-1 bytes");
}

void Check::memory(const Tensor& t, const char* name, bool free_first_axis, bool written) const {
  sizes(t, name);
  if (t.format != Format::ND)
    fail(Status::invalid_argument, name, "", "is in a weight's format", "a plain strided tensor");
  std::int64_t end = 0;
  if (t.elements() == 0) return;
  if (!t.data) fail(Status::invalid_argument, name, "", "has no memory", "memory for " + brackets(shape_of(t)));
  for (int a = 0; a < t.rank; ++a) {
    std::int64_t reach = 0;
    if (t.stride[a] < 0)
      fail(Status::invalid_stride, name, "", "has strides " + brackets({t.stride.data(), std::size_t(t.rank)}),
           "no negative stride");
    if (__builtin_mul_overflow(t.shape[a] - 1, t.stride[a], &reach) || __builtin_add_overflow(end, reach, &end) ||
        end > INT64_MAX / 16)
      fail(Status::invalid_stride, name, "", "has strides " + brackets({t.stride.data(), std::size_t(t.rank)}),
           "offsets below 2^59");
  }
  if (t.rank > 0 && t.shape[t.rank - 1] > 1 && t.stride[t.rank - 1] != 1)
    fail(Status::invalid_stride, name, "", "has innermost stride " + std::to_string(t.stride[t.rank - 1]), "1");
  if (const int size = size_of(t.dtype); size > 1 && reinterpret_cast<std::uintptr_t>(t.data) % unsigned(size) != 0)
    fail(Status::misaligned, name, "", "is at an address not a multiple of " + std::to_string(size),
         "aligned elements");
  if (strict()) {
    std::int64_t step = 1;
    for (int a = t.rank - 1; a >= 0; step *= t.shape[a--]) {
      if (t.shape[a] == 1 || t.stride[a] == step || (a == 0 && free_first_axis && t.stride[a] > step)) continue;
      fail(Status::invalid_stride, name, "", "has strides " + brackets({t.stride.data(), std::size_t(t.rank)}),
           free_first_axis ? "contiguous memory behind axis 0" : "contiguous memory", "[strict: Atlas A2/A3]");
    }
  }
  if (!written) return;
  if (t.read_only) fail(Status::invalid_device, name, "", "is read-only", "writable memory");
  // Sorted by stride, each axis must step over everything inside it.
  int order[8], n = 0;
  for (int a = 0; a < t.rank; ++a) {
    if (t.shape[a] <= 1) continue;
    int at = n++;
    for (; at > 0 && t.stride[order[at - 1]] > t.stride[a]; --at) order[at] = order[at - 1];
    order[at] = a;
  }
  std::int64_t inside = 1;
  for (int i = 0; i < n; ++i) {
    const int a = order[i];
    if (t.stride[a] < inside)
      fail(Status::invalid_stride, name, "", "has strides " + brackets({t.stride.data(), std::size_t(t.rank)}),
           "elements that share no memory");
    inside += (t.shape[a] - 1) * t.stride[a];
  }
}

void Check::readable(const Tensor& t, const char* name, bool free_first_axis) const {
  memory(t, name, free_first_axis, false);
}
void Check::writable(const Tensor& t, const char* name, bool free_first_axis) const {
  memory(t, name, free_first_axis, true);
}
void Check::readable_weight(const Tensor& t, const char* name) const {
  if (t.format == Format::ND) return readable(t, name);
  sizes(t, name);
  if (t.elements() != 0 && !t.data)
    fail(Status::invalid_argument, name, "", "has no memory", "memory for " + brackets(shape_of(t)));
}

void Check::rank(const Tensor& t, const char* name, int wanted, const char* why) const {
  if (t.rank != wanted)
    fail(Status::invalid_shape, name, "", "has shape " + brackets(shape_of(t)), "rank " + std::to_string(wanted), why);
}

void Check::shape(const Tensor& t, const char* name, std::initializer_list<std::int64_t> wanted,
                  const char* why) const {
  if (t.rank == int(wanted.size()) && std::equal(wanted.begin(), wanted.end(), t.shape.begin())) return;
  fail(Status::invalid_shape, name, "", "has shape " + brackets(shape_of(t)),
       brackets({wanted.begin(), wanted.size()}), why);
}

Rows Check::rows(const Tensor& t, const char* name, std::int64_t rows, std::initializer_list<std::int64_t> row_shape,
                 const char* why) const {
  // The row is the trailing axes; axes of length 1 may come or go anywhere outside the row's own width.
  std::int64_t width = 1;
  for (std::int64_t n : row_shape) width *= n;
  const bool counted = t.rank >= 0 && t.rank <= 8 && t.elements() == rows * width;
  bool fits = counted;
  if (counted) {
    int axis = t.rank;
    for (auto wanted = std::rbegin(row_shape); wanted != std::rend(row_shape) && fits; ++wanted) {
      if (*wanted == 1) continue;  // may be absent
      while (axis > 0 && t.shape[axis - 1] == 1) --axis;
      fits = axis > 0 && t.shape[axis - 1] == *wanted;
      axis -= fits;
    }
    if (fits && width == 0) {  // no elements to count rows by
      std::int64_t leading = 1;
      for (int a = 0; a < axis; ++a) leading *= t.shape[a];
      fits = leading == rows;
    }
    if (fits && !strict()) {
      if (width == 1 || rows == 0) axis = t.rank;
      return Rows(t, t.rank - axis);
    }
  }
  if (counted && strict() && t.rank == int(row_shape.size()) + 1 && t.shape[0] == rows &&
      std::equal(row_shape.begin(), row_shape.end(), t.shape.begin() + 1))
    return Rows(t, int(row_shape.size()));
  std::int64_t wanted[8] = {rows};
  std::copy(row_shape.begin(), row_shape.end(), wanted + 1);
  const std::string folded = brackets({wanted, row_shape.size() + 1});
  std::string reason = why;
  if (fits) reason += (reason.empty() ? "" : "; ") + ("reshape(" + folded.substr(1, folded.size() - 2) + ") has it");
  fail(Status::invalid_shape, name, "", "has shape " + brackets(shape_of(t)), folded, reason);
}

std::int64_t Check::vector(const Tensor& t, const char* name, std::int64_t n, const char* why) const {
  int long_axes = 0, axis = -1;
  for (int a = 0; a < t.rank; ++a)
    if (t.shape[a] != 1) ++long_axes, axis = a;
  const bool one_axis = t.elements() == n && long_axes <= 1 && t.rank >= 1 && t.rank <= (strict() ? 1 : 2);
  if (!one_axis) shape(t, name, {n}, why);
  if (!one_axis) fail(Status::invalid_shape, name, "", "has shape " + brackets(shape_of(t)), brackets({&n, 1}), why);
  return axis < 0 ? 1 : t.stride[axis];
}

void Check::no_overlap(const Tensor& a, const char* a_name, const Tensor& b, const char* b_name) const {
  if (!a || !b || !overlap(a, b)) return;
  const auto a0 = reinterpret_cast<std::intptr_t>(a.data), b0 = reinterpret_cast<std::intptr_t>(b.data);
  const std::int64_t first = std::max<std::int64_t>(b0 - a0, 0);
  const std::int64_t end = std::min<std::int64_t>(last_byte(a), b0 - a0 + last_byte(b));
  fail(Status::aliased, a_name, "", std::string("overlaps ") + b_name, "separate memory",
       "bytes " + std::to_string(first) + ".." + std::to_string(end - 1) + " of " + a_name);
}

void Check::one_of(std::string_view value, const char* name, std::initializer_list<std::string_view> wanted) const {
  for (std::string_view w : wanted)
    if (value == w) return;
  fail(Status::invalid_argument, name, "", "is '" + printable(value) + "'", list(wanted));
}

void Check::positive(double value, const char* name) const {
  if (!(value > 0) || std::isinf(value))
    fail(Status::invalid_argument, name, "", "is " + std::to_string(value), "finite and above 0");
}

void Check::at_least(std::int64_t value, const char* name, std::int64_t lowest) const {
  if (value < lowest)
    fail(Status::invalid_argument, name, "", "is " + std::to_string(value), "at least " + std::to_string(lowest));
}

void Check::chip(bool holds, const char* name, std::string got, const char* wanted) const {
  if (strict() && !holds) fail(Status::unsupported, name, "", std::move(got), wanted, "[strict: Atlas A2/A3]");
}

}  // namespace dsakit
