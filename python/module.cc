// SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <string_view>
#include <vector>

#include "arrays.hpp"
#include "core/text.hpp"
#include "dsakit/dsakit.hpp"
#include "module.hpp"

namespace dsakit::python {
namespace {

/// Polled from the thread that made the call, about ten times a second.
bool signal_raised(void*) {
  nb::gil_scoped_acquire hold;
  return PyErr_CheckSignals() != 0;
}

void raise(const Error& e) {
  if (e.status == Status::interrupted) {  // by a signal handler, whose exception is waiting: mostly KeyboardInterrupt
    if (!PyErr_Occurred()) PyErr_SetNone(PyExc_KeyboardInterrupt);
    return;
  }
  try {
    nb::module_::import_("dsakit.errors")
        .attr("raise_error")(name_of(e.status), e.op, e.parameter, e.position, e.got, e.wanted, e.reason, e.what());
  } catch (nb::python_error& error) {
    error.restore();
  }
}

/// For texts there is no memory either: static ones, which Python makes its own strings of.
void raise_out_of_memory() {
  PyObject* const errors = PyImport_ImportModule("dsakit.errors");
  if (errors)  // it returns by raising
    Py_XDECREF(PyObject_CallMethod(errors, "raise_error", "ssssss", name_of(Status::out_of_memory), "dsakit", "memory", "",
                                   "is exhausted", "more"));
  Py_XDECREF(errors);
}

PackedWeight pack_weight(nb::handle weight, const std::string& format, nb::handle shape) {
  Arrays arrays("pack_weight");
  Tensor t = arrays.read(weight.ptr(), "weight", false, Kind::weight);
  if (format != "ND" && format != "NZ")
    arrays.refuse(Status::invalid_argument, "format", "is \"" + printable(format) + "\"", "\"ND\" or \"NZ\"");
  if ((format == "NZ") == shape.is_none())
    arrays.refuse(Status::invalid_argument, "shape", shape.is_none() ? "is missing" : "is given",
                  shape.is_none() ? "the logical [K, N] of FRACTAL_NZ storage" : "absent with format ND");
  if (format == "ND") return PackedWeight(t);
  const nb::object tagged = nb::module_::import_("dsakit.weights").attr("FractalNZ")(weight, shape);
  t = arrays.read(tagged.ptr(), "weight", false, Kind::weight);
  return PackedWeight(t);
}

nb::dict info() {
  nb::dict d;
  Context& c = context();
  d["version"] = DSAKIT_VERSION;
  d["isa"] = c.isa();
  nb::list supported;
  for (const std::string_view isa : supported_isas()) supported.append(isa);
  d["isas"] = supported;
  d["threads"] = c.threads();
  d["check_values"] = c.check_values();
  d["same_products"] = c.same_products();
  d["workspace_bytes"] = c.workspace_bytes();
  nb::dict environment;
  for (const char* name : {"DSAKIT_NUM_THREADS", "OMP_NUM_THREADS", "DSAKIT_ISA", "DSAKIT_CHECK", "DSAKIT_MEM_LIMIT",
                           "DSAKIT_CAPTURE", "DSAKIT_VERBOSE"})
    if (const char* value = std::getenv(name)) environment[name] = nb::steal(PyUnicode_DecodeFSDefault(value));
  d["environment"] = environment;
  return d;
}

}  // namespace

std::string path_of(nb::handle path) {
  PyObject* bytes = nullptr;
  if (!PyUnicode_FSConverter(path.ptr(), &bytes)) throw nb::python_error();
  const nb::object encoded = nb::steal(bytes);
  return PyBytes_AS_STRING(bytes);
}

Context& context() {
  static Context& shared = []() -> Context& {
    Context& c = default_context();
    c.set_interrupt(signal_raised, nullptr);
    return c;
  }();
  return shared;
}

NB_MODULE(_core, m) {
  static bool here = false;  // types are registered with the process
  if (std::exchange(here, true))
    throw nb::import_error("dsakit._core is in this process already, wanted one import of it (start Python again)");
  nb::set_leak_warnings(false);  // numpy's and torch's types are kept to the end
  numpy_dtype(DType::bf16);      // imports numpy and ml_dtypes now, not inside a first call
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const Error& error) {
      raise(error);
    } catch (const std::bad_alloc&) {
      raise_out_of_memory();
    }
  });

  nb::class_<PackedWeight>(m, "PackedWeight", "A weight rearranged once for the kernels; made by pack_weight.")
      .def_prop_ro("shape", [](const PackedWeight& w) { return shape_of(w.tensor()); })
      .def_prop_ro("dtype", [](const PackedWeight& w) { return numpy_dtype(w.tensor().dtype); })
      .def_prop_ro("nbytes", &PackedWeight::bytes)
      .def("__repr__", [](const PackedWeight& w) {
        return "PackedWeight(shape=" + nb::cast<std::string>(nb::str(shape_of(w.tensor()))) +
               ", dtype=" + name_of(w.tensor().dtype) + ")";
      });
  m.def(
      "pack_weight", pack_weight, nb::arg("weight").none(), nb::arg("format") = "ND", nb::arg("shape") = nb::none(),
      "Rearrange a weight [K, N], or a stack [B, K, N], once; the result is accepted wherever the weight is, with the\n"
      "same bits. format=\"NZ\": `weight` is FRACTAL_NZ storage and `shape` the logical one.");

  m.attr("__version__") = DSAKIT_VERSION;
  m.def("info", info, "What this process runs with: version, instruction set, threads, environment.");
  m.def(
      "get_num_threads", [] { return context().threads(); }, "Threads of the calls to come.");
  m.def(
      "set_num_threads",
      [](int n) {
        Context& c = context();
        nb::gil_scoped_release release;  // waits for the call in progress
        c.set_threads(n);
      },
      nb::arg("n"), "Threads of the calls to come, clamped to 1..1024.");
  m.def(
      "set_same_products",
      [](bool same) {
        Context& c = context();
        nb::gil_scoped_release release;
        c.set_same_products(same);
      },
      nb::arg("same"), "Whether the calls to come have the same bf16 products on every instruction set: slower.");
  bind_operators(m);
  bind_files(m);
  bind_model(m);
  bind_hf(m);
  bind_pypto(m);
  bind_dist(m);
  bind_debug(m);
}

}  // namespace dsakit::python
