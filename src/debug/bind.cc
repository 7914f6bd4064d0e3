// SPDX-License-Identifier: Apache-2.0
#include "debug/bind.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>

#include "core/check.hpp"
#include "core/view.hpp"
#include "debug/addressing.hpp"
#include "debug/check_layout.hpp"
#include "debug/spelling.hpp"
#include "dsakit/error.hpp"
#include "io/json.hpp"

namespace dsakit::debug {
namespace {

class Binding {
 public:
  Binding(const Case& c, bool strides) : case_(c), op_(c.op()), strides_(strides) {
    bound_.arguments = default_arguments(op_);
  }

  Bound bind() {
    attributes();
    tensors();
    lengths();
    if (case_.refusal()) full_caches();
    else pools();
    copies();
    return std::move(bound_);
  }

 private:
  /// One argument: which parameter, of a list which element, and what it is in the file.
  struct Given {
    std::size_t parameter;
    int element;
    std::string key;
    Origin origin;
  };

  void attributes() {
    for (const auto& [name, value] : defaults_of(case_.call)) set(bound_.arguments.at(name), value);
    for (const auto& [name, value] : case_.attributes) {
      auto place = case_.place("attributes", name);
      if (!place) place = case_.place("in", name);
      const auto i = std::size_t(place->parameter);
      const Field& field = op_.parameters[i].field;
      if (value.index() == 0) {
        // scatter_pa_kv_cache: "None means Norm".
        if (field.name == std::string_view("cache_mode") && op_.name.starts_with("scatter_pa"))
          bound_.arguments.values[i] = std::string("Norm");
      } else if (field.has_member()) {
        set(bound_.arguments.values[i], value);
      } else {
        without_member(field);
      }
    }
  }

  static void set(Argument& to, const Attribute& value) {
    std::visit([&](const auto& v) { to = v; }, value);
  }

  void without_member(const Field& field) const {
    if (field.role == Role::hint) return;
    const bool reserved = field.role == Role::reserved;
    throw Error(reserved ? Status::unsupported : Status::invalid_argument, std::string(op_.name), field.name, "",
                "is given", "absent", reserved ? "reserved" : "no parameter of this operator");
  }

  void tensors() {
    for (const std::string& name : case_.names("in")) {
      const Place place = *case_.place("in", name);
      const Field& field = op_.parameters[std::size_t(place.parameter)].field;
      const std::string key = "in." + name;
      if (!field.has_member()) without_member(field);
      else given_.push_back({std::size_t(place.parameter), place.element, key, origin_of(case_, key)});
    }
    for (const Given& g : given_) {
      bound_.memory.push_back(case_.tensors.find(g.origin.key)->second);  // whatever becomes of the case
      slot(g) = tensor_of(g);
    }
  }

  Tensor& slot(const Given& g) {
    Argument& argument = bound_.arguments.values[g.parameter];
    if (g.element < 0) {
      if (!std::holds_alternative<Tensor>(argument)) argument = Tensor{};
      return std::get<Tensor>(argument);
    }
    if (!std::holds_alternative<std::vector<Tensor>>(argument)) argument = std::vector<Tensor>{};
    auto& list = std::get<std::vector<Tensor>>(argument);
    if (list.size() <= std::size_t(g.element)) {
      if (g.element > 1024)
        refuse_case(case_, io::printable(g.key), "is element " + std::to_string(g.element), "at most 1024",
                    "CASE_NAME");
      list.resize(std::size_t(g.element) + 1);
    }
    return list[std::size_t(g.element)];
  }

  const Layout* layout_of(const std::string& key) const {
    const auto at = case_.layouts.find(key);
    return at == case_.layouts.end() ? nullptr : &at->second;
  }
  bool is_partial(const Given& g) const {
    const Layout* layout = layout_of(g.origin.key);
    return layout && !layout->pages.empty();
  }

  /// As the file has it; of a partly stored one the full shape, without memory.
  Tensor tensor_of(const Given& g) {
    const Stored& stored = case_.tensors.find(g.origin.key)->second;
    const Layout* layout = layout_of(g.origin.key);
    Tensor t = stored.tensor();
    t.dtype = dtype_of(case_, g.origin.key);
    if (is_partial(g)) {
      t.data = nullptr;
      std::copy(layout->full->begin(), layout->full->end(), t.shape.begin());
      make_contiguous(t);
    } else if (g.origin.is_view) {
      t.rank = int(g.origin.shape.size());
      std::copy(g.origin.shape.begin(), g.origin.shape.end(), t.shape.begin());
      std::copy(g.origin.stride.begin(), g.origin.stride.end(), t.stride.begin());
      t.data = static_cast<std::byte*>(t.data) + g.origin.offset * size_of(t.dtype);
    } else if (layout && layout->format == "NZ") {
      t.format = Format::NZ;
      t.rank = int(layout->shape->size());
      std::copy(layout->shape->begin(), layout->shape->end(), t.shape.begin());
      make_contiguous(t);
    }
    return t;
  }

  /// Lists of integers, and tensors of them, as the operators read lengths.
  void lengths() {
    for (std::size_t i = 0; i < op_.parameters.size(); ++i) {
      if (op_.parameters[i].field.kind != Kind::lengths) continue;
      Argument& argument = bound_.arguments.values[i];
      if (const auto* list = std::get_if<Integers>(&argument)) {
        Tensor t = shaped(DType::i64, {std::int64_t(list->size())});
        const Integers kept = *list;
        t.data = const_cast<std::int64_t*>(kept.data());
        argument = narrowed(op_.parameters[i], t);
      } else if (const auto* t = std::get_if<Tensor>(&argument);
                 t && *t && t->dtype != DType::i32 && t->dtype >= DType::u8 && t->dtype <= DType::i64) {
        argument = narrowed(op_.parameters[i], *t);
      }
    }
  }

  Tensor narrowed(const Parameter& p, const Tensor& from) {
    Stored& stored = bound_.memory.emplace_back(io::file_dtype_of(DType::i32),
                                                Integers(from.shape.begin(), from.shape.begin() + from.rank));
    auto* to = reinterpret_cast<std::int32_t*>(stored.bytes->data());
    for (std::int64_t i = 0, n = from.elements(); i < n; ++i) {
      const std::int64_t value = integer_at(from, i);
      if (value < INT32_MIN || value > INT32_MAX)
        throw Error(Status::invalid_seqlen, std::string(op_.name), p.field.name, subscript(from, i),
                    "is " + std::to_string(value), "an int32");
      to[i] = std::int32_t(value);
    }
    return stored.tensor();
  }

  /// Where the entries of a partly stored tensor lie: page -> entry.
  std::map<std::int64_t, std::int64_t> entries_of(const Given& g) const {
    std::map<std::int64_t, std::int64_t> entries;
    const Stored& pages = case_.tensors.find(layout_of(g.origin.key)->pages)->second;
    const auto* page = reinterpret_cast<const std::int64_t*>(pages.bytes->data());
    for (std::int64_t i = 0; i < pages.shape[0]; ++i) entries[page[i]] = i;
    return entries;
  }

  /// A refused call computes nothing, and its sentence speaks of the full shapes: memory of which hardly any is
  /// touched.
  void full_caches() {
    for (const Given& g : given_) {
      if (!is_partial(g)) continue;
      Tensor& t = slot(g);
      const io::FileDType& type = *case_.tensors.find(g.origin.key)->second.type;
      t.data = bound_.memory.emplace_back(type, Integers(t.shape.begin(), t.shape.begin() + t.rank)).bytes->data();
    }
  }

  void pools() {
    std::set<std::string_view> done;
    for (const PageUse& use : pages_of(bound_.arguments)) {
      const bool partial = std::any_of(given_.begin(), given_.end(), [&](const Given& g) {
        return is_partial(g) && std::find(use.caches.begin(), use.caches.end(), name_of(g)) != use.caches.end();
      });
      done.insert(use.caches.begin(), use.caches.end());
      if (partial) make_pools(use);
    }
    for (const Given& g : given_)
      if (is_partial(g) && !done.contains(name_of(g)))
        refuse_case(case_, io::printable(g.key), "is partly stored", "all of it", "CASE_PAGES",
                    "which pages a call of " + std::string(op_.name) + " looks at is not known");
  }

  std::string_view name_of(const Given& g) const { return op_.parameters[g.parameter].field.name; }

  void make_pools(const PageUse& use) {
    Integers pages = use.needed();
    for (const Given& g : given_)
      if (pages.empty() && is_partial(g) && !entries_of(g).empty())
        pages.push_back(entries_of(g).begin()->first / use.entries);
    const Integers needed = use.entries_of(pages);
    ByName<Stored> made;  // by what is stored: views of one tensor stay one
    for (const Given& g : given_) {
      if (std::find(use.caches.begin(), use.caches.end(), name_of(g)) == use.caches.end()) continue;
      Tensor& t = slot(g);
      Stored& pool = made[g.origin.is_view && !is_partial(g) ? g.key : g.origin.key];
      if (!pool.type) pool = pool_of(use, g, t, needed);
      const DType dtype = t.dtype;
      t = pool.tensor(), t.dtype = dtype;
      bound_.memory.push_back(pool);
      bound_.pools[std::string(name_of(g))] = needed;
    }
    renumber(use, pages);
  }

  Stored pool_of(const PageUse& use, const Given& g, const Tensor& t, const Integers& needed) const {
    const auto entries = is_partial(g) ? entries_of(g) : std::map<std::int64_t, std::int64_t>();
    Tensor from = is_partial(g) ? case_.tensors.find(g.origin.key)->second.tensor() : t;
    from.dtype = t.dtype;
    Integers shape(t.shape.begin(), t.shape.begin() + t.rank);
    shape[0] = std::int64_t(needed.size());
    Stored pool(*case_.tensors.find(g.origin.key)->second.type, shape);
    const std::int64_t elements = needed.empty() ? 0 : pool.elements() / shape[0];
    for (std::size_t i = 0; i < needed.size(); ++i) {
      std::int64_t entry = needed[i];
      if (is_partial(g)) {
        const auto at = entries.find(entry);
        if (at == entries.end()) not_stored(use, g, entry);
        entry = at->second;
      }
      const std::int64_t size = size_of(from.dtype);
      for (std::int64_t e = 0; e < elements; ++e)
        std::memcpy(pool.bytes->data() + (std::int64_t(i) * elements + e) * size,
                    static_cast<const std::byte*>(from.data) + offset_of(from, entry * elements + e) * size,
                    std::size_t(size));
    }
    return pool;
  }

  [[noreturn]] void not_stored(const PageUse& use, const Given& g, std::int64_t page) const {
    const auto wanted =
        std::find_if(use.used.begin(), use.used.end(), [&](const auto& e) { return e.page == page / use.entries; });
    const std::string by = std::string(use.numbers) + subscript(bound_.arguments.tensor(use.numbers), wanted->at);
    refuse_case(case_, "page " + std::to_string(page) + " of " + io::printable(g.key), "is not stored", "by " + by,
                "CASE_PAGES", "record with caches=\"whole\"");
  }

  /// Entries that the call does not look at keep naming some page, if they did: a door may ask for no more than that.
  void renumber(const PageUse& use, const Integers& pages) {
    Tensor& numbers = std::get<Tensor>(bound_.arguments.at(use.numbers));
    const Stored& copy = bound_.memory.emplace_back(numbers);
    Tensor to = copy.tensor();
    for (std::int64_t i = 0, n = to.elements(); i < n; i += use.step) {
      const std::int64_t number = integer_at(numbers, i);
      if (number < 0 || number / use.per_page >= use.pages) continue;
      const auto at = std::lower_bound(pages.begin(), pages.end(), number / use.per_page);
      const bool there = at != pages.end() && *at == number / use.per_page;
      const std::int64_t entry = there ? at - pages.begin() : 0;
      const std::int64_t value = entry * use.per_page + number % use.per_page;
      if (to.dtype == DType::i64) static_cast<std::int64_t*>(to.data)[i] = value;
      else if (to.dtype == DType::i32) static_cast<std::int32_t*>(to.data)[i] = std::int32_t(value);
    }
    numbers = to;
  }

  /// What the call writes is ours; and tensors with strides get them.
  void copies() {
    std::set<std::string> written;
    for (const Given& g : given_)
      if (is_updated(op_, op_.parameters[g.parameter])) written.insert(g.origin.key);
    ByName<Stored> made;
    for (const Given& g : given_) {
      Tensor& t = slot(g);
      if (bound_.pools.contains(name_of(g)) || op_.parameters[g.parameter].field.kind == Kind::lengths) continue;
      const Layout* layout = layout_of(g.key);
      if (strides_ && layout && layout->stride && !g.origin.is_view && t.format == Format::ND)
        spread(t, *layout->stride);
      if (!written.contains(g.origin.key) || is_partial(g)) continue;
      const Stored& stored = case_.tensors.find(g.origin.key)->second;
      Stored& copy = made[g.origin.key];
      if (!copy.type) {
        copy = Stored(*stored.type, stored.shape);
        std::copy_n(stored.bytes->data(), stored.bytes->size(), copy.bytes->data());
        bound_.memory.push_back(copy);
      }
      const auto* first = stored.bytes->data();
      const auto* at = static_cast<const std::byte*>(t.data);
      if (at >= first && at <= first + stored.bytes->size()) t.data = copy.bytes->data() + (at - first);
    }
  }

  void spread(Tensor& t, const Integers& stride) {
    std::int64_t extent = t.elements() > 0;
    for (int a = 0; a < t.rank; ++a) extent += (t.shape[a] - 1) * stride[std::size_t(a)] * (t.elements() > 0);
    const Tensor dense = t;
    t.data = bound_.memory.emplace_back(io::file_dtype_of(t.dtype), Integers{extent}).bytes->data();
    std::copy(stride.begin(), stride.end(), t.stride.begin());
    const std::int64_t size = size_of(t.dtype);
    for (std::int64_t i = 0, n = t.elements(); i < n; ++i)
      std::memcpy(static_cast<std::byte*>(t.data) + offset_of(t, i) * size,
                  static_cast<const std::byte*>(dense.data) + offset_of(dense, i) * size, std::size_t(size));
  }

  const Case& case_;
  const Operator& op_;
  bool strides_;
  std::vector<Given> given_;
  Bound bound_;
};

}  // namespace

bool is_updated(const Operator& op, const Parameter& p) {
  if (p.field.role == Role::inout || p.field.role == Role::inout_opt) return true;
  const std::string out = std::string(p.field.name) + "_out";
  return std::any_of(op.parameters.begin(), op.parameters.end(),
                     [&](const Parameter& other) { return other.field.role == Role::out && other.field.name == out; });
}

Arguments default_arguments(const Operator& op) {
  Arguments all{&op, {}};
  for (const Parameter& p : op.parameters) {
    Argument value;
    std::visit(
        [&]<class T>(const T& v) {
          if constexpr (std::is_same_v<T, std::string_view>) value = std::string(v);
          else if constexpr (std::is_same_v<T, Axes>) value = argument_of(v);
          else if constexpr (!std::is_same_v<T, std::monostate>) value = v;
        },
        p.default_value);
    all.values.push_back(std::move(value));
  }
  return all;
}

Bound bind(const Case& c, bool strides) { return Binding(c, strides).bind(); }

}  // namespace dsakit::debug
