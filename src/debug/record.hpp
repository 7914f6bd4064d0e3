// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "debug/addressing.hpp"
#include "debug/arguments.hpp"
#include "debug/case.hpp"

// A call becomes a case.
namespace dsakit::debug {

enum class Caches { touched, whole, none };

class Recording {
 public:
  /// In front of the call: copies what it will update.
  Recording(const Arguments&, Caches);

  /// Behind it: reads the other arguments, the results and the updated tensors. `refused`: there are none.
  Case finish(bool refused, const Context&);

 private:
  bool has_own_results(const PageUse&) const;
  /// Under this key, as it lies: dense, a part of its pages, FRACTAL_NZ, or unpacked.
  void store(const std::string& key, const Parameter&, const Tensor&);
  void store_pages(const std::string& key, const std::string& pages_key, const Tensor&, const Integers& pages);
  void inputs();
  bool store_view(const std::string& key, const Tensor&);

  Arguments arguments_;
  Caches caches_;
  ByName<Integers> pages_;  // of the caches that are stored in part
  Case case_;
  struct Whole {
    std::string key;
    Tensor tensor;
  };
  std::vector<Whole> whole_;  // dense inputs that are stored as they are: other arguments may be views of them
};

/// Whether the memory of a tensor can be read: its size can be counted, and it has memory.
bool is_readable(const Tensor&);

}  // namespace dsakit::debug
