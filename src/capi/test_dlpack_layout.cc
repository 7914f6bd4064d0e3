// SPDX-License-Identifier: Apache-2.0
// clang-format off
#include "dsakit/dsakit.h"
#include <dlpack/dlpack.h>  // behind it: both have types of their own
// clang-format on

#include <cstddef>

namespace {

static_assert(sizeof(dsakit_tensor) == sizeof(DLTensor) && alignof(dsakit_tensor) == alignof(DLTensor));
static_assert(sizeof(dsakit_dtype) == sizeof(DLDataType) && sizeof(dsakit_device) == sizeof(DLDevice));
#define SAME(ours, theirs, member) static_assert(offsetof(ours, member) == offsetof(theirs, member))
SAME(dsakit_dtype, DLDataType, code);
SAME(dsakit_dtype, DLDataType, bits);
SAME(dsakit_dtype, DLDataType, lanes);
SAME(dsakit_device, DLDevice, device_type);
SAME(dsakit_device, DLDevice, device_id);
SAME(dsakit_tensor, DLTensor, data);
SAME(dsakit_tensor, DLTensor, device);
SAME(dsakit_tensor, DLTensor, ndim);
SAME(dsakit_tensor, DLTensor, dtype);
SAME(dsakit_tensor, DLTensor, shape);
SAME(dsakit_tensor, DLTensor, strides);
SAME(dsakit_tensor, DLTensor, byte_offset);
static_assert(int(DSAKIT_INT) == int(kDLInt) && int(DSAKIT_UINT) == int(kDLUInt));
static_assert(int(DSAKIT_FLOAT) == int(kDLFloat) && int(DSAKIT_BFLOAT) == int(kDLBfloat));

}  // namespace
