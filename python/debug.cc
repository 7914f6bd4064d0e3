// SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "arrays.hpp"
#include "core/check.hpp"
#include "debug/check_layout.hpp"
#include "debug/compare.hpp"
#include "debug/golden.hpp"
#include "debug/index_scores.hpp"
#include "debug/rule.hpp"
#include "debug/scores.hpp"
#include "debug/spelling.hpp"
#include "dsakit/capture.hpp"
#include "dsakit/context.hpp"
#include "module.hpp"

// What dsakit.debug is made of.
namespace dsakit::python {
namespace {

using debug::Case;

nb::object array_of(const Tensor& t, std::int64_t bytes) {
  const bool known = t.dtype != DType::other;
  const std::vector<std::int64_t> shape =
      known ? std::vector<std::int64_t>(t.shape.begin(), t.shape.begin() + t.rank) : std::vector<std::int64_t>{bytes};
  const nb::object array = numpy_empty(shape, numpy_dtype(known ? t.dtype : DType::u8));
  if (bytes == 0) return array;
  auto* to = reinterpret_cast<std::byte*>(nb::cast<std::uintptr_t>(array.attr("ctypes").attr("data")));
  Tensor dense = t;
  make_contiguous(dense);
  dense.data = to;
  if (!known) std::memcpy(to, t.data, std::size_t(bytes));
  else if (t.elements() > 0) copy_elements(t, dense);
  return array;
}

nb::object array_of(const Tensor& t) { return array_of(t, t.elements() * size_of(t.dtype)); }

/// A tensor of a case, behind its views.
nb::object get_tensor(const Case& c, const std::string& key) {
  if (!c.has(key)) throw nb::key_error(key.c_str());
  const debug::Origin origin = debug::origin_of(c, key);
  const debug::Stored& stored = c.tensors.find(origin.key)->second;
  Tensor t = stored.tensor();
  t.dtype = debug::dtype_of(c, origin.key);
  if (origin.is_view) {
    t.rank = int(origin.shape.size());
    std::copy(origin.shape.begin(), origin.shape.end(), t.shape.begin());
    std::copy(origin.stride.begin(), origin.stride.end(), t.stride.begin());
    t.data = static_cast<std::byte*>(t.data) + origin.offset * size_of(t.dtype);
    return array_of(t);
  }
  return array_of(t, std::int64_t(stored.bytes->size()));
}

void set_tensor(Case& c, const std::string& key, nb::handle value) {
  Arrays arrays("case");
  const Tensor t = arrays.read(value.ptr(), key.c_str(), false);
  Check("case", Level::portable).required(t, key.c_str());
  c.tensors[key] = debug::Stored(t);
}

nb::object python_of(const debug::Attribute& value) {
  return std::visit(
      []<class T>(const T& v) -> nb::object {
        if constexpr (std::is_same_v<T, std::monostate>) return nb::none();
        else return nb::cast(v);
      },
      value);
}

debug::Attribute attribute_of(const std::string& name, nb::handle value) {
  Arrays arrays("case");
  PyObject* o = value.ptr();
  if (value.is_none()) return {};
  if (PyBool_Check(o)) return o == Py_True;
  if (PyFloat_Check(o)) return PyFloat_AS_DOUBLE(o);
  if (PyUnicode_Check(o)) return nb::cast<std::string>(value);
  const auto integer = [&](PyObject* number) {
    const nb::object index = nb::steal(PyNumber_Index(number));
    if (!index.is_valid()) {
      PyErr_Clear();
      arrays.refuse(Status::invalid_dtype, name.c_str(), "is " + type_of(o),
                    "None, a bool, an int, a float, a str or a list of int");
    }
    int overflow = 0;
    const std::int64_t n = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
    if (overflow) arrays.refuse(Status::invalid_argument, name.c_str(), "is beyond 64 bits", "-2^63..2^63-1");
    return n;
  };
  if (!PyList_Check(o) && !PyTuple_Check(o)) return integer(o);
  std::vector<std::int64_t> list;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); ++i) list.push_back(integer(PySequence_Fast_GET_ITEM(o, i)));
  return list;
}

nb::object layout_of(const Case& c, const std::string& key) {
  const auto at = c.layouts.find(key);
  nb::dict d;
  if (at == c.layouts.end()) return d;
  const debug::Layout& l = at->second;
  const auto add = [&](const char* name, const std::string& value) {
    if (!value.empty()) d[name] = value;
  };
  add("format", l.format);
  if (l.npu_format.index() != 0) d["npu_format"] = python_of(l.npu_format);
  add("of", l.of);
  if (l.shape) d["shape"] = *l.shape;
  if (l.stride) d["stride"] = *l.stride;
  if (l.offset) d["offset"] = *l.offset;
  add("pages", l.pages);
  if (l.full) d["full"] = *l.full;
  add("file", l.file);
  add("dtype", l.dtype);
  return d;
}

void set_layout(Case& c, const std::string& key, const nb::dict& fields) {
  debug::Layout l;
  for (const auto& [field, value] : fields) {
    const auto name = nb::cast<std::string>(field);
    const debug::Attribute as = attribute_of("layout." + name, value);
    const auto take = [&]<class T>(T& to) {
      const T* given = std::get_if<T>(&as);
      if (!given) throw Error(Status::invalid_argument, "case", "layout." + name, "", "is of another type", "its own");
      to = *given;
    };
    const auto integers = [&](auto& to) { take(to.emplace()); };
    if (name == "format") take(l.format);
    else if (name == "npu_format") l.npu_format = as;
    else if (name == "of") take(l.of);
    else if (name == "shape") integers(l.shape);
    else if (name == "stride") integers(l.stride);
    else if (name == "offset") integers(l.offset);
    else if (name == "pages") take(l.pages);
    else if (name == "full") integers(l.full);
    else if (name == "file") take(l.file);
    else if (name == "dtype") take(l.dtype);
    else throw Error(Status::invalid_argument, "case", "layout." + name, "", "is unknown", "a field of a layout");
  }
  if (l == debug::Layout()) c.layouts.erase(key);
  else c.layouts[key] = l;
}

/// What a run left: {"results": {key: array}, "pages": {key: [..]}, "undefined": {key: [[first, end], ..]}, ..}
struct Run {
  std::shared_ptr<debug::Outcome> outcome;

  nb::dict results() const {
    nb::dict all;
    for (const auto& [key, r] : outcome->results) all[key.c_str()] = array_of(r.tensor);
    return all;
  }
  nb::dict pages() const {
    nb::dict all;
    for (const auto& [key, r] : outcome->results)
      if (!r.pages.empty()) all[key.c_str()] = nb::cast(r.pages);
    return all;
  }
  nb::dict undefined() const {
    nb::dict all;
    for (const auto& [key, r] : outcome->results) {
      nb::list ranges;
      for (const debug::RowRange& range : r.undefined) ranges.append(nb::make_tuple(range.first, range.end));
      if (!r.undefined.empty()) all[key.c_str()] = ranges;
    }
    return all;
  }
  nb::object refusal() const {
    if (!outcome->refusal) return nb::none();
    return nb::make_tuple(name_of(outcome->refusal->status), std::string(outcome->refusal->what()));
  }
};

Run run_case(const Case& c, bool reference, bool strides, int threads, const std::string& isa) {
  auto outcome = std::make_shared<debug::Outcome>();
  std::optional<Context> own;
  if (threads > 0 || !isa.empty()) own.emplace(ContextOptions{.threads = threads, .isa = isa});
  Context& used = own ? *own : context();
  nb::gil_scoped_release release;
  *outcome = debug::execute(c, {.reference = reference, .strides = strides, .context = &used});
  return {outcome};
}

/// What is no tensor, as the call has it: given, or the default of its spelling.
nb::dict call_attributes(const Case& c) {
  const debug::Bound bound = debug::bind(c);
  nb::dict all;
  for (std::size_t i = 0; i < c.op().parameters.size(); ++i)
    std::visit(
        [&]<class T>(const T& v) {
          const nb::str name(std::string(c.op().parameters[i].field.name).c_str());
          if constexpr (std::is_same_v<T, std::monostate>) all[name] = nb::none();
          else if constexpr (!std::is_same_v<T, Tensor> && !std::is_same_v<T, std::vector<Tensor>>) all[name] = v;
        },
        bound.arguments.values[i]);
  return all;
}

/// Of each of these query rows of an indexer, what the keys that it sees are worth.
nb::list index_scores(const Case& c, const std::vector<std::int64_t>& rows) {
  if (c.op().name != "lightning_indexer" && c.op().name != "quant_lightning_indexer")
    throw Error(Status::invalid_argument, "case", "index_scores", "", "is asked of " + std::string(c.op().name),
                "lightning_indexer or quant_lightning_indexer");
  const debug::Bound bound = debug::bind(c);
  const debug::IndexScores scores(bound.arguments);
  nb::list all;
  for (const std::int64_t row : rows) {
    if (row < 0 || row >= scores.rows())
      throw Error(Status::invalid_argument, "case", "row", "", "is " + std::to_string(row),
                  "0.." + std::to_string(scores.rows() - 1));
    std::vector<double> of_row(std::size_t(scores.visible(row)));
    for (std::size_t key = 0; key < of_row.size(); ++key) of_row[key] = scores.score(row, std::int64_t(key));
    all.append(array_of(tensor(of_row.data(), {std::int64_t(of_row.size())})));
  }
  return all;
}

nb::object position_of(const Tensor& t, std::int64_t linear) {
  if (linear < 0) return nb::none();
  nb::list position;
  for (int a = 0; a < t.rank; ++a) position.append(0);
  for (int a = t.rank - 1; a >= 0; --a) position[std::size_t(a)] = nb::int_(linear % t.shape[a]), linear /= t.shape[a];
  return nb::tuple(position);
}

nb::list compared(const Case& c, const std::vector<debug::Pair>& pairs) {
  nb::list all;
  for (const debug::Pair& pair : pairs) {
    nb::dict d;
    d["name"] = pair.key;
    d["parameter"] = pair.parameter;
    d["mismatch"] = pair.mismatch;
    if (pair.mismatch.empty()) {
      const debug::Bits bits = debug::compare_bits(pair, debug::nan_fails(c));
      d["elements"] = bits.elements;
      d["different"] = bits.different;
      d["first"] = position_of(pair.recorded, bits.first);
    }
    all.append(d);
  }
  return all;
}

nb::list judged(const std::string& rule, const Case& c, const std::vector<debug::Pair>& pairs,
                const std::vector<debug::Pair>& third) {
  nb::list all;
  const auto scores = debug::needs_scores(rule) ? debug::index_scores(c) : std::vector<std::vector<double>>();
  for (const debug::Pair& pair : pairs) {
    const debug::Pair* other = nullptr;
    for (const debug::Pair& t : third)
      if (t.parameter == pair.parameter) other = &t;
    const debug::Finding f = debug::judge(rule, c.op(), pair, other, &scores);
    const debug::Figures& n = f.figures;
    nb::dict d;
    d["name"] = f.key;
    d["parameter"] = f.parameter;
    d["passes"] = f.passes;
    d["sentence"] = f.sentence;
    d["elements"] = n.elements;
    d["equal"] = n.equal;
    d["nonfinite"] = n.nonfinite;
    d["max_abs"] = n.max_abs;
    d["mean_abs"] = n.mean_abs;
    d["mere"] = n.mere;
    d["mare"] = n.mare;
    d["rms"] = n.rms;
    d["cosine"] = n.cosine;
    d["worst"] = position_of(f.shape, n.worst);
    d["worst_values"] = nb::make_tuple(n.worst_a, n.worst_g);
    d["departing"] = n.departing;
    d["worst_departing"] = position_of(f.shape, n.worst_departing);
    d["worst_departing_values"] = nb::make_tuple(n.departing_a, n.departing_g);
    all.append(d);
  }
  return all;
}

}  // namespace

void bind_debug(nb::module_& m) {
  nb::class_<Run>(m, "CaseRun", "What a run of a case left.")
      .def_prop_ro("results", &Run::results)
      .def_prop_ro("pages", &Run::pages)
      .def_prop_ro("undefined", &Run::undefined)
      .def_prop_ro("refusal", &Run::refusal)
      .def_prop_ro("seconds", [](const Run& r) { return r.outcome->seconds; });
  nb::class_<Case>(m, "Case", "One call of one operator as a file; dsakit.debug.Case is made of it.")
      .def(
          "__init__", [](Case* c, const std::string& call) { (new (c) Case())->call = call; }, nb::arg("call"))
      .def_static(
          "read", [](nb::handle path) { return debug::read_case(path_of(path)); }, nb::arg("path"))
      .def(
          "write", [](const Case& c, nb::handle path) { debug::write_case(c, path_of(path)); }, nb::arg("path"))
      .def("copy", [](const Case& c) { return c; })
      .def("check", [](const Case& c) { debug::check_case(c); })
      .def_rw("name", &Case::name)
      .def_rw("call", &Case::call)
      .def_prop_ro("operator", [](const Case& c) { return std::string(c.op().name); })
      .def_prop_ro("attributes",
                   [](const Case& c) {
                     nb::dict all;
                     for (const auto& [name, value] : c.attributes) all[name.c_str()] = python_of(value);
                     return all;
                   })
      .def(
          "set_attribute",
          [](Case& c, const std::string& name, nb::handle value) {
            c.attributes[name] = debug::number_where_due(c, name, attribute_of(name, value));
          },
          nb::arg("name"), nb::arg("value").none())
      .def("remove_attribute", [](Case& c, const std::string& name) { c.attributes.erase(name); })
      .def("names", [](const Case& c, const std::string& group) { return c.names(group); })
      .def("keys",
           [](const Case& c) {
             std::vector<std::string> all;
             for (const char* group : {"in", "out", "after", "ref", "tap", "float", "pages"})
               for (const std::string& name : c.names(group)) all.push_back(std::string(group) + "." + name);
             return all;
           })
      .def("parameter",
           [](const Case& c, const std::string& group, const std::string& name) -> nb::object {
             const auto place = c.place(group, name);
             if (!place) return nb::none();
             return nb::cast(std::string(c.op().parameters[std::size_t(place->parameter)].field.name));
           })
      .def("get", get_tensor)
      .def("set", set_tensor)
      .def("remove", [](Case& c, const std::string& key) { return c.tensors.erase(key) + c.layouts.erase(key); })
      .def("layout", layout_of)
      .def("set_layout", set_layout)
      .def_prop_ro("metadata",
                   [](const Case& c) {
                     nb::dict all;
                     for (const auto& [key, value] : c.metadata) all[key.c_str()] = value;
                     return all;
                   })
      .def("set_metadata", [](Case& c, const std::string& key, const std::string& text) { c.metadata[key] = text; })
      .def("remove_metadata", [](Case& c, const std::string& key) { c.metadata.erase(key); })
      .def("refusal",
           [](const Case& c) -> nb::object {
             const auto sentence = c.refusal();
             return sentence ? nb::cast(*sentence) : nb::none();
           })
      .def("run", run_case, nb::arg("reference"), nb::arg("strides"), nb::arg("threads"), nb::arg("isa"))
      .def("want_results", debug::want_results)
      .def("call_attributes", call_attributes)
      .def("index_scores", index_scores, nb::arg("rows"))
      .def("compare", [](const Case& c, const std::string& group,
                         const Run& run) { return compared(c, debug::pairs_of(c, group, *run.outcome)); })
      .def("compare_case",
           [](const Case& c, const std::string& group, const Case& other, const std::string& group_other) {
             return compared(c, debug::pairs_of(c, group, other, group_other));
           })
      // Group `ref` of the case is the third result of rules that need one.
      .def("judge",
           [](const Case& c, const std::string& rule, const std::string& group, const Run& run) {
             return judged(rule, c, debug::pairs_of(c, group, *run.outcome), debug::pairs_of(c, "ref", *run.outcome));
           })
      .def("judge_case", [](const Case& c, const std::string& rule, const std::string& group, const Case& other,
                            const std::string& group_other) {
        return judged(rule, c, debug::pairs_of(c, group, other, group_other), {});
      });
  nb::class_<Capture>(m, "Capture", "A recording; dsakit.capture is made of it.")
      .def(
          "__init__",
          [](Capture* c, const std::string& path, const std::vector<std::string>& operators, std::int64_t every,
             std::int64_t max_bytes, const std::string& keep, const std::string& caches, const std::string& weights,
             const std::vector<std::string>& taps) {
            new (c) Capture({.path = path,
                             .operators = operators,
                             .every = every,
                             .max_bytes = std::uint64_t(max_bytes),
                             .keep = keep,
                             .caches = caches,
                             .weights = weights,
                             .taps = taps});
          },
          nb::arg("path"), nb::arg("operators"), nb::arg("every"), nb::arg("max_bytes"), nb::arg("keep"),
          nb::arg("caches"), nb::arg("weights"), nb::arg("taps"))
      .def("end", &Capture::end, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("seen", &Capture::seen)
      .def_prop_ro("written", &Capture::written);
  m.def(
      "mark",
      [](std::optional<std::int64_t> step, std::optional<std::int64_t> layer, std::optional<bool> dummy) {
        mark({.step = step, .layer = layer, .dummy = dummy});
      },
      nb::arg("step").none(), nb::arg("layer").none(), nb::arg("dummy").none());
  m.def("case_spellings", [] {
    nb::dict all;
    for (const auto& [name, op] : debug::spellings()) all[name.c_str()] = std::string(op->name);
    return all;
  });
  m.def(
      "case_golden", [](const std::string& op, const debug::Settings& settings) { return debug::golden(op, settings); },
      nb::arg("operator"), nb::arg("settings"), nb::call_guard<nb::gil_scoped_release>());
  m.def("case_rules", [] {
    nb::dict all;
    for (const debug::RuleInfo& rule : debug::rules()) all[std::string(rule.name).c_str()] = std::string(rule.passes);
    return all;
  });
}

}  // namespace dsakit::python
