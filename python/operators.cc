// SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "arrays.hpp"
#include "core/check.hpp"
#include "core/level.hpp"
#include "debug/watch.hpp"
#include "dsakit/dist.hpp"
#include "dsakit/dsakit.hpp"
#include "module.hpp"
#include "ops/describe.hpp"
#include "ops/lightning_indexer_prolog_quant/problem.hpp"
#include "ops/mla_indexer_prolog_quant/problem.hpp"

namespace dsakit::python {
namespace {

/// One parameter of the description, and what a call needs to know of it beyond.
struct Slot : Parameter {
  int twin = -1;  // of "x_out": the slot of "x", whose memory infer() may choose when x_out is absent; and back
};

/// In the order of for_each_field, those that have a member: what Python hands over.
template <class Args, class Outs>
const std::vector<Slot>& slots_of() {
  static const auto* slots = new std::vector<Slot>([] {
    std::vector<Slot> all;
    for (const Parameter& p : describe_operator<Args, Outs>("").parameters)
      if (p.field.has_member()) all.push_back({p});
    for (std::size_t i = 0; i < all.size(); ++i)
      for (std::size_t j = 0; j < all.size(); ++j)
        if (std::string(all[j].field.name) + "_out" == all[i].field.name && !all[j].list)
          all[i].twin = int(j), all[j].twin = int(i);
    return all;
  }());
  return *slots;
}

nb::object python_of(const Default& value) {
  return std::visit(
      []<class T>(const T& v) -> nb::object {
        if constexpr (std::is_same_v<T, std::monostate>) return nb::none();
        else if constexpr (std::is_same_v<T, Axes>) {
          nb::list axes;
          for (std::int64_t i = 0; i < v.count; ++i) axes.append(v.axis[std::size_t(i)]);
          return nb::tuple(axes);
        } else return nb::cast(v);
      },
      value);
}

std::string_view text(Arrays& arrays, PyObject* object, const char* name) {
  Py_ssize_t size = 0;
  if (!PyUnicode_Check(object)) arrays.refuse(Status::invalid_dtype, name, "is " + type_of(object), "a string");
  const char* utf8 = PyUnicode_AsUTF8AndSize(object, &size);
  if (utf8) return {utf8, std::size_t(size)};
  PyErr_Clear();
  arrays.refuse(Status::invalid_argument, name, "is not valid Unicode", "one of the documented strings");
}

void read(Arrays& arrays, PyObject* object, const char* name, std::int64_t& value) {
  if (object == Py_None) arrays.refuse(Status::invalid_argument, name, "is missing", "an integer");
  const nb::object number = PyBool_Check(object) ? nb::object() : nb::steal(PyNumber_Index(object));
  if (!number.is_valid()) {
    PyErr_Clear();
    arrays.refuse(Status::invalid_dtype, name, "is " + type_of(object), "an integer");
  }
  int overflow = 0;
  value = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
  if (overflow) arrays.refuse(Status::invalid_dtype, name, "is beyond 64 bits", "-2^63..2^63-1");
}

void read(Arrays& arrays, PyObject* object, const char* name, double& value) {
  if (object == Py_None) arrays.refuse(Status::invalid_argument, name, "is missing", "a number");
  const bool number = PyNumber_Check(object) && !PyBool_Check(object) && !PyComplex_Check(object);
  value = number ? PyFloat_AsDouble(object) : -1;
  if (!number || PyErr_Occurred()) {
    PyErr_Clear();
    arrays.refuse(Status::invalid_dtype, name, "is " + type_of(object), "a number");
  }
}

void read(Arrays& arrays, PyObject* object, const char* name, bool& value) {
  static const nb::object numpy_bool = nb::module_::import_("numpy").attr("bool_");
  if (!PyBool_Check(object) && !nb::isinstance(object, numpy_bool))
    arrays.refuse(Status::invalid_dtype, name, "is " + type_of(object), "True or False");
  value = PyObject_IsTrue(object) == 1;
}

void read(Arrays& arrays, PyObject* object, const char* name, Level& value) {
  value = level_of(text(arrays, object, name), arrays.op(), name);
}

/// None: no entries, which is the default. A list or tuple of integers.
void read(Arrays& arrays, PyObject* object, const char* name, Axes& value) {
  value = {};
  if (object == Py_None) return;
  if (!PyList_Check(object) && !PyTuple_Check(object))
    arrays.refuse(Status::invalid_dtype, name, "is " + type_of(object), "a list of integers");
  value.count = PySequence_Fast_GET_SIZE(object);
  for (std::int64_t i = 0; i < std::min<std::int64_t>(value.count, 8); ++i)
    read(arrays, PySequence_Fast_GET_ITEM(object, i), name, value.axis[std::size_t(i)]);
}

/// Whether `level` says so; what else it says is looked at in its turn.
bool is_strict(const std::vector<Slot>& slots, const nb::tuple& values) {
  for (std::size_t s = 0; s < slots.size(); ++s)
    if (slots[s].field.kind == Kind::level) {
      PyObject* level = PyTuple_GET_ITEM(values.ptr(), Py_ssize_t(s));
      return PyUnicode_Check(level) && PyUnicode_CompareWithASCIIString(level, "strict") == 0;
    }
  return false;
}

/// What the library accepted with a word, as UserWarnings, each once in the life of the process.
void issue_warnings() {
  static std::size_t issued = 0;          // guarded by the GIL
  constexpr Py_ssize_t kOfTheCaller = 3;  // behind calling.run and the function that was called
  const std::vector<std::string> sentences = context().warnings();
  while (issued < sentences.size())
    if (PyErr_WarnEx(PyExc_UserWarning, sentences[issued++].c_str(), kOfTheCaller) != 0) throw nb::python_error();
}

/// What `run` is where a call is for the shapes of its results alone.
struct ShapesOnly {};

/// One call: Python objects in the order of the slots -> results in the order of the members of Outs. `op`: the name
/// in refusals of Python's own. `watched`: the operator, for whoever watches its calls, or null. ShapesOnly: tensors
/// come as (shape, strides, dtype), and so do results; None is one that is an argument. infer_absent: dtype and shape of results.
template <class Args, class Outs, class Run, class Infer>
nb::object call(const char* op, const char* watched, const nb::tuple& values, Run run, Infer infer_absent) {
  constexpr bool kShapesOnly = std::is_same_v<Run, ShapesOnly>;
  const std::vector<Slot>& slots = slots_of<Args, Outs>();
  auto given = [&](std::size_t i) { return PyTuple_GET_ITEM(values.ptr(), Py_ssize_t(i)); };
  Args args{};
  Outs outs{};
  Arrays arrays(op, is_strict(slots, values), kShapesOnly);
  std::string dtype;
  for (std::size_t s = 0; s < slots.size(); ++s)  // the first row of every operator's validation table
    if (slots[s].field.is_required() && given(s) == Py_None)
      arrays.refuse(Status::invalid_argument, slots[s].field.name, "is missing",
                    slots[s].list ? "a list of tensors" : "a tensor");
  std::size_t i = 0;
  bool complete = true;
  std::vector<const void*> data(slots.size());  // of the tensors given
  for_each_field(args, outs, [&](const Field& field, auto& value) {
    using Value = std::remove_cvref_t<decltype(value)>;
    if constexpr (!std::is_same_v<Value, Absent>) {
      const Slot& slot = slots[i];
      PyObject* object = given(i);
      if constexpr (std::is_same_v<Value, Tensor>) {
        const bool written = field.is_written() || (slot.twin >= 0 && given(std::size_t(slot.twin)) == Py_None);
        if (field.role == Role::out && object == Py_None) complete = false;
        else value = arrays.read(object, field.name, written, field.kind);
        data[i] = value.data;
      } else if constexpr (std::is_same_v<Value, TensorList>) {
        value = arrays.list(object, field.name);
      } else if constexpr (std::is_same_v<Value, std::string_view>) {
        if (field.kind != Kind::dtype) {
          value = text(arrays, object, field.name);
        } else if (object != Py_None) {  // "" is what the library has for an absent dtype
          value = dtype = dtype_name(object);
          if (value.empty()) arrays.refuse(Status::invalid_argument, field.name, "is \"\"", "the name of a dtype");
        }
      } else {
        read(arrays, object, field.name, value);
      }
      ++i;
    }
  });
  if (!complete) {  // takes less than letting the GIL go
    if (watched) debug::infer_of_call(watched, std::as_const(args), outs, context());
    else infer_absent(std::as_const(args), outs);
  }

  struct Result {
    int place;
    nb::object object;
  };
  std::vector<Result> results;
  results.reserve(10);
  i = 0;
  for_each_field(args, outs, [&](const Field& field, auto& value) {
    using Value = std::remove_cvref_t<decltype(value)>;
    if constexpr (std::is_same_v<Value, Tensor>) {
      if (const Slot& slot = slots[i]; slot.result >= 0) {
        nb::object object = nb::borrow(given(i));
        if constexpr (kShapesOnly) {
          const bool argument = slot.twin >= 0 && (!value || value.data == data[std::size_t(slot.twin)]);
          if (field.role != Role::out || argument || !value) object = nb::none();
          else object = nb::make_tuple(shape_of(value), name_of(value.dtype));
          results.push_back({slot.result, std::move(object)});
          ++i;
          return;
        }
        const auto twin = std::size_t(slot.twin);
        if (object.is_none() && slot.twin >= 0 && (!value || value.data == data[twin])) {
          object = nb::borrow(given(twin));
        } else if (object.is_none() && field.role == Role::out && value) {
          object = arrays.allocate(value, field.name);
          value = arrays.read(object.ptr(), field.name, true);
        }
        results.push_back({slot.result, std::move(object)});
      }
    }
    i += !std::is_same_v<Value, Absent>;
  });

  if constexpr (!kShapesOnly) {
    nb::gil_scoped_release release;
    run(std::as_const(args), std::as_const(outs));
  }
  std::sort(results.begin(), results.end(), [](const Result& a, const Result& b) { return a.place < b.place; });
  if (results.size() == 1 && !kShapesOnly) return std::move(results[0].object);
  const nb::object tuple = nb::steal(PyTuple_New(Py_ssize_t(results.size())));
  for (std::size_t r = 0; r < results.size(); ++r)
    PyTuple_SET_ITEM(tuple.ptr(), Py_ssize_t(r), results[r].object.release().ptr());
  return tuple;
}

/// The same under the name that the caller called: what the library refuses as `op` is refused as `spelling`.
template <class Args, class Outs, class Run, class Infer>
nb::object call(const char* op, const nb::tuple& values, const char* spelling, Run run, const char* watched,
                Infer infer_absent) {
  try {
    return call<Args, Outs>(spelling, watched, values, run, infer_absent);
  } catch (const Error& e) {
    if (e.op != op) throw;
    throw Error(e.status, spelling, e.parameter, e.position, e.got, e.wanted, e.why, e.reason);
  }
}

template <class Args, class Outs, class Run>
nb::object call(const char* op, const nb::tuple& values, const char* spelling, Run run, const char* watched = nullptr) {
  return call<Args, Outs>(op, values, spelling, run, watched, [](const Args& a, Outs& o) { infer(a, o); });
}

/// The documented roundings of the softmax probabilities, for comparison: only references of sparse attention have
/// them.
reference::ProbabilityRounding rounding_of(const char* op, std::string_view name) {
  using enum reference::ProbabilityRounding;
  if (name == "none") return none;
  if (name == "normalised") return normalised;
  if (name == "unnormalised_tile2048") return unnormalised_tile2048;
  throw Error(Status::invalid_argument, op, "p_rounding", "", "is \"" + printable(name) + "\"",
              "\"none\", \"normalised\" or \"unnormalised_tile2048\"");
}

int repetitions = 1;  // of the work of each call: scripts/bench_python.py tells it from the cost of calling

template <class Args, class Outs, class Fast, class Reference>
void bind(nb::module_& m, const char* name, Fast fast, Reference reference) {
  auto straight = [=](const nb::tuple& values, const char* spelling) {
    const auto run = [=](const Args& a, const Outs& o) {
      for (int i = 0; i < repetitions; ++i) fast(a, o);
    };
    auto results = call<Args, Outs>(name, values, spelling, run, name);
    issue_warnings();  // not of the reference, which needs no context
    return results;
  };
  m.def(name, [=](const nb::tuple& values, const char* spelling) {
    auto in_torch = [&] { return nb::module_::import_("dsakit.graph").attr("call")(name, values, spelling); };
    if (is_traced(values.ptr())) return nb::object(in_torch());
    try {
      return straight(values, spelling);
    } catch (const Error& error) {
      if (error.status != Status::invalid_device || !has_meta(values.ptr())) throw;
    }
    return nb::object(in_torch());
  });
  m.def((std::string(name) + "_straight").c_str(), straight);
  m.def((std::string(name) + "_shapes").c_str(), [=](const nb::tuple& values, const char* spelling) {
    return call<Args, Outs>(name, values, spelling, ShapesOnly{});
  });
  m.def((std::string(name) + "_reference").c_str(), [=](const nb::tuple& values, const char* spelling) {
    return call<Args, Outs>(name, values, spelling, reference);
  });
  using Rounding = reference::ProbabilityRounding;
  if constexpr (requires(Args a, Outs o) { reference(a, o, Rounding::none); })
    m.def((std::string(name) + "_rounded").c_str(),
          [=](const nb::tuple& values, std::string_view rounding, const char* spelling) {
            const Rounding r = rounding_of(spelling, rounding);
            return call<Args, Outs>(name, values, spelling, [=](const Args& a, const Outs& o) { reference(a, o, r); });
          });
}

// ---- dsakit.dist: the operators of engines whose caches lie on several ranks

/// f(group, begun): a call that all ranks make. What fails here before it has begun is refused on all of them.
template <class F>
nb::object in_group(nb::handle object, F f) {
  const std::shared_ptr<Group> group = group_of(object);
  bool begun = false;
  try {
    return f(*group, begun);
  } catch (...) {
    if (begun) throw;
    const std::exception_ptr error = std::current_exception();
    nb::gil_scoped_release release;
    dist::refuse(*group, error);
  }
}

template <class Args, class Outs>
void bind_select(nb::module_& m, const char* name) {
  m.def((std::string("dist_select_") + name).c_str(),
        [=](nb::handle group, const nb::tuple& values, std::int64_t interleave, const std::string& merge) {
          return in_group(group, [&](Group& g, bool& begun) {
            const auto run = [&](const Args& a, const Outs& o) {
              begun = true;
              dist::select(g, a, o, {interleave, merge}, context());
            };
            const Ownership owner{g.size(), g.rank(), std::max<std::int64_t>(interleave, 1)};  // what it is, run() asks
            return call<Args, Outs>(name, values, "dist.select", run, nullptr,
                                    [&](const Args& a, Outs& o) { dist::infer(a, o, owner); });
          });
        });
  m.def((std::string("dist_index_candidates_") + name).c_str(),
        [=](const nb::tuple& values, const Ownership& owner, nb::handle candidates) {
          constexpr char kCall[] = "dist.index_candidates";
          Arrays arrays(kCall);
          const Tensor to = arrays.read(candidates.ptr(), "candidates", true);
          call<Args, Outs>(
              name, values, kCall, [&](const Args& a, const Outs&) { dist::index_candidates(a, owner, to, context()); },
              nullptr, [](const Args&, Outs&) {});
        });
}

template <class Args, class Outs>
void bind_attend(nb::module_& m, const char* name) {
  m.def((std::string("dist_attend_") + name).c_str(),
        [=](nb::handle group, const nb::tuple& values, std::int64_t interleave, const std::string& exchange) {
          return in_group(group, [&](Group& g, bool& begun) {
            return call<Args, Outs>(name, values, "dist.attend", [&](const Args& a, const Outs& o) {
              begun = true;
              dist::attend(g, a, o, {interleave, exchange}, context());
            });
          });
        });
  m.def((std::string("dist_partial_attention_") + name).c_str(),
        [=](const nb::tuple& values, const Ownership& owner, nb::handle max, nb::handle sum, nb::handle out) {
          constexpr char kCall[] = "dist.partial_attention";
          Arrays arrays(kCall);
          const dist::Partials to{arrays.read(max.ptr(), "softmax_max", true), arrays.read(sum.ptr(), "softmax_sum", true),
                                  arrays.read(out.ptr(), "attention_out", true)};
          call<Args, Outs>(
              name, values, kCall, [&](const Args& a, const Outs&) { dist::partial_attention(a, owner, to, context()); },
              nullptr, [](const Args&, Outs&) {});
        });
}

void bind_shards(nb::module_& m) {
  nb::class_<Ownership>(m, "Ownership")
      .def("__init__",
           [](Ownership* self, std::int64_t ranks, std::int64_t rank, std::int64_t interleave) {
             new (self) Ownership{ranks, rank, interleave};
           },
           nb::arg("ranks"), nb::arg("rank"), nb::arg("interleave"));
  bind_select<QuantLightningIndexerArgs, QuantLightningIndexerOuts>(m, "quant_lightning_indexer");
  bind_select<LightningIndexerArgs, LightningIndexerOuts>(m, "lightning_indexer");
  bind_attend<SparseFlashAttentionArgs, SparseFlashAttentionOuts>(m, "sparse_flash_attention");
  bind_attend<KvQuantSparseFlashAttentionArgs, KvQuantSparseFlashAttentionOuts>(m, "kv_quant_sparse_flash_attention");
  bind_attend<SparseFlashAttentionQuantArgs, SparseFlashAttentionQuantOuts>(m, "sparse_flash_attention_quant");
  m.def("dist_refuse", [](nb::handle group, const std::string& status, const std::string& op, const std::string& parameter,
                          const std::string& got, const std::string& wanted) {
    const std::shared_ptr<Group> ranks = group_of(group);
    int number = int(Status::ok);
    while (number < int(Status::internal) && status != name_of(Status(number))) ++number;
    nb::gil_scoped_release release;
    dist::refuse(*ranks, std::make_exception_ptr(Error(Status(number), op, parameter, "", got, wanted)));
  });
  m.def("dist_merge_candidates", [](nb::handle candidates, nb::handle sparse_indices) {
    Arrays arrays("dist.merge_candidates");
    const TensorList lists = arrays.list(candidates.ptr(), "candidates");
    const Tensor to = arrays.read(sparse_indices.ptr(), "sparse_indices", true);
    nb::gil_scoped_release release;
    dist::merge_candidates(lists, to);
  });
  m.def("dist_merge_partials",
        [](nb::handle max, nb::handle sum, nb::handle values, nb::handle sinks, nb::handle out) {
          Arrays arrays("dist.merge_partials");
          const TensorList maxima = arrays.list(max.ptr(), "softmax_max"), sums = arrays.list(sum.ptr(), "softmax_sum"),
                           parts = arrays.list(values.ptr(), "attention_out");
          const Tensor logits = arrays.read(sinks.ptr(), "sinks", false), to = arrays.read(out.ptr(), "out", true);
          nb::gil_scoped_release release;
          dist::merge_partials(maxima, sums, parts, logits, to);
        },
        nb::arg("softmax_max"), nb::arg("softmax_sum"), nb::arg("attention_out"), nb::arg("sinks").none(), nb::arg("out"));
}

/// The descriptions as Python has them; what a key holds is said where python/operators.cc binds it.
nb::dict describe_all() {
  auto str = [](std::string_view text) { return nb::str(text.data(), text.size()); };
  nb::dict all;
  for (const Operator& op : operators()) {
    nb::list fields, results;
    for (const Parameter& p : op.parameters) {
      nb::dict field;
      field["name"] = p.field.name;
      field["role"] = name_of(p.field.role);
      field["kind"] = name_of(p.field.kind);
      field["list"] = p.list;
      field["dtypes"] = str(p.field.dtypes);
      field["shape"] = str(p.field.shape);
      field["meaning"] = str(p.field.meaning);
      field["required"] = p.required;
      field["default"] = python_of(p.default_value);
      fields.append(field);
    }
    for (std::string_view name : op.results()) results.append(str(name));
    nb::dict d;
    d["summary"] = str(op.description.summary);
    d["formula"] = str(op.description.formula);
    d["errors"] = std::string(op.description.errors) + "\n" + std::string(kCommonErrors);
    d["source"] = str(op.description.source);
    d["page"] = str(op.description.page);
    d["family"] = name_of(op.description.family);
    d["positional"] = op.description.positional;
    d["results"] = results;
    d["fields"] = fields;
    all[str(op.name)] = d;
  }
  return all;
}

}  // namespace

void bind_operators(nb::module_& m) {
  // Each operator several times: (values in the order of the description, the name that was called) -> results. By its
  // own name it goes to torch's dispatcher while torch records calls; `_straight` never does.
#define DSAKIT_OP(name, Type)                                                                    \
  bind<Type##Args, Type##Outs>(                                                                  \
      m, #name, [](const Type##Args& a, const Type##Outs& o) { dsakit::name(a, o, context()); }, \
      [](const Type##Args& a, const Type##Outs& o, auto... rounding)                             \
          -> decltype(dsakit::reference::name(a, o, rounding...)) { dsakit::reference::name(a, o, rounding...); });
#include "ops/ops.inc"
#undef DSAKIT_OP
  // {operator: {"summary", "formula", "errors", "source", "page",
  //             "family": "torch_npu" | "PyPTO" | "vllm-ascend" | "dsakit", "positional": int, "results": [name, ..],
  //             "fields": [{"name", "role", "kind", "list": bool, "dtypes", "shape", "meaning", "required": bool,
  //             "default"}, ..]}}
  m.def("describe", describe_all);
  m.def("repeat", [](int times) { repetitions = times; });
  m.def(
      "dtype_name", [](nb::handle dtype) { return dtype_name(dtype.ptr()); }, nb::arg("dtype").none());

  // The PyPTO forms name an output cache beside the input cache: the same memory (separate: False), or other memory
  // that receives a copy, once `check` has nothing to refuse. mla_prolog_quant does this itself.
  m.def("lightning_indexer_prolog_quant_check", [](const nb::tuple& values, const char* spelling) {
    using namespace lightning_indexer_prolog_quant_op;
    call<LightningIndexerPrologQuantArgs, LightningIndexerPrologQuantOuts>(
        "lightning_indexer_prolog_quant", values, spelling, [](const auto& args, const auto& outs) {
          const auto problem = check(args, outs);
          if (context().check_values()) check_values(args, problem);
        });
  });
  m.def("mla_indexer_prolog_quant_check", [](const nb::tuple& values, const char* spelling) {
    using namespace mla_indexer_prolog_quant_op;
    call<MlaIndexerPrologQuantArgs, MlaIndexerPrologQuantOuts>("mla_indexer_prolog_quant", values, spelling,
                                                               [](const auto& args, const auto& outs) {
                                                                 const auto problem = check(args, outs);
                                                                 if (context().check_values())
                                                                   check_values(args, problem);
                                                               });
  });
  m.def("separate", [](const char* op, const char* in_name, nb::handle in, const char* out_name, nb::handle out) {
    Arrays arrays(op);
    const Tensor from = arrays.read(in.ptr(), in_name, true), to = arrays.read(out.ptr(), out_name, true);
    const Check check(op, Level::portable);
    check.required(from, in_name);
    check.required(to, out_name);
    if (same_storage(from, to)) return false;
    check.dtype(to, out_name, {from.dtype}, in_name);
    check.writable(to, out_name);
    if (from.rank != to.rank || from.shape != to.shape)
      check.fail(Status::invalid_shape, out_name, "", "has shape " + brackets({to.shape.data(), std::size_t(to.rank)}),
                 brackets({from.shape.data(), std::size_t(from.rank)}), in_name);
    check.no_overlap(to, out_name, from, in_name);
    return true;
  });
  bind_shards(m);
  m.def("copy", [](nb::handle from, nb::handle to) {
    Arrays arrays("copy");
    copy_elements(arrays.read(from.ptr(), "from", true), arrays.read(to.ptr(), "to", true));
  });
}

}  // namespace dsakit::python
