// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <stdexcept>
#include <string>

namespace dsakit {

/// What went wrong. The numbers are part of the interface: they never change, new ones are appended.
enum class Status : int {
  ok = 0,
  invalid_argument = 1,  // missing, unused and given, unknown, out of range, or not a documented combination
  invalid_shape = 2,
  invalid_dtype = 3,
  invalid_stride = 4,
  misaligned = 5,
  invalid_device = 6,    // wrong device, or read-only where written
  aliased = 7,           // overlapping memory that must not overlap
  invalid_seqlen = 8,
  invalid_block = 9,     // block_table
  invalid_slot = 10,     // cache_index
  invalid_index = 11,    // sparse_indices
  invalid_value = 12,    // found by value checking
  unsupported = 13,      // documented but not offered, or (strict) beyond the chip
  out_of_memory = 14,
  io_error = 15,
  invalid_path = 16,
  invalid_file = 17,
  invalid_config = 18,
  missing_tensor = 19,
  conflict = 20,
  peer_failed = 21,
  interrupted = 22,
  internal = 23,
};

/// "INVALID_SHAPE" and so on.
const char* name_of(Status);

/// What a program that failed this way exits with.
int exit_code(Status);

/// One refusal. what() is the sentence
///     <op>: <parameter><position> <got>, wanted <wanted>[ (<why>)][ [<reason>]]
/// Thrown before anything is written; the context stays usable.
class Error : public std::runtime_error {
 public:
  Error(Status status, std::string op, std::string parameter, std::string position, std::string got,
        std::string wanted, std::string why = {}, std::string reason = {});

  Status status;
  std::string op, parameter, position, got, wanted, why;
  int rank = -1;       // which one failed, of several that call together
  std::string reason;  // of a refused file: one word, such as SIZE_MISMATCH
};

}  // namespace dsakit
