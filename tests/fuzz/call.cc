// SPDX-License-Identifier: Apache-2.0
// Calls of every operator through the C interface. An input is a line as `dsakit golden` has it, OPERATOR NAME=VALUE
// .., which makes a good call; the bytes behind it say how it runs and what of it is changed. Every tensor is in memory
// of its own, of exactly its size, so that the address sanitizer sees a byte beyond. The operator and its reference
// compute it, or refuse it with the same sentence; what is refused is left as it was, and nothing but elements of
// results and caches is ever written.
#include <cmath>
#include <deque>
#include <map>
#include <memory>
#include <variant>
#include <vector>

#include "core/dlpack.hpp"
#include "debug/bind.hpp"
#include "debug/golden_plan.hpp"
#include "dsakit/dsakit.h"
#include "fuzz.hpp"
#include "ops/describe_text.hpp"

namespace dsakit::fuzz {
namespace {

constexpr std::int64_t kMostBytes = 1 << 16;  // of a tensor: a call takes milliseconds
constexpr std::int64_t kNumbers[] = {
    0,  1,  -1, 2,         3,         4,  5,    7,         8,         16,
    17, 32, 64, INT32_MAX, INT32_MIN, 97, 2048, INT64_MAX, INT64_MIN, std::int64_t{1} << 40};
constexpr std::int64_t kLengths[] = {0,         1,        2, 3, 4, 5, 6, 8, 15, 16, 17, 33, -1, std::int64_t{1} << 60,
                                     INT64_MAX, INT64_MIN};
constexpr double kReals[] = {0., 1., -1., 0.25, 1e-300, 1e300, 1e-6, -1e9};
constexpr const char* kWords[] = {"", "BSND", "TND", "strict", "portable", "int8", "float16", "\n\x80", "BNSD_BSND"};

/// One tensor as it is given. Its elements are those of `bytes`, again and again where there are more.
struct Described {
  dsakit_dtype dtype{DSAKIT_FLOAT, 32, 1};
  std::vector<std::int64_t> shape{}, strides{};  // no strides: row-major
  std::uint64_t byte_offset = 0;
  std::int32_t device = kDLPackCpu;
  std::string bytes{};
  const char* alias = nullptr;  // in the memory of this parameter
  bool without_memory = false;

  std::int64_t size() const { return dtype.bits / 8; }
  std::int64_t stride(std::size_t axis) const {
    if (!strides.empty()) return strides[axis];
    std::int64_t step = 1;
    for (std::size_t a = axis + 1; a < shape.size(); ++a)
      if (__builtin_mul_overflow(step, shape[a], &step)) return INT64_MAX;
    return step;
  }
};

/// One argument: of `a`, the kind and what is no pointer.
struct Given {
  const dsakit_parameter* parameter;
  dsakit_argument a;
  std::vector<Described> tensors;
  std::string text;
  std::vector<std::int64_t> integers;
};
using Call = std::vector<Given>;

Given* find(Call& call, std::string_view name) {
  for (Given& g : call)
    if (g.parameter->name == name) return &g;
  return nullptr;
}

/// Memory of the tensors that share it. `touchable`: bytes that are elements of what the operator may write.
struct Block {
  std::unique_ptr<char[]> memory;
  std::int64_t bytes = 0;
  char* origin = nullptr;  // where the element at offset 0 is
  std::string before;
  std::vector<bool> touchable;

  std::string now() const { return {memory.get(), std::size_t(bytes)}; }
  void restore() { std::copy(before.begin(), before.end(), memory.get()); }
};

// ---- a good call

const dsakit_operator* described(std::string_view name) {
  for (std::size_t i = 0; i < dsakit_operator_count(); ++i)
    if (dsakit_operator_at(i)->name == name) return dsakit_operator_at(i);
  return nullptr;
}

/// Of a matrix in FRACTAL_NZ, or a stack of them. Exact as long as it is small.
double bytes_in_nz(const Described& t) {
  const std::size_t rank = t.shape.size();
  if (rank < 2 || t.size() == 0) return 0;
  double bytes =
      std::ceil(double(t.shape[rank - 1]) * double(t.size()) / 32) * std::ceil(double(t.shape[rank - 2]) / 16) * 512;
  for (std::size_t a = 0; a + 2 < rank; ++a) bytes *= double(t.shape[a]);
  return std::max(bytes, 0.);
}

Described described(const Tensor& t, std::uint32_t& flags) {
  Described d{.dtype = dlpack_of(t.dtype), .shape{t.shape.begin(), t.shape.begin() + t.rank}};
  if (t.read_only) flags |= DSAKIT_READ_ONLY;
  if (t.format == Format::NZ) {
    flags |= DSAKIT_FRACTAL_NZ;
    d.bytes.assign(static_cast<const char*>(t.data), std::size_t(bytes_in_nz(d)));
  } else if (t.data) {
    const debug::Stored dense(t);
    d.bytes.assign(reinterpret_cast<const char*>(dense.bytes->data()), dense.bytes->size());
  }
  return d;
}

Call call_of(const dsakit_operator& op, const debug::Arguments& all) {
  Call call;
  std::map<const void*, const char*> owner;  // of memory: the first parameter that has it
  for (std::size_t i = 0; i < op.parameter_count; ++i) {
    const dsakit_parameter& p = *op.parameters[i];
    Given g{&p, dsakit_no_arg(p.name, DSAKIT_NONE, 0), {}, {}, {}};
    const auto add = [&](const Tensor& t) {
      g.tensors.push_back(described(t, g.a.flags));
      if (!t.data || t.elements() == 0) return;
      if (const auto [at, fresh] = owner.try_emplace(t.data, p.name); !fresh) g.tensors.back().alias = at->second;
    };
    std::visit(
        [&]<class T>(const T& value) {
          if constexpr (std::is_same_v<T, Tensor>) {
            if (value) g.a.kind = DSAKIT_TENSOR, add(value);
          } else if constexpr (std::is_same_v<T, std::vector<Tensor>>) {
            g.a.kind = DSAKIT_TENSORS;
            for (const Tensor& t : value) add(t);
          } else if constexpr (std::is_same_v<T, std::int64_t>) {
            g.a.kind = DSAKIT_INTEGER, g.a.value.integer = value;
          } else if constexpr (std::is_same_v<T, double>) {
            g.a.kind = DSAKIT_REAL, g.a.value.real = value;
          } else if constexpr (std::is_same_v<T, bool>) {
            g.a.kind = DSAKIT_BOOLEAN, g.a.value.boolean = value;
          } else if constexpr (std::is_same_v<T, std::string>) {
            g.a.kind = value.empty() ? DSAKIT_NONE : DSAKIT_STRING, g.text = value;
          } else if constexpr (std::is_same_v<T, debug::Integers>) {
            g.a.kind = DSAKIT_INTEGERS, g.integers = value;
          }
        },
        all.values[i]);
    if (g.a.kind != DSAKIT_NONE) call.push_back(std::move(g));
  }
  return call;
}

/// The call that a line asks for; null where it is none, or a large one. `line` is not empty.
std::unique_ptr<std::pair<const dsakit_operator*, Call>> made(std::string_view line) {
  Input words(reinterpret_cast<const std::uint8_t*>(line.data()), line.size());
  const std::string name(words.until(' '));
  debug::Settings settings;
  while (!words.empty()) {
    const std::string_view word = words.until(' ');
    const std::size_t equals = std::min(word.find('='), word.size());
    settings.emplace_back(word.substr(0, equals), word.substr(std::min(equals + 1, word.size())));
  }
  std::unique_ptr<std::pair<const dsakit_operator*, Call>> call;
  refusal([&] {
    const Operator* op = find_operator(name);
    if (!op) return (void)debug::made_call(name, settings);
    const debug::Plan plan(*op, settings);
    for (const auto& planned : plan.tensors()) {
      double bytes = planned.dtype == DType::other ? 1 : size_of(planned.dtype);
      for (const std::int64_t length : planned.shape) bytes *= double(length);
      if (bytes > double(kMostBytes)) return;
    }
    const debug::Case c = debug::made_call(name, settings);
    debug::Bound bound = debug::bind(c);
    (void)answer([&] { debug::infer(bound.arguments); });
    const dsakit_operator* of_c = described(name);
    call = std::make_unique<std::pair<const dsakit_operator*, Call>>(of_c, call_of(*of_c, bound.arguments));
  });
  return call;
}

// ---- changes

/// One of the words that the description has for it, or another one.
std::string word_for(const dsakit_parameter& p, Input& in) {
  std::vector<std::string> words(std::begin(kWords), std::end(kWords));
  for (std::string_view list = p.shape; !list.empty();) {
    const std::size_t end = std::min(list.find(", "), list.size());
    words.emplace_back(list.substr(0, end));
    list.remove_prefix(std::min(end + 2, list.size()));
  }
  return in.one_of(words);
}

void change(Described& t, Input& in, std::uint32_t& flags, const dsakit_operator& op) {
  const std::size_t axis = t.shape.empty() ? 0 : in.below(t.shape.size());
  switch (in.below(14)) {
    case 0:  // a length, and every element is still there
      if (!t.shape.empty()) t.shape[axis] = in.one_of(kLengths), t.strides.clear();
      break;
    case 1:
      if (!t.shape.empty() && t.shape[axis] < kMostBytes)
        t.shape[axis] = std::max<std::int64_t>(t.shape[axis], 0) + (in.below(2) ? 1 : -1), t.strides.clear();
      break;
    case 2:
      t.shape.insert(t.shape.begin() + std::ptrdiff_t(axis), in.one_of(kLengths)), t.strides.clear();
      break;
    case 3:
      if (!t.shape.empty()) t.shape.erase(t.shape.begin() + std::ptrdiff_t(axis)), t.strides.clear();
      break;
    case 4: {  // rows with room behind them, transposed, repeated, backwards
      if (t.shape.empty()) break;
      for (std::size_t a = 0; a < t.shape.size(); ++a)
        if (t.strides.size() < t.shape.size()) t.strides.push_back(Described{.shape = t.shape}.stride(a));
      const std::size_t other = in.below(t.shape.size());
      switch (in.below(4)) {
        case 0:
          for (std::int64_t& stride : t.strides) stride *= stride > 0 && stride < kMostBytes ? 2 : 1;
          break;
        case 1:
          std::swap(t.strides[axis], t.strides[other]), std::swap(t.shape[axis], t.shape[other]);
          break;
        case 2:
          t.strides[axis] = in.one_of(kLengths);
          break;
        default:
          t.strides[axis] = t.strides[axis] == INT64_MIN ? 0 : -t.strides[axis];
      }
      break;
    }
    case 5: {
      const DLPackType& type = in.one_of(kDLPackTypes);
      t.dtype = {std::uint8_t(type.code), type.bits, 1};
      break;
    }
    case 6: {  // of lists of numbers; elsewhere some bytes
      const std::size_t size = std::size_t(std::max<std::int64_t>(t.size(), 1)), count = t.bytes.size() / size;
      if (count == 0) break;
      const std::int64_t number =
          t.dtype.code == DSAKIT_INT ? in.one_of(kNumbers) : std::int64_t(in.byte() * UINT64_C(0x0101010101010101));
      std::memcpy(t.bytes.data() + in.below(count) * size, &number, std::min(size, sizeof number));
      break;
    }
    case 7: {  // NaN or infinity
      static constexpr std::uint64_t kSixteen[] = {0x7fc0, 0x7c00, 0x7f80, 0xff80}, kMore[] = {0x7fc00000, 0x7f800000};
      const std::size_t size = std::size_t(std::max<std::int64_t>(t.size(), 1)), count = t.bytes.size() / size;
      if (count == 0) break;
      const std::uint64_t number = size == 2 ? in.one_of(kSixteen) : in.one_of(kMore);
      std::memcpy(t.bytes.data() + in.below(count) * size, &number, size);
      break;
    }
    case 8:
      flags ^= in.below(2) ? DSAKIT_READ_ONLY : DSAKIT_FRACTAL_NZ;
      break;
    case 9:
      t.byte_offset = in.below(16);
      break;
    case 10:
      t.alias = op.parameters[in.below(op.parameter_count)]->name;
      break;
    case 11:
      t.without_memory = true;
      break;
    case 12:
      t.device = in.byte(), t.dtype.lanes = in.byte();
      break;
    default:  // another permutation of the numbers
      std::reverse(t.bytes.begin(), t.bytes.end());
  }
}

/// One parameter is given otherwise: not at all, with another value, as another kind.
void change(Call& call, const dsakit_operator& op, Input& in) {
  const dsakit_parameter& p = *op.parameters[in.below(op.parameter_count)];
  Given* g = find(call, p.name);
  const std::size_t how = in.below(16);
  if (g && how == 0) {
    call.erase(call.begin() + (g - call.data()));
    return;
  }
  if (!g) {
    call.push_back({&p, dsakit_no_arg(p.name, p.kind, 0), {}, {}, {}});
    g = &call.back();
    if (p.kind == DSAKIT_TENSOR || p.kind == DSAKIT_TENSORS) {
      g->tensors.push_back({.bytes = "\1\2\3\4"});
      for (std::size_t axes = in.below(4); axes > 0; --axes) g->tensors[0].shape.push_back(in.one_of(kLengths));
      g->tensors[0].dtype = {std::uint8_t(in.one_of(kDLPackTypes).code), std::uint8_t(8 << in.below(4)), 1};
    }
  } else if (how == 1) {
    g->a.kind = std::int32_t(in.below(10));
    if (g->a.kind == DSAKIT_TENSOR || g->a.kind == DSAKIT_TENSORS)
      g->tensors.resize(std::max<std::size_t>(1, g->tensors.size()));
  }
  switch (g->a.kind) {
    case DSAKIT_TENSORS:
      if (in.below(4) == 0) g->tensors.push_back(g->tensors.empty() ? Described{} : g->tensors.back());
      [[fallthrough]];
    case DSAKIT_TENSOR:
      if (!g->tensors.empty()) change(g->tensors[in.below(g->tensors.size())], in, g->a.flags, op);
      break;
    case DSAKIT_INTEGER:
      g->a.value.integer = in.one_of(kNumbers);
      break;
    case DSAKIT_INTEGERS:
      g->integers.resize(in.below(6), 1);
      if (!g->integers.empty()) g->integers[in.below(g->integers.size())] = in.one_of(kNumbers);
      break;
    case DSAKIT_REAL:
      g->a.value.real = in.one_of(kReals);
      break;
    case DSAKIT_BOOLEAN:
      g->a.value.boolean = in.below(2) == 1;
      break;
    case DSAKIT_STRING:
      g->text = word_for(p, in);
      break;
    default:
      break;
  }
}

// ---- as C has it

/// A call with its memory, and the arguments that describe it.
class Laid {
 public:
  explicit Laid(Call& call) : call_(call) {
    for (Given& g : call_)
      for (Described& t : g.tensors) lay(g, t);
    if (too_large_) return;
    for (Block& b : blocks_) b.before = b.now();
    describe();
  }

  /// Memory that a caller may well have, but not this one.
  bool too_large() const { return too_large_; }
  const std::vector<dsakit_argument>& arguments() const { return arguments_; }

  /// What was there before is there again; what is there now comes back.
  std::vector<std::string> taken() {
    std::vector<std::string> all;
    for (Block& b : blocks_) all.push_back(b.now()), b.restore();
    return all;
  }
  bool is_as_before(const std::vector<std::string>& now) const {
    for (std::size_t i = 0; i < now.size(); ++i)
      if (now[i] != blocks_[i].before) return false;
    return true;
  }
  /// Whether nothing but elements that may be written is another.
  bool is_written_well(const std::vector<std::string>& now) const {
    for (std::size_t i = 0; i < now.size(); ++i)
      for (std::size_t b = 0; b < now[i].size(); ++b)
        if (now[i][b] != blocks_[i].before[b] && !blocks_[i].touchable[b]) return false;
    return true;
  }

 private:
  /// From the lowest element to behind the highest one, in bytes; nothing where there is none. Exact where it is small.
  static std::optional<std::pair<double, double>> extent(const Described& t, bool nz) {
    if (nz && t.shape.size() >= 2) {
      const double bytes = bytes_in_nz(t);
      return bytes == 0 ? std::nullopt : std::optional(std::pair(0., bytes));
    }
    double low = 0, high = double(t.size());
    for (std::size_t a = 0; a < t.shape.size(); ++a) {
      if (t.shape[a] <= 0) return {};
      const double reach = double(t.shape[a] - 1) * double(t.stride(a)) * double(t.size());
      (reach < 0 ? low : high) += reach;
    }
    return std::pair(low, high);
  }

  void lay(const Given& g, Described& t) {
    const bool nz = (g.a.flags & DSAKIT_FRACTAL_NZ) != 0;
    const auto range = extent(t, nz);
    const bool impossible = range && range->second - range->first > 0x1p58;  // nobody has it: must be refused
    const std::int64_t low = range && !impossible ? std::int64_t(range->first) : 0,
                       high = range && !impossible ? std::int64_t(range->second) : 0;
    if (high - low > kMostBytes) too_large_ = true;
    if (too_large_) return;
    const auto owner = t.alias ? block_of_.find(t.alias) : block_of_.end();
    Block* block = owner == block_of_.end() ? nullptr : owner->second;
    const std::int64_t offset = std::int64_t(t.byte_offset);
    // Views of another tensor's memory stay inside of it.
    if (block && (block->origin + low + offset < block->memory.get() ||
                  block->origin + high + offset > block->memory.get() + block->bytes))
      block = nullptr;
    const bool fresh = !block;
    if (fresh) {
      block = &blocks_.emplace_back();
      block->bytes = high - low + offset;
      block->memory = std::make_unique<char[]>(std::size_t(block->bytes));
      block->origin = block->memory.get() - low;
      std::memset(block->memory.get(), 0x5A, std::size_t(block->bytes));
      block->touchable.resize(std::size_t(block->bytes));
      block_of_.try_emplace(g.parameter->name, block);
    }
    block_of_tensor_[&t] = block;
    if (range && !impossible)
      each_element(t, nz, low, high, [&](std::int64_t number, std::int64_t at) {
        char* to = block->origin + offset + at;
        for (std::int64_t b = 0; b < t.size(); ++b) {
          if (fresh && !t.bytes.empty()) to[b] = t.bytes[std::size_t(number * t.size() + b) % t.bytes.size()];
          if (is_written(*g.parameter)) block->touchable[std::size_t(to + b - block->memory.get())] = true;
        }
      });
  }

  static bool is_written(const dsakit_parameter& p) {
    const std::string_view role = p.role;
    return role == "out" || role == "inout" || role == "inout_opt";
  }

  /// f(number of the element, its offset in bytes), row-major.
  template <class F>
  static void each_element(const Described& t, bool nz, std::int64_t low, std::int64_t high, F f) {
    if (t.size() == 0) return;
    if (nz) {
      for (std::int64_t i = 0; (i + 1) * t.size() <= high - low; ++i) f(i, i * t.size());
      return;
    }
    double all = 1;
    for (const std::int64_t length : t.shape) all *= double(length);
    const std::int64_t count = all > double(kMostBytes) ? 0 : std::int64_t(all);  // 0: repeated by a stride of 0
    for (std::int64_t i = 0; i < count; ++i) {
      std::int64_t rest = i, at = 0;
      for (std::size_t a = t.shape.size(); a-- > 0; rest /= t.shape[a]) at += rest % t.shape[a] * t.stride(a);
      f(i, at * t.size());
    }
  }

  void describe() {
    for (Given& g : call_) {
      std::vector<dsakit_tensor>& tensors = tensors_.emplace_back();
      for (Described& t : g.tensors) {
        dsakit_tensor c = dsakit_cpu_tensor(t.without_memory ? nullptr : block_of_tensor_[&t]->origin, DSAKIT_INT, 8,
                                            int(t.shape.size()), t.shape.data());
        c.dtype = t.dtype, c.byte_offset = t.byte_offset, c.device.device_type = t.device;
        c.strides = t.strides.empty() ? nullptr : t.strides.data();
        tensors.push_back(c);
      }
      dsakit_argument a = g.a;
      const bool list = a.kind == DSAKIT_TENSORS || a.kind == DSAKIT_INTEGERS;
      a.count = !list ? 0 : a.kind == DSAKIT_TENSORS ? tensors.size() : g.integers.size();
      if (a.kind == DSAKIT_TENSOR || a.kind == DSAKIT_TENSORS) a.value.tensor = tensors.data();
      else a.flags = 0;
      if (a.kind == DSAKIT_INTEGERS) a.value.integers = g.integers.data();
      if (a.kind == DSAKIT_STRING) a.value.string = g.text.c_str();
      if (a.kind == DSAKIT_PACKED_WEIGHT) a.kind = DSAKIT_NONE;  // rows.cc packs
      arguments_.push_back(a);
    }
  }

  Call& call_;
  std::deque<Block> blocks_;
  std::map<std::string_view, Block*> block_of_;
  std::map<const Described*, Block*> block_of_tensor_;
  std::deque<std::vector<dsakit_tensor>> tensors_;
  std::vector<dsakit_argument> arguments_;
  bool too_large_ = false;
};

/// `isa` null: the best, or DSAKIT_ISA.
dsakit_context* context(const char* isa, bool check_values) {
  struct Destroy {
    void operator()(dsakit_context* c) const { dsakit_context_destroy(c); }
  };
  static std::map<std::pair<bool, bool>, std::unique_ptr<dsakit_context, Destroy>> all;
  auto& c = all[{isa != nullptr, check_values}];
  if (!c) {
    const dsakit_context_options options{.size = sizeof options,
                                         .isa = isa,
                                         .memory_limit = 64 << 20,
                                         .threads = 1,
                                         .same_products = true,
                                         .check_values = check_values};
    dsakit_context* made = nullptr;
    require(dsakit_context_create(&options, &made) == DSAKIT_OK, dsakit_last_error()->message);
    c.reset(made);
  }
  return c.get();
}

/// What a call says: the sentence of a refusal, or "".
struct Said {
  dsakit_status status;
  std::string sentence;

  Said(dsakit_status s, const dsakit_operator& op) : status(s) {
    if (s == DSAKIT_OK) return;
    const dsakit_error& e = *dsakit_last_error();
    sentence = e.message;
    require_sentence(sentence);
    require(e.status == s && s != DSAKIT_INTERNAL && s != DSAKIT_INTERRUPTED, sentence);
    require(std::string_view(e.operator_name) == op.name && sentence.starts_with(op.name), sentence);
    require(sentence.find(e.got) != sentence.npos && sentence.find(e.wanted) != sentence.npos, sentence);
  }
};

/// Results as the call with these inputs has them, where there are any.
void infer_results(const dsakit_operator& op, Call& call) {
  std::vector<dsakit_shape> results(op.result_count);
  {
    const Laid laid(call);
    if (laid.too_large()) return;
    if (Said(dsakit_infer(op.name, laid.arguments().data(), laid.arguments().size(), results.data(), results.size()),
             op)
            .status != DSAKIT_OK)
      return;
  }
  for (const dsakit_shape& r : results)
    if (Given* g = find(call, r.name); g && r.ndim >= 0 && g->tensors.size() == 1 && !g->tensors[0].alias) {
      g->tensors[0].dtype = r.dtype, g->tensors[0].strides.clear();
      g->tensors[0].shape.assign(r.shape, r.shape + r.ndim);
    }
}

void run(const dsakit_operator& op, Call& call, bool check_values) {
  Laid laid(call);
  if (laid.too_large()) return;
  const std::vector<dsakit_argument>& arguments = laid.arguments();
  struct Run {
    Said said;
    std::vector<std::string> memory;
  };
  const auto run = [&](const std::string& name, dsakit_context* c) {
    const Said said(dsakit_run(c, name.c_str(), arguments.data(), arguments.size()), op);
    Run r{said, laid.taken()};
    require(said.status == DSAKIT_OK || laid.is_as_before(r.memory), "refused, but written: " + said.sentence);
    require(laid.is_written_well(r.memory), std::string(op.name) + ": written beside results and caches");
    return r;
  };
  const Run reference = run(std::string("reference.") + op.name, nullptr);
  const Run generic = run(op.name, context("generic", check_values));
  const Run fast = run(op.name, context(nullptr, check_values));
  require(fast.said.sentence == generic.said.sentence,
          "the rungs differ: " + fast.said.sentence + "\n" + generic.said.sentence);
  require(fast.memory == generic.memory, std::string(op.name) + ": the rungs have other bits");
  // The reference has no context: neither a limit of memory nor value checking.
  if (fast.said.status != DSAKIT_OUT_OF_MEMORY && fast.said.status != DSAKIT_INVALID_VALUE)
    require(fast.said.sentence == reference.said.sentence,
            "the operator: " + fast.said.sentence + "\nits reference: " + reference.said.sentence);
}

}  // namespace
}  // namespace dsakit::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace dsakit::fuzz;
  static std::map<std::string, decltype(made("")), std::less<>> kept;  // most inputs change what is behind the line
  Input in(data, size);
  const std::string_view line = in.until('\n');
  auto at = kept.find(line);
  if (at == kept.end()) {
    if (kept.size() >= 512) kept.clear();
    at = kept.emplace(line, made(line)).first;
  }
  if (!at->second) return 0;
  const dsakit_operator& op = *at->second->first;
  Call call = at->second->second;
  const std::uint8_t how = in.byte();
  for (int changes = 0; !in.empty() && changes < 6; ++changes) change(call, op, in);
  if (how & 1) infer_results(op, call);
  run(op, call, (how & 2) != 0);
  return 0;
}
