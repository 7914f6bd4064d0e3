// SPDX-License-Identifier: Apache-2.0
#include "layer/parallel.hpp"

#include <cstring>
#include <numeric>

namespace dsakit {

Peers::Peers(std::shared_ptr<Group> group, const ParallelOptions& options)
    : options(options),
      kept(std::move(group)),
      replica(world.split(q, options.grid.replica_rank(rank))),
      kv(world.split(q * options.grid.heads + h, c)),
      query(world.split(options.grid.replica_rank(rank), q)),
      talk(world) {}

void Peers::wait_for_all(std::string_view name) {
  constexpr double kLayer = 300;  // seconds
  talk.wait_for_all(name, kLayer);
}

std::shared_ptr<Peers> make_peers(std::shared_ptr<Group> group, const ParallelWords& words) {
  Group& world = *group;
  ParallelOptions options;
  Conversation talk(world);
  talk.begin({{{"operation", "parallel"},
               {"parallel", words.parallel},
               {"exchange", words.exchange},
               {"index", words.index},
               {"merge", words.merge},
               {"prolog", words.prolog},
               {"interleave", std::to_string(words.interleave)}}},
             [&] { options = parallel_options_of(words, world.size(), "model"); });
  if (words.parallel.empty()) options.grid = {.heads = world.size()};
  return std::make_shared<Peers>(std::move(group), options);
}

Ownership Peers::index_rows() const {
  switch (options.index) {
    case IndexShards::all:
      return {replica->size(), replica->rank(), options.interleave};
    case IndexShards::kv:
      return latent_rows();
    case IndexShards::copy:
      break;
  }
  return {};
}

void gather(Peers& p, std::string_view name, std::int64_t rows, std::initializer_list<SharedColumns> columns) {
  const int ranks = p.replica->size(), rank = p.replica->rank();
  p.sizes.assign(std::size_t(ranks), 0);
  for (int r = 0; r < ranks; ++r)
    for (const SharedColumns& c : columns) p.sizes[std::size_t(r)] += std::size_t(rows * c.times * c.of(r, ranks).size() * c.bytes);
  p.mine.resize(p.sizes[std::size_t(rank)]);
  p.all.resize(std::accumulate(p.sizes.begin(), p.sizes.end(), std::size_t{0}));
  std::byte* to = p.mine.data();
  for (const SharedColumns& c : columns) {
    const std::size_t bytes = std::size_t(rows * c.times * c.of(rank, ranks).size() * c.bytes);
    if (bytes > 0) std::memcpy(to, c.mine, bytes);
    to += bytes;
  }
  p.talk.all_gather(*p.replica, name, p.mine, p.sizes, p.all.data());
  const std::byte* from = p.all.data();
  for (int r = 0; r < ranks; ++r)
    for (const SharedColumns& c : columns) {
      const Slice part = c.of(r, ranks);
      const std::size_t bytes = std::size_t(part.size() * c.bytes);
      for (std::int64_t i = 0; i < rows * c.times && bytes > 0; ++i, from += bytes)
        std::memcpy(static_cast<std::byte*>(c.all) + (i * c.items + part.begin) * c.bytes, from, bytes);
    }
}

}  // namespace dsakit
