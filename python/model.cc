// SPDX-License-Identifier: Apache-2.0
#include "dsakit/model.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "arrays.hpp"
#include "core/check.hpp"
#include "module.hpp"

namespace dsakit::python {
namespace {

using Mode = std::optional<std::string>;

/// The attention of one layer with the cache of one sequence.
class Layer {
 public:
  Layer(AttentionLayer attention, std::string mode, std::int64_t page_size)
      : attention_(std::move(attention)), cache_(attention_.make_cache(mode, page_size)) {}

  const AttentionLayer& attention() const { return attention_; }
  const LayerCache& cache() const { return cache_; }

  void reset(const Mode& mode, std::optional<std::int64_t> page_size) {
    if (mode || page_size)
      cache_ = attention_.make_cache(mode.value_or(std::string(cache_.mode())), page_size.value_or(cache_.page_size()));
    else cache_.reset();
  }

  /// `step`: one token, which may come without its axis.
  nb::object forward(nb::handle hidden, nb::handle out, nb::handle selection, bool step) {
    const char* op = step ? "decode" : "prefill";
    Arrays arrays(op);
    const Check check(op, Level::portable);
    Tensor x = arrays.read(hidden.ptr(), "hidden", false), y = arrays.read(out.ptr(), "out", true);
    const Tensor chosen = arrays.read(selection.ptr(), "selection", attention_.has_indexer());
    check.required(x, "hidden");
    nb::object result = nb::borrow(out);
    if (!y) {
      Tensor shape = x;
      shape.dtype = DType::bf16;
      result = arrays.allocate(shape, "out");
      y = arrays.read(result.ptr(), "out", true);
    }
    if (step) {
      for (Tensor* t : {&x, &y})
        if (t->rank == 1) {
          t->rank = 2;
          t->shape[1] = t->shape[0], t->stride[1] = t->stride[0];
          t->shape[0] = 1, t->stride[0] = t->shape[1];
        }
      check.shape(x, "hidden", {1, attention_.hidden_size()}, "one token");
    }
    nb::gil_scoped_release release;
    attention_.forward(x, y, cache_, chosen, context());
    return result;
  }

 private:
  AttentionLayer attention_;
  LayerCache cache_;
};

/// What Python holds: the model, its config.json as it was read, its layers.
struct PyModel {
  PyModel(const std::string& folder, Model loaded) : model(std::move(loaded)) {
    for (const std::string& note : model.notes())
      if (PyErr_WarnEx(PyExc_UserWarning, note.c_str(), 2) != 0) throw nb::python_error();
    const nb::object file = nb::module_::import_("builtins").attr("open")(folder + "/config.json", "rb");
    config = nb::module_::import_("json").attr("load")(file);
    file.attr("close")();
  }
  /// The one given, or the most economical that this model can run.
  std::string mode(const Mode& wish) const { return wish ? *wish : std::string(model.modes().back()); }

  Model model;
  nb::object config, layers;
};

std::span<const std::int32_t> tokens_of(Arrays& arrays, nb::handle tokens) {
  const Check check("model", Level::portable);
  if (tokens.is_none()) check.required({}, "tokens");
  const Tensor t = arrays.integers(tokens.ptr(), "tokens", Status::invalid_argument);
  check.dtype(t, "tokens", {DType::i32});
  check.rank(t, "tokens", 1, "");
  check.readable(t, "tokens");
  return {static_cast<const std::int32_t*>(t.data), std::size_t(t.elements())};
}

nb::object logits(const PyModel& self, nb::handle tokens, const Mode& mode) {
  Arrays arrays("model");
  const std::span<const std::int32_t> ids = tokens_of(arrays, tokens);
  const nb::object result =
      arrays.allocate(shaped(DType::f32, {std::int64_t(ids.size()), self.model.vocab_size()}), "logits");
  const Tensor out = arrays.read(result.ptr(), "logits", true);
  nb::gil_scoped_release release;
  self.model.start(self.mode(mode))
      .append(ids, {static_cast<float*>(out.data), std::size_t(out.elements())}, context());
  return result;
}

std::vector<std::int32_t> generate(const PyModel& self, nb::handle tokens, std::int64_t n, const Mode& mode,
                                   double temperature, std::uint64_t seed, nb::handle each) {
  Arrays arrays("model");
  const std::span<const std::int32_t> prompt = tokens_of(arrays, tokens);
  std::function<void(std::int32_t)> seen;
  if (!each.is_none())
    seen = [each](std::int32_t token) {
      const nb::gil_scoped_acquire hold;
      each(token);
    };
  nb::gil_scoped_release release;
  return self.model.generate(prompt, n, self.mode(mode), temperature, seed, context(), seen);
}

/// Logits of the last one.
nb::object prefill(Session& self, nb::handle tokens) {
  Arrays arrays("model");
  const std::span<const std::int32_t> ids = tokens_of(arrays, tokens);
  if (ids.empty()) arrays.refuse(Status::invalid_argument, "tokens", "is empty", "at least one token");
  const nb::object result = arrays.allocate(shaped(DType::f32, {self.vocab_size()}), "logits");
  const Tensor out = arrays.read(result.ptr(), "logits", true);
  nb::gil_scoped_release release;
  self.append(ids, {static_cast<float*>(out.data), std::size_t(out.elements())}, context());
  return result;
}

nb::object step_one(Session& self, nb::handle token) {
  nb::list tokens;
  tokens.append(token);
  return prefill(self, tokens);
}

nb::object step_all(nb::handle sessions, nb::handle tokens) {
  Arrays arrays("step");
  std::vector<Session*> all;
  for (const nb::handle session : nb::iter(sessions)) {
    if (!nb::isinstance<Session>(session))
      arrays.refuse(Status::invalid_argument, "sessions", "is " + type_of(session.ptr()), "a dsakit.Session",
                    "[" + std::to_string(all.size()) + "]");
    all.push_back(nb::cast<Session*>(session));
  }
  if (all.empty()) arrays.refuse(Status::invalid_argument, "sessions", "is empty", "at least one session");
  const std::span<const std::int32_t> ids = tokens_of(arrays, tokens);
  const nb::object result =
      arrays.allocate(shaped(DType::f32, {std::int64_t(all.size()), all[0]->vocab_size()}), "logits");
  const Tensor out = arrays.read(result.ptr(), "logits", true);
  nb::gil_scoped_release release;
  step(all, ids, {static_cast<float*>(out.data), std::size_t(out.elements())}, context());
  return result;
}

}  // namespace

void bind_model(nb::module_& m) {
  nb::class_<Layer>(m, "Layer",
                    "The attention of one layer, from normalised hidden states to what is added to the residual, with "
                    "the cache of one\n"
                    "sequence. Layer(folder, index) loads it alone, also from a model whose MLPs Model refuses.")
      .def(
          "__init__",
          [](Layer* self, nb::handle folder, int index, const std::string& mode, std::int64_t page_size) {
            new (self) Layer(AttentionLayer(path_of(folder), index), mode, page_size);
          },
          nb::arg("folder"), nb::arg("index"), nb::arg("mode") = "sparse_w8a8", nb::arg("page_size") = kDefaultPageSize)
      .def(
          "prefill",
          [](Layer& self, nb::handle hidden, nb::handle out, nb::handle selection) {
            return self.forward(hidden, out, selection, false);
          },
          nb::arg("hidden").none(), nb::kw_only(), nb::arg("out") = nb::none(), nb::arg("selection") = nb::none(),
          "Append tokens: hidden bf16 [T, hidden_size] -> same shape, bf16 (or `out`, bf16 or fp32). `selection`, "
          "int32\n"
          "[T, index_topk]: written by a layer with an indexer, read by one without.")
      .def(
          "decode",
          [](Layer& self, nb::handle hidden, nb::handle out, nb::handle selection) {
            return self.forward(hidden, out, selection, true);
          },
          nb::arg("hidden").none(), nb::kw_only(), nb::arg("out") = nb::none(), nb::arg("selection") = nb::none(),
          "Append one token, [hidden_size] or [1, hidden_size]; as prefill otherwise, with the same bits.")
      .def(
          "copy", [](const Layer& self) { return Layer(self); },
          "An independent sequence with the same tokens; shares the weights.")
      .def("__copy__", [](const Layer& self) { return Layer(self); })
      .def("reset", &Layer::reset, nb::arg("mode") = nb::none(), nb::arg("page_size") = nb::none(),
           "Forget the tokens; with an argument, go on in that mode or page size.")
      .def("__len__", [](const Layer& self) { return self.cache().length(); })
      .def_prop_ro("mode", [](const Layer& self) { return std::string(self.cache().mode()); })
      .def_prop_ro("page_size", [](const Layer& self) { return self.cache().page_size(); })
      .def_prop_ro("cache_bytes", [](const Layer& self) { return self.cache().bytes(); })
      .def_prop_ro("hidden_size", [](const Layer& self) { return self.attention().hidden_size(); })
      .def_prop_ro("index_topk", [](const Layer& self) { return self.attention().index_topk(); })
      .def_prop_ro("has_indexer", [](const Layer& self) { return self.attention().has_indexer(); });

  nb::class_<Session>(m, "Session",
                      "A sequence that runs through a model in one mode; Model.session makes them.")
      .def("prefill", prefill, nb::arg("tokens").none(),
           "Append tokens; float32 [vocab_size], the logits of what follows the last one.")
      .def("step", step_one, nb::arg("token"), "Append one token; as prefill, with the same bits.")
      .def(
          "fork", [](const Session& self) { return Session(self); },
          "An independent sequence with the same tokens. What both have said so far is kept once.")
      .def("__copy__", [](const Session& self) { return Session(self); })
      .def("crop", &Session::crop, nb::arg("n"), "Forget the last n tokens.")
      .def(
          "save",
          [](Session& self, nb::handle folder) {
            const std::string path = path_of(folder);
            const nb::gil_scoped_release release;
            self.save(path);
          },
          nb::arg("folder"),
          "Everything it holds, to a folder: a file for each rank, and cache.json once all are there. Model.load_session\n"
          "reads it, with any number of ranks.")
      .def_prop_ro(
          "traffic",
          [](const Session& self) {
            nb::dict all;
            for (const Traffic& t : self.traffic()) all[t.name.c_str()] = nb::make_tuple(t.messages, t.bytes);
            return all;
          },
          "Of a model that ranks share: messages, and bytes that came from other ranks, by exchange.")
      .def("__len__", &Session::length)
      .def_prop_ro("mode", [](const Session& self) { return std::string(self.mode()); })
      .def_prop_ro("cache_bytes", &Session::cache_bytes, "Memory of the caches, together with those of its forks.");
  m.def("step", step_all, nb::arg("sessions"), nb::arg("tokens").none(),
        "Append a token to each of several sessions of one model and mode; float32 [sessions, vocab_size]. Weights are\n"
        "read once for all, each session has the bits it has alone.");

  nb::class_<PyModel>(
      m, "Model",
      "A language model in Hugging Face layout (names of DeepSeek-V3.2, GLM-5, DeepSeek-V3 or Kimi-K2), with dense\n"
      "MLPs or a mixture of experts. Modes: \"dense_bf16\", \"sparse_bf16\", \"sparse_w8a8\",\n"
      "\"sparse_w8a8_packed\"; mode=None is the last of those it can run.\n\n"
      "mlp: arithmetic of the MLPs, \"as_stored\", \"bf16\" (int8 weights are widened) or \"int8\" (all are\n"
      "quantised). weights: \"as_stored\", or \"bf16\": 8-bit floats take two bytes, with the same results.\n"
      "static: \"refuse\" int8 weights with static activations, or \"dequantise\" them. expert_memory: bytes for\n"
      "routed experts, None: what is free but 6 GB; the others are read when they are wanted. pass_tokens: of a prompt,\n"
      "that go through a layer at a time then.\n\n"
      "group: of dsakit.dist.init(): its ranks load and run the model together, by the same calls in the same order, each\n"
      "with its share of the weights and caches, and all get all results. parallel: \"kv=2,heads=2,query=1\"; exchange,\n"
      "index, merge, prolog, interleave: docs/distributed.md. trace: a file; each rank writes a JSON line for each of its\n"
      "exchanges to trace.0, trace.1, ..")
      .def(
          "__init__",
          [](PyModel* self, nb::handle path, const std::string& mlp, const std::string& weights,
             const std::string& static_activations, std::optional<std::int64_t> expert_memory,
             std::int64_t pass_tokens, nb::handle group, const std::string& parallel, const std::string& exchange,
             const std::string& index, const std::string& merge, const std::string& prolog, std::int64_t interleave,
             nb::handle trace) {
            if (expert_memory && *expert_memory < 0)
              throw Error(Status::invalid_argument, "model", "expert_memory", "",
                          "is " + std::to_string(*expert_memory), "at least 0 bytes");
            const std::string folder = path_of(path);
            const ModelOptions options{.mlp = mlp,
                                       .weights = weights,
                                       .static_activations = static_activations,
                                       .expert_memory = expert_memory.value_or(-1),
                                       .pass = pass_tokens};
            const std::shared_ptr<Group> ranks = group.is_none() ? nullptr : group_of(group);
            if (!ranks && !trace.is_none())
              throw Error(Status::invalid_argument, "model", "trace", "", "is given", "absent", "without a group nothing travels");
            const std::string traced = trace.is_none() ? "" : path_of(trace) + "." + std::to_string(ranks->rank());
            const Parallel shared{.parallel = parallel,
                                  .exchange = exchange,
                                  .index = index,
                                  .merge = merge,
                                  .prolog = prolog,
                                  .interleave = interleave,
                                  .trace = traced};
            (void)context();  // which is asked about signals while files are read
            const auto load = [&] {
              const nb::gil_scoped_release release;  // ranks may be threads, and wait for each other
              return ranks ? Model(folder, ranks, shared, options) : Model(folder, options);
            };
            new (self) PyModel(folder, load());
          },
          nb::arg("path"), nb::kw_only(), nb::arg("mlp") = "as_stored", nb::arg("weights") = "as_stored",
          nb::arg("static") = "refuse", nb::arg("expert_memory") = nb::none(), nb::arg("pass_tokens") = 4096,
          nb::arg("group") = nb::none(), nb::arg("parallel") = "", nb::arg("exchange") = "rows", nb::arg("index") = "all",
          nb::arg("merge") = "auto", nb::arg("prolog") = "split", nb::arg("interleave") = 1,
          nb::arg("trace") = nb::none())
      .def("logits", logits, nb::arg("tokens").none(), nb::arg("mode") = nb::none(),
           "float32 [T, vocab_size] for tokens (integers, or the bytes of a byte-level model) from an empty context.")
      .def("generate", generate, nb::arg("tokens").none(), nb::arg("n"), nb::arg("mode") = nb::none(),
           nb::arg("temperature") = 0.0, nb::arg("seed") = 0, nb::kw_only(), nb::arg("each") = nb::none(),
           "n tokens that continue `tokens`, as a list: the most likely ones, or drawn at a temperature. each(token) is\n"
           "called as they come.")
      .def(
          "session",
          [](const PyModel& self, const Mode& mode, std::int64_t page_size) {
            const nb::gil_scoped_release release;
            return self.model.start(self.mode(mode), page_size);
          },
          nb::arg("mode") = nb::none(), nb::arg("page_size") = kDefaultPageSize, "A new sequence.")
      .def(
          "load_session",
          [](const PyModel& self, nb::handle folder, std::int64_t page_size) {
            const std::string path = path_of(folder);
            const nb::gil_scoped_release release;
            return self.model.load_session(path, page_size);
          },
          nb::arg("folder"), nb::arg("page_size") = kDefaultPageSize,
          "A sequence that Session.save has written, by as many ranks as there were.")
      .def_prop_ro(
          "layers",
          [](PyModel& self) {
            if (!self.layers.is_valid()) {
              nb::list layers;
              for (int i = 0; i < self.model.layers(); ++i)
                layers.append(Layer(self.model.attention(i), self.mode({}), kDefaultPageSize));
              self.layers = nb::tuple(layers);
            }
            return self.layers;
          },
          "The attention layers, each with an empty cache of its own at first; they share the weights.")
      .def_ro("config", &PyModel::config)
      .def_prop_ro("weight_bytes", [](const PyModel& self) { return self.model.weight_bytes(); })
      .def_prop_ro(
          "expert_costs",
          [](const PyModel& self) {
            const ExpertCosts c = self.model.expert_costs();
            nb::dict d;
            d["asked"] = c.asked, d["read"] = c.read, d["bytes"] = c.bytes, d["waited"] = c.waited;
            d["held"] = c.held, d["all"] = c.all, d["expert_bytes"] = c.expert_bytes;
            return d;
          },
          "What the routed experts have cost since the model was loaded: wanted by layers, read from files, bytes,\n"
          "seconds of waiting, and how many memory has room for of how many.")
      .def_prop_ro("modes",
                   [](const PyModel& self) {
                     nb::list modes;
                     for (std::string_view mode : self.model.modes()) modes.append(nb::str(mode.data(), mode.size()));
                     return nb::tuple(modes);
                   })
      .def_prop_ro("vocab_size", [](const PyModel& self) { return self.model.vocab_size(); })
      .def_prop_ro("hidden_size", [](const PyModel& self) { return self.model.hidden_size(); })
      .def_prop_ro("index_topk", [](const PyModel& self) { return self.model.index_topk(); });
}

}  // namespace dsakit::python
