// SPDX-License-Identifier: Apache-2.0
#include "debug/hash.hpp"

#include <cinttypes>
#include <cstdio>
#include <cstring>

namespace dsakit::debug {

std::string sibling_name(const Stored& s) {
  std::uint64_t hash = hash_of(s.type->name, std::strlen(s.type->name));
  hash = hash_of(s.shape.data(), s.shape.size() * sizeof s.shape[0], hash);
  hash = hash_of(s.bytes->data(), s.bytes->size(), hash);
  char name[64];
  std::snprintf(name, sizeof name, "weight-%016" PRIx64 ".safetensors", hash);
  return name;
}

}  // namespace dsakit::debug
