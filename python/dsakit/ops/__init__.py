# SPDX-License-Identifier: Apache-2.0
"""The operators as engines call them: dsakit.ops.npu, .custom and ._C_ascend stand where torch.ops.npu, .custom and
._C_ascend do. What torch_npu itself has is at the top of the package, with npu_ in front of the name."""

from . import _C_ascend, custom, npu

__all__ = ["_C_ascend", "custom", "npu"]
