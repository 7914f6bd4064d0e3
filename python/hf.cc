// SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "arrays.hpp"
#include "core/check.hpp"
#include "layer/layer.hpp"
#include "layer/tensor_experts.hpp"
#include "layer/tensor_source.hpp"
#include "module.hpp"

// What dsakit.hf is made of: an attention layer whose weights come from arrays, and the caches of a batch.
namespace dsakit::python {
namespace {

/// Sizes by their names in config.json, of a model with one layer.
io::ModelConfig config_of(const std::map<std::string, std::int64_t>& sizes) {
  io::ModelConfig c{};
  const auto size = [&](const char* name) { return sizes.at(name); };
  c.hidden_size = size("hidden_size");
  c.num_hidden_layers = 1;
  c.num_attention_heads = size("num_attention_heads");
  c.q_lora_rank = size("q_lora_rank");
  c.kv_lora_rank = size("kv_lora_rank");
  c.qk_nope_head_dim = size("qk_nope_head_dim");
  c.qk_rope_head_dim = size("qk_rope_head_dim");
  c.v_head_dim = size("v_head_dim");
  c.index_n_heads = size("index_n_heads");
  c.index_head_dim = size("index_head_dim");
  c.index_topk = size("index_topk");
  c.rope.theta = 1;  // angles come from the caller
  c.rope_interleave = size("rope_interleave");
  c.indexer_rope_interleave = size("indexer_rope_interleave");
  c.full_indexer = {size("indexer") != 0};
  return c;
}

class TensorLayer;

/// The caches of a batch, in pages of one pool.
class BatchCache {
 public:
  explicit BatchCache(LayerCache first) : rows_{std::move(first)} {}

  std::vector<LayerCache>& rows() { return rows_; }
  std::vector<std::int64_t> lengths() const {
    std::vector<std::int64_t> lengths;
    for (const LayerCache& row : rows_) lengths.push_back(row.length());
    return lengths;
  }
  /// Row i becomes what row from[i] is.
  void select(const std::vector<std::int64_t>& from) {
    std::vector<LayerCache> rows;
    for (const std::int64_t i : from) {
      if (i < 0 || i >= std::int64_t(rows_.size()))
        throw Error(Status::invalid_index, "BatchCache", "rows", "", "holds " + std::to_string(i),
                    "0.." + std::to_string(std::int64_t(rows_.size()) - 1));
      rows.push_back(rows_[i]);
    }
    rows_ = std::move(rows);
  }
  /// Forgets the last counts[i] tokens of row i.
  void crop(const std::vector<std::int64_t>& counts) {
    for (std::size_t i = 0; i < rows_.size(); ++i) rows_[i].crop(counts.at(i));
  }
  /// Appends rows as they are kept, by their names in RowKinds, to one sequence.
  void append(std::int64_t row, const nb::dict& named) {
    Arrays arrays("BatchCache");
    LayerCache::State& cache = sequence(row);
    std::int64_t count = -1;
    const NewRows rows = rows_of(arrays, cache, named, false, count);
    cache.reserve(cache.length + count);
    cache.write(rows, 0, count, cache.length);
    cache.length += count;
  }
  /// Copies those of one sequence.
  void read(std::int64_t row, const nb::dict& named) {
    Arrays arrays("BatchCache");
    const LayerCache::State& cache = sequence(row);
    std::int64_t count = cache.length;
    cache.read(rows_of(arrays, cache, named, true, count));
  }
  std::int64_t pages() const {
    const PagePool& pool = *rows_[0].state().pool;
    return pool.pages() - std::int64_t(pool.unused.size());
  }
  std::size_t bytes() const { return rows_[0].bytes(); }

 private:
  LayerCache::State& sequence(std::int64_t row) {
    if (row < 0 || row >= std::int64_t(rows_.size()))
      throw Error(Status::invalid_index, "BatchCache", "row", "", "is " + std::to_string(row),
                  "0.." + std::to_string(std::int64_t(rows_.size()) - 1));
    return rows_[row].state();
  }
  /// Arrays of `count` rows of each kind that `cache` has; -1: of as many as the first one.
  static NewRows rows_of(Arrays& arrays, const LayerCache::State& cache, const nb::dict& named, bool written,
                         std::int64_t& count) {
    const Check check("BatchCache", Level::portable);
    NewRows rows;
    const auto take = [&](const char* name, const RowKind& kind, Tensor& to) {
      if (kind.width == 0) return;
      to = arrays.read(named.contains(name) ? nb::object(named[name]).ptr() : Py_None, name, written);
      check.required(to, name);
      check.dtype(to, name, {kind.dtype});
      if (count < 0) count = to.rank > 0 ? to.shape[0] : 0;
      check.shape(to, name, {count, kind.width}, "rows and width");
      written ? check.writable(to, name) : check.readable(to, name);
      if (to.stride[0] != kind.width) check.fail(Status::invalid_stride, name, "", "has gaps", "contiguous rows");
    };
    take("latent", cache.latent, rows.latent);
    take("rope", cache.rope, rows.rope);
    take("latent_scale", cache.latent_scale, rows.latent_scale);
    take("index_key", cache.index_key, rows.index_key);
    take("index_scale", cache.index_scale, rows.index_scale);
    return rows;
  }

  std::vector<LayerCache> rows_;
};

class TensorLayer {
 public:
  TensorLayer(const std::map<std::string, std::int64_t>& sizes, const nb::dict& weights, std::string mode,
              std::int64_t page_size, double scale, const std::vector<double>& epsilons)
      : mode_(std::move(mode)), page_size_(page_size) {
    Arrays arrays("accelerate");
    const auto tensors = std::make_shared<NamedTensors>();
    for (const auto& [name, tensor] : weights) {
      const std::string key = nb::cast<std::string>(name);
      (*tensors)[key] = arrays.read(tensor.ptr(), key.c_str(), false);
    }
    const nb::gil_scoped_release release;
    layer_ = std::make_unique<AttentionLayer>(make_layer(config_of(sizes), 0, tensor_source(tensors)));
    AttentionLayer::State& state = layer_->state();
    state.scale = scale;
    state.epsilon_cq = epsilons.at(0), state.epsilon_ckv = epsilons.at(1), state.epsilon_k = epsilons.at(2);
    make_cache();  // refuses mode and page size
    state.weights.prepare(mode_of(mode_, state.config));
    tensors->clear();
  }

  LayerCache make_cache() const { return layer_->make_cache(mode_, page_size_); }
  std::size_t weight_bytes() const { return layer_->weight_bytes(); }

  void forward(nb::handle hidden, nb::handle out, nb::handle cos, nb::handle sin, BatchCache& cache,
               const std::vector<std::int64_t>& counts, nb::handle selection) const {
    Arrays arrays("attention_layer");
    const Tensor x = arrays.read(hidden.ptr(), "hidden", false), y = arrays.read(out.ptr(), "out", true),
                 chosen = arrays.read(selection.ptr(), "selection", layer_->has_indexer());
    const Rotation rotation{arrays.read(cos.ptr(), "cos", false), arrays.read(sin.ptr(), "sin", false)};
    std::vector<NewTokens> sequences;
    for (std::size_t i = 0; i < cache.rows().size(); ++i) sequences.push_back({&cache.rows()[i], counts.at(i)});
    const nb::gil_scoped_release release;
    layer_->forward(x, y, sequences, chosen, rotation, context());
  }

 private:
  std::string mode_;
  std::int64_t page_size_;
  std::unique_ptr<AttentionLayer> layer_;
};

}  // namespace

void bind_hf(nb::module_& m) {
  nb::class_<TensorExperts>(m, "TensorExperts", "MLPs of one width, of weights in memory.")
      .def(
          "__init__",
          [](TensorExperts* self, nb::handle gate, nb::handle up, nb::handle down) {
            Arrays arrays("experts");
            const Tensor g = arrays.read(gate.ptr(), "gate_proj", false), u = arrays.read(up.ptr(), "up_proj", false),
                         d = arrays.read(down.ptr(), "down_proj", false);
            const nb::gil_scoped_release release;
            new (self) TensorExperts(g, u, d);
          },
          nb::arg("gate"), nb::arg("up"), nb::arg("down"))
      .def(
          "forward",
          [](const TensorExperts& self, nb::handle x, nb::handle expert, nb::handle weight, nb::handle out) {
            Arrays arrays("experts");
            const Tensor tx = arrays.read(x.ptr(), "hidden_states", false),
                         te = arrays.read(expert.ptr(), "top_k_index", false),
                         tw = arrays.read(weight.ptr(), "top_k_weights", false),
                         to = arrays.read(out.ptr(), "out", true);
            const nb::gil_scoped_release release;
            self.forward(tx, te, tw, to, context());
          },
          nb::arg("hidden_states"), nb::arg("top_k_index"), nb::arg("top_k_weights"), nb::arg("out"))
      .def_prop_ro("nbytes", &TensorExperts::bytes);
  nb::class_<BatchCache>(m, "BatchCache", "The caches of a batch in one layer; rows share pages.")
      .def(
          "__init__", [](BatchCache* self, const TensorLayer& layer) { new (self) BatchCache(layer.make_cache()); },
          nb::arg("layer"))
      .def("__copy__", [](const BatchCache& self) { return BatchCache(self); })
      .def("select", &BatchCache::select, nb::arg("rows"))
      .def("crop", &BatchCache::crop, nb::arg("counts"))
      .def("append", &BatchCache::append, nb::arg("row"), nb::arg("rows"))
      .def("read", &BatchCache::read, nb::arg("row"), nb::arg("rows"))
      .def_prop_ro("lengths", &BatchCache::lengths)
      .def_prop_ro("pages", &BatchCache::pages)
      .def_prop_ro("nbytes", &BatchCache::bytes);
  nb::class_<TensorLayer>(m, "TensorLayer", "An attention layer of weights in memory, in one mode.")
      .def(nb::init<const std::map<std::string, std::int64_t>&, const nb::dict&, std::string, std::int64_t, double,
                    const std::vector<double>&>(),
           nb::arg("sizes"), nb::arg("weights"), nb::arg("mode"), nb::arg("page_size"), nb::arg("scale"),
           nb::arg("epsilons"))
      .def("forward", &TensorLayer::forward, nb::arg("hidden"), nb::arg("out"), nb::arg("cos"), nb::arg("sin"),
           nb::arg("cache"), nb::arg("counts"), nb::arg("selection").none())
      .def_prop_ro("weight_bytes", &TensorLayer::weight_bytes);
}

}  // namespace dsakit::python
