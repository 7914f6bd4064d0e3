// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <memory>

#include "layer/expert_rows.hpp"
#include "layer/experts.hpp"
#include "layer/mlp.hpp"
#include "layer/router.hpp"

namespace dsakit {

struct Costs;
struct MoeArrays;
struct Peers;
struct SharedMoeArrays;

/// A mixture of experts: every token goes through the experts that its router chooses, and through the shared ones.
class Moe {
 public:
  /// `number`: this layer's among those with experts.
  Moe(const io::Checkpoint&, std::int64_t layer, std::int64_t number, std::shared_ptr<Experts>, const MlpOptions&);

  /// residual [rows, He] += the mixture for x [rows, He], both fp32: sum of weight * expert, ascending expert, then the
  /// shared ones. The bits of a token do not depend on the others, on threads, or on where experts lie.
  void add_to(Context&, Costs*, const float* x, std::int64_t rows, const MoeArrays&, float* residual) const;
  /// The same where ranks share the columns of all matrices; `memory` is measured by SharedMoeArrays.
  void add_to(Peers&, Context&, Costs*, const float* x, std::int64_t rows, const SharedMoeArrays&,
              float* residual) const;
  std::size_t bytes() const { return router_.bytes() + shared_.bytes(); }  // without routed experts
  const io::MoeConfig& config() const { return config_; }
  std::int64_t hidden() const { return hidden_; }
  Activations activations() const;
  const GatedMlp& shared() const { return shared_; }

 private:
  void run_window(Call&, Experts::Window&, const ExpertRows&, std::size_t first, const float* x,
                  const MoeArrays&) const;
  std::vector<MlpRows> gate_window(Call&, Experts::Window&, const ExpertRows&, std::size_t first, const float* x,
                                   const MoeArrays&, float* columns) const;

  io::MoeConfig config_;
  std::int64_t hidden_, number_;
  Router router_;
  GatedMlp shared_;
  std::shared_ptr<Experts> experts_;
};

/// Memory of a pass of `rows` tokens.
struct MoeArrays {
  Choices choices;
  float* sum;             // [rows, He]
  std::int64_t gathered;  // rows that the experts of a window may take
  MlpArrays routed, shared;

  MoeArrays(const Moe&, std::int64_t rows, int threads, Carver&);
};

/// The same, and what ranks exchange: hidden activations of all rows of a window, and results.
struct SharedMoeArrays {
  MoeArrays local;
  float *mine, *all;                // [gathered, own columns], [gathered, width] of routed experts
  float *mine_shared, *all_shared;  // [rows, ..] of shared ones
  float *own, *change;              // [rows, own columns], [rows, He]

  SharedMoeArrays(const Moe&, const Peers&, std::int64_t rows, int threads, Carver&);
};

}  // namespace dsakit
