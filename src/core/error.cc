// SPDX-License-Identifier: Apache-2.0
#include "dsakit/error.hpp"

#include "core/out_of_memory.hpp"
#include "dsakit/tensor.hpp"

namespace dsakit {
namespace {

std::string sentence(const std::string& op, const std::string& parameter, const std::string& position,
                     const std::string& got, const std::string& wanted, const std::string& why,
                     const std::string& reason) {
  std::string s = op + ": " + parameter + position + " " + got;
  if (!wanted.empty()) s += ", wanted " + wanted;
  if (!why.empty()) s += why.front() == '[' ? " " + why : " (" + why + ")";
  if (!reason.empty()) s += " [" + reason + "]";
  return s;
}

/// Its texts are so short that strings hold them in place: a copy asks for no memory. To the end of the process.
const Error& exhausted = *new Error(Status::out_of_memory, "dsakit", "memory", "", "is exhausted", "more");

}  // namespace

void throw_out_of_memory() { throw Error(exhausted); }

Error::Error(Status status, std::string op, std::string parameter, std::string position, std::string got,
             std::string wanted, std::string why, std::string reason)
    : std::runtime_error(sentence(op, parameter, position, got, wanted, why, reason)),
      status(status),
      op(std::move(op)),
      parameter(std::move(parameter)),
      position(std::move(position)),
      got(std::move(got)),
      wanted(std::move(wanted)),
      why(std::move(why)),
      reason(std::move(reason)) {}

const char* name_of(Status s) {
  switch (s) {
    case Status::ok: return "OK";
    case Status::invalid_argument: return "INVALID_ARGUMENT";
    case Status::invalid_shape: return "INVALID_SHAPE";
    case Status::invalid_dtype: return "INVALID_DTYPE";
    case Status::invalid_stride: return "INVALID_STRIDE";
    case Status::misaligned: return "MISALIGNED";
    case Status::invalid_device: return "INVALID_DEVICE";
    case Status::aliased: return "ALIASED";
    case Status::invalid_seqlen: return "INVALID_SEQLEN";
    case Status::invalid_block: return "INVALID_BLOCK";
    case Status::invalid_slot: return "INVALID_SLOT";
    case Status::invalid_index: return "INVALID_INDEX";
    case Status::invalid_value: return "INVALID_VALUE";
    case Status::unsupported: return "UNSUPPORTED";
    case Status::out_of_memory: return "OUT_OF_MEMORY";
    case Status::io_error: return "IO_ERROR";
    case Status::invalid_path: return "INVALID_PATH";
    case Status::invalid_file: return "INVALID_FILE";
    case Status::invalid_config: return "INVALID_CONFIG";
    case Status::missing_tensor: return "MISSING_TENSOR";
    case Status::conflict: return "CONFLICT";
    case Status::peer_failed: return "PEER_FAILED";
    case Status::interrupted: return "INTERRUPTED";
    case Status::internal: return "INTERNAL";
  }
  return "INTERNAL";
}

int exit_code(Status status) {
  switch (status) {
    using enum Status;
    case ok: return 0;
    case out_of_memory: return 4;
    case io_error: case invalid_path: case invalid_file: case invalid_config: case missing_tensor: case conflict: return 3;
    case peer_failed: return 5;
    case interrupted: return 130;
    case internal: return 6;
    default: return 2;
  }
}

const char* name_of(DType t) {
  switch (t) {
    case DType::boolean: return "bool";
    case DType::u8: return "uint8";
    case DType::i8: return "int8";
    case DType::u16: return "uint16";
    case DType::i16: return "int16";
    case DType::u32: return "uint32";
    case DType::i32: return "int32";
    case DType::u64: return "uint64";
    case DType::i64: return "int64";
    case DType::f16: return "float16";
    case DType::bf16: return "bfloat16";
    case DType::f32: return "float32";
    case DType::f64: return "float64";
    case DType::f8_e4m3: return "float8_e4m3";
    case DType::f8_e5m2: return "float8_e5m2";
    case DType::other: break;
  }
  return "an unknown type";
}

}  // namespace dsakit
