// SPDX-License-Identifier: Apache-2.0
#include <dlpack/dlpack.h>
#include <gtest/gtest.h>

#include <type_traits>

#include "dsakit/dsakit.h"

// Behind dlpack.h, the C interface has its types.
namespace {

static_assert(std::is_same_v<dsakit_tensor, DLTensor> && std::is_same_v<dsakit_dtype, DLDataType>);

TEST(DLPack, ATensorOfItsHeaderIsTakenAsItIs) {
  float x[] = {1, -2, 127, 3}, scale = 0;
  std::int8_t codes[4] = {};
  int64_t shape[] = {1, 4}, one[] = {1};
  DLTensor input = dsakit_cpu_tensor(x, DSAKIT_FLOAT, 32, 2, shape),
           y = dsakit_cpu_tensor(codes, DSAKIT_INT, 8, 2, shape),
           s = dsakit_cpu_tensor(&scale, DSAKIT_FLOAT, 32, 1, one);
  const dsakit_argument call[] = {dsakit_tensor_arg("input", &input), dsakit_tensor_arg("y", &y),
                                  dsakit_tensor_arg("scale", &s)};
  ASSERT_EQ(dsakit_run(nullptr, "dynamic_quant", call, 3), DSAKIT_OK) << dsakit_last_error()->message;
  EXPECT_EQ(scale, 1);
  EXPECT_EQ(codes[2], 127);
  input.device.device_type = kDLCUDA;
  EXPECT_EQ(dsakit_run(nullptr, "dynamic_quant", call, 3), DSAKIT_INVALID_DEVICE);
}

}  // namespace
