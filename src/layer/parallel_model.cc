// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <new>

#include "core/hash.hpp"
#include "layer/exchange_sizes.hpp"
#include "layer/model_state.hpp"

// Sessions of a model that ranks share. All of them take the same calls; what is exchanged follows from the tokens and the
// lengths alone.
namespace dsakit {
namespace {

/// Rows of a pass: those of all replicas in chunks, those of this one beside each other.
struct Pass {
  std::vector<ChunkRows> chunks;
  std::vector<std::int64_t> begin;  // of a chunk's rows among this replica's
  std::int64_t own = 0;

  Pass(const Peers& p, std::int64_t first, std::int64_t rows, std::int64_t step) {
    for (std::int64_t at = 0; at < rows; at += step) {
      chunks.push_back({first + at, std::min(step, rows - at), p.options.grid.query});
      begin.push_back(own);
      own += chunks.back().count(p.q);
    }
  }
};

/// Each rank reads some rows of the embedding.
void embed(const Tokens& t, Peers& p, std::span<const std::int32_t> tokens) {
  const std::int64_t width = t.config.hidden_size, ranks = p.replica->size();
  const Slice mine = slice_of(t.rows, p.replica->rank(), ranks);
  p.talk.work([&] { t.read_embedding(tokens, mine); });
  p.sizes.clear();
  for (std::int64_t r = 0; r < ranks; ++r)
    p.sizes.push_back(std::size_t(slice_of(t.rows, r, ranks).size() * width) * sizeof(bf16));
  p.mine.resize(p.sizes[std::size_t(p.replica->rank())]);
  std::copy_n(reinterpret_cast<const std::byte*>(t.input + mine.begin * width), p.mine.size(), p.mine.data());
  p.talk.all_gather(*p.replica, "embedding", p.mine, p.sizes, reinterpret_cast<std::byte*>(t.input));
  p.talk.work([&] { t.embed(); });
}

void run_layers(const Tokens& t, Session::State& session, const Pass& pass) {
  Peers& p = *session.model->peers;
  const std::int64_t width = t.config.hidden_size, step = chunk_tokens(t.config);
  for (std::size_t l = 0; l < t.model.layers.size(); ++l) {
    const Model::State::Layer& layer = t.model.layers[l];
    p.talk.work([&] { t.norm_before_attention(layer.attention_norm); });
    for (std::size_t i = 0; i < pass.chunks.size(); ++i) {
      const std::int64_t first = pass.begin[i], rows = pass.chunks[i].count(p.q);
      const Lists selection = is_sparse(session.mode) ? t.selection.from(first) : Lists{};
      forward_parallel(p, layer.attention.state(), tensor(t.input + first * width, {rows, width}),
                       tensor(t.change + first * width, {rows, width}), pass.chunks[i],
                       {session.caches[l].state(), session.index_caches[l].state()}, selection, session.layer_scratch,
                       t.context, &session.costs);
      if (session.observer && selection && !p.talk.failed() && !pass.chunks[i].split())
        p.talk.work([&] {
          session.observer(int(l), pass.chunks[i].first, tensor<const std::int32_t>(selection.data, {rows, selection.width}));
        });
    }
    p.talk.work([&] { t.norm_before_mlp(layer.mlp_norm); });
    if (layer.moe) {
      const auto bytes = [&] { return bytes_of<SharedMoeArrays>(*layer.moe, p, t.rows, t.context.threads()); };
      Carver memory(session.layer_scratch.require(bytes()));
      layer.moe->add_to(p, t.context, &t.costs, t.normal, t.rows,
                        SharedMoeArrays(*layer.moe, p, t.rows, t.context.threads(), memory), t.residual);
    } else {
      for (std::int64_t first = 0; first < t.rows; first += step)
        add_parallel(p, layer.mlp, t.normal + first * width, std::min(step, t.rows - first), t.residual + first * width,
                     session.layer_scratch, t.context, &t.costs);
    }
  }
}

/// The residual of the last `wanted` rows of all replicas, to those of this one.
void gather_last_rows(const Tokens& t, Peers& p, const Pass& pass, std::int64_t wanted) {
  const std::int64_t width = t.config.hidden_size, end = pass.chunks.back().first + pass.chunks.back().rows;
  // f(row of replica q, which of the wanted ones it is); rows that all have are the first replica's.
  const auto each_wanted = [&](int q, auto f) {
    std::int64_t row = 0;
    for (const ChunkRows& chunk : pass.chunks)
      for (std::int64_t i = 0; i < chunk.count(q); ++i, ++row)
        if (const std::int64_t x = chunk.position(q, i); x >= end - wanted && (chunk.split() || q == 0))
          f(row, x - (end - wanted));
  };
  p.sizes.assign(std::size_t(p.query->size()), 0);
  for (int q = 0; q < p.query->size(); ++q)
    each_wanted(q, [&](auto, auto) { p.sizes[std::size_t(q)] += std::size_t(width) * sizeof(float); });
  std::vector<float> mine, all(std::size_t(wanted * width));
  each_wanted(p.q, [&](std::int64_t row, auto) {
    mine.insert(mine.end(), t.residual + row * width, t.residual + (row + 1) * width);
  });
  p.talk.all_gather(*p.query, "last_rows", std::as_bytes(std::span(mine)), p.sizes,
                    reinterpret_cast<std::byte*>(all.data()));
  const float* from = all.data();
  float* const to = t.residual + (t.rows - wanted) * width;
  for (int q = 0; q < p.query->size(); ++q)
    each_wanted(q, [&](auto, std::int64_t which) {
      std::copy_n(from, width, to + which * width);
      from += width;
    });
}

void head(const Tokens& t, Peers& p, std::int64_t wanted, float* logits) {
  const std::int64_t vocab = t.config.vocab_size;
  std::vector<float> mine(std::size_t(wanted * p.columns(vocab).size()));
  p.talk.work([&] { t.head(wanted, mine.data()); });
  gather(p, "logits", wanted, {{mine.data(), logits, vocab, sizeof(float)}});
}

void run_pass(Session::State& session, std::span<const std::int32_t> tokens, std::int64_t first, std::int64_t wanted,
              float* logits, Context& context) {
  const Model::State& model = *session.model;
  Peers& p = *model.peers;
  const Pass pass(p, first, std::int64_t(tokens.size()), chunk_tokens(model.config));
  // Room for the rows that logits are wanted of, wherever they were made.
  const std::int64_t rows = std::max(pass.own, wanted);
  const std::int64_t positions = first + std::int64_t(tokens.size());
  const auto arrays = [&](Carver& carver) { return Tokens(model, session.costs, context, rows, positions, carver); };
  Carver memory(session.scratch.require(measured(arrays)));
  Tokens t = arrays(memory);
  t.rows = pass.own;
  std::vector<std::int32_t> mine;
  for (const ChunkRows& chunk : pass.chunks)
    for (std::int64_t i = 0; i < chunk.count(p.q); ++i) mine.push_back(tokens[std::size_t(chunk.position(p.q, i) - first)]);
  embed(t, p, mine);
  run_layers(t, session, pass);
  if (wanted == 0) return;
  if (std::ranges::any_of(pass.chunks, [](const ChunkRows& c) { return c.split(); })) {
    t.rows = rows;
    gather_last_rows(t, p, pass, wanted);
  }
  head(t, p, wanted, logits);
}

/// The largest exchange of a pass, all ranks' payloads together, as plans foretell it.
std::size_t exchange_bytes(const Model::State& model, Mode mode, const Pass& pass, std::int64_t wanted) {
  const ParallelOptions& options = model.peers->options;
  const ExchangeSizes sizes = exchange_sizes(model.config, mode);
  double most = total(logits(sizes, options.grid.replica_ranks(), wanted));
  const auto add = [&](const std::vector<ForetoldExchange>& all) {
    for (const ForetoldExchange& e : all)
      if (e.ranks > 1) most = std::max(most, e.received / double(e.messages) * e.ranks / (e.ranks - 1));
  };
  const io::MoeConfig& moe = model.config.moe;
  std::vector<std::int64_t> widths(std::size_t(moe.num_experts_per_tok), moe.moe_intermediate_size);
  widths.push_back(model.config.intermediate_size);
  for (const ChunkRows& chunk : pass.chunks) {
    const Step step{chunk.rows, std::int64_t(std::bit_ceil(std::uint64_t(chunk.first + chunk.rows)))};
    add(attention_exchanges(sizes, options, step, true));
    add(mlp_exchanges(sizes, options, step, widths));
  }
  return std::size_t(most);
}

/// What a pass takes, so that a rank that has less says so before anything is done: arrays, and for a moment as much as the
/// largest exchange and what is made of it take.
void make_room(Session::State& session, const Pass& pass, std::int64_t wanted, Context& context) {
  const Model::State& model = *session.model;
  Peers& p = *model.peers;
  const ChunkRows& last = pass.chunks.back();
  const Session::State::Room room{last.first + last.rows - pass.chunks[0].first, wanted,
                                  std::int64_t(std::bit_ceil(std::uint64_t(last.first + last.rows)))};
  if (session.room == room) return;  // as one token after the other has
  const std::int64_t rows = std::max(pass.own, wanted), step = chunk_tokens(model.config);
  session.scratch.require(measured([&](Carver& carver) { return Tokens(model, session.costs, context, rows, room.end, carver); }));
  std::size_t bytes = 0;
  for (std::size_t l = 0; l < model.layers.size(); ++l) {
    const Model::State::Layer& layer = model.layers[l];
    const ShardedCache cache{session.caches[l].state(), session.index_caches[l].state()};
    for (const ChunkRows& chunk : pass.chunks)
      bytes = std::max(bytes, parallel_layer_bytes(p, layer.attention.state(), chunk, cache, is_sparse(session.mode), context));
    bytes = std::max(bytes, layer.moe ? bytes_of<SharedMoeArrays>(*layer.moe, p, pass.own, context.threads())
                                      : parallel_mlp_bytes(p, layer.mlp, std::min(step, pass.own), context.threads()));
  }
  session.layer_scratch.require(bytes);
  constexpr std::size_t kCopies = 4;  // as it is sent, as it comes, where it belongs, as it is used
  const std::size_t exchanged = kCopies * exchange_bytes(model, session.mode, pass, wanted);
  try {
    ::operator delete(::operator new(exchanged));  // no expression with new, which a compiler may leave out
  } catch (const std::bad_alloc&) {
    throw Error(Status::out_of_memory, "model", "exchanges", "", "need " + std::to_string(exchanged) + " bytes",
                "as much memory", "of rank " + std::to_string(p.rank));
  }
  session.room = room;
}

}  // namespace

std::unique_ptr<Session::State> start_parallel(std::shared_ptr<const Model::State> model, std::string_view mode,
                                               std::int64_t page_size) {
  Peers& p = *model->peers;
  const std::lock_guard turn(p.turn);
  std::unique_ptr<Session::State> session;
  p.talk.begin({{{"operation", "start"}, {"mode", std::string(mode)}}}, [&] {
    session = std::make_unique<Session::State>(model, mode_of(mode, model->config), page_size);
  });
  for (const Model::State::Layer& layer : model->layers) {
    p.talk.work([&] { layer.attention.state().weights.prepare(session->mode); });
    p.wait_for_all("loading");
  }
  p.talk.end();
  return session;
}

void append_parallel(Session::State& session, std::span<const std::int32_t> tokens, std::span<float> logits,
                     Context& context) {
  const Model::State& model = *session.model;
  const io::ModelConfig& c = model.config;
  Peers& p = *model.peers;
  const std::lock_guard turn(p.turn);
  const std::int64_t before = session.length(), rows = std::int64_t(tokens.size()),
                     wanted = std::int64_t(logits.size()) / c.vocab_size;
  // Where every rank makes all first products, or parts of attention are merged, instruction sets must be the same.
  const bool any_isa = context.same_products() ||
                       (p.options.prolog == Prolog::split && !p.merges_parts(session.mode));
  p.talk.clear_traffic();
  try {
    p.talk.begin({{{"operation", "append"},
                   {"mode", std::string(name_of(session.mode))},
                   {"length", std::to_string(before)},
                   {"tokens", std::to_string(rows)},
                   {"logits", std::to_string(logits.size())},
                   {"token ids", std::to_string(hash_of(tokens.data(), tokens.size_bytes()))},
                   {"same_products", context.same_products() ? "true" : "false"},
                   {"isa", any_isa ? "any" : context.isa()}}},
                 [&] {
                   check_append(c, tokens, logits);
                   session.reserve(before + rows);
                   // The first pass is as large as any, but for the rows that logits are wanted of.
                   if (rows > 0)
                     make_room(session, Pass(p, before, std::min(model.pass, rows), chunk_tokens(c)),
                               std::min(model.pass, wanted), context);
                 });
    for (std::int64_t first = 0; first < rows; first += model.pass) {
      const std::int64_t count = std::min(model.pass, rows - first),
                         unwanted = std::max<std::int64_t>(rows - wanted - first, 0);
      float* to = logits.data() + std::max<std::int64_t>(first - (rows - wanted), 0) * c.vocab_size;
      run_pass(session, tokens.subspan(std::size_t(first), std::size_t(count)), before + first,
               std::max<std::int64_t>(count - unwanted, 0), to, context);
    }
    p.talk.end();
  } catch (...) {  // as if nothing had been appended
    session.keep(before);
    throw;
  }
  session.keep(before + rows);
  for (const auto& [name, count] : p.talk.traffic()) {
    session.traffic[name].messages += count.messages;
    session.traffic[name].bytes += count.bytes;
  }
}

}  // namespace dsakit
