# SPDX-License-Identifier: Apache-2.0
"""Names of PyPTO 9.1.0: enumerations, and what is documented and not offered here."""

from __future__ import annotations

import enum
from typing import Any, NoReturn

from ..errors import Error, raise_error


class DataType(enum.Enum):
    DT_INT4 = 0
    DT_INT8 = 1
    DT_INT16 = 2
    DT_INT32 = 3
    DT_INT64 = 4
    DT_FP8 = 5
    DT_FP16 = 6
    DT_FP32 = 7
    DT_BF16 = 8
    DT_HF4 = 9
    DT_HF8 = 10
    DT_UINT8 = 11
    DT_UINT16 = 12
    DT_UINT32 = 13
    DT_UINT64 = 14
    DT_BOOL = 15
    DT_DOUBLE = 16
    DT_FP8E4M3 = 17
    DT_FP8E5M2 = 18
    DT_FP8E8M0 = 19
    DT_FP4_E2M1X2 = 20
    DT_FP4_E1M2X2 = 21
    DT_FP4_E2M1 = 22
    DT_FP4_E1M2 = 23
    DT_BOTTOM = 24


class CastMode(enum.Enum):
    CAST_NONE = 0
    CAST_RINT = 1
    CAST_ROUND = 2
    CAST_FLOOR = 3
    CAST_CEIL = 4
    CAST_TRUNC = 5
    CAST_ODD = 6


class SaturationMode(enum.Enum):
    ON = 0
    OFF = 1


class PrecisionType(enum.Enum):
    INTRINSIC = 0
    HIGH_PRECISION = 1


class TileOpFormat(enum.Enum):
    TILEOP_ND = 0
    TILEOP_NZ = 1


class ReLuType(enum.Enum):
    NO_RELU = 0
    RELU = 1


class TransMode(enum.Enum):
    CAST_NONE = 0
    CAST_RINT = 1
    CAST_ROUND = 2


class TopKAlgo(enum.Enum):
    MERGE_SORT = 0
    RADIX_SELECT = 1


class RunMode(enum.IntEnum):
    NPU = 0
    SIM = 1


class CachePolicy(enum.Enum):
    PREFETCH = 0
    NONE_CACHEABLE = 1


class CompStage(enum.Enum):
    ALL_COMPLETE = 0
    TENSOR_GRAPH = 1
    TILE_GRAPH = 2
    EXECUTE_GRAPH = 3
    CODEGEN_INSTRUCTION = 4
    CODEGEN_BINARY = 5


class StatusType(enum.Enum):
    DYN = "DYN"
    DYNAMIC = "DYNAMIC"
    STATIC = "STATIC"


class OpType(enum.Enum):
    EQ = 0
    NE = 1
    LT = 2
    LE = 3
    GT = 4
    GE = 5


class OutType(enum.Enum):
    BOOL = 0
    BIT = 1


class ReduceMode(enum.Enum):
    ATOMIC_ADD = 0


class ScatterMode(enum.Enum):
    NONE = 0
    ADD = 1
    MULTIPLY = 2


class AtomicRMWMode(enum.Enum):
    ADD = 0
    MAX = 1
    MIN = 2


class AtomicType(enum.Enum):
    SET = 0
    ADD = 1


class DequantScaleRoundingMode(enum.Enum):
    ROUND_UP = 0
    ROUND_DOWN = 1


class LogLevel(enum.IntEnum):
    DEBUG = 0
    INFO = 1
    WARN = 2
    ERROR = 3
    FATAL = 4
    EVENT = 5


class LogBaseType(enum.Enum):
    LOG_E = 0
    LOG_2 = 1
    LOG_10 = 2


# Owner -> what it has and what is refused by name when it is called.
NOT_OFFERED = {
    "pypto": (
        "set_conv_tile_shapes get_conv_tile_shapes get_current_scope get_global_config set_global_config "
        "get_options_tree atomic_add axpy_ hypot fmod lrelu remainder atan atan2 erf sinh cosh erfc asin acos "
        "asinh acosh atanh signbit tan cumprod copysign cbrt gcd ceil_div floor_div prelu scaled_mm "
        "convert_to_element index_add_ index_add index_add__ub index_add_ub index_put_ get_scatter_mode "
        "gathermask interleave deinterleave greater sort32 mrgsort expand_exp_dif conv quantize dequantize "
        "quant_mx uniform_impl uniform normal ceildiv bytes_of verify get_last_function get_current_function "
        "get_pass_default_config set_pass_default_config get_pass_config set_pass_config get_pass_configs "
        "log_debug log_info log_warn log_error log_fatal log_event check internal_check raise_error "
        "set_log_level get_log_level ConvTile ConfigScope Function ConvParams PassConfigs PassConfigKey "
        "InternalError"
    ).split(),
    "distributed": (
        "create_shmem_tensor create_shmem_signal shmem_view shmem_put shmem_get shmem_signal shmem_wait_until "
        "shmem_barrier_all shmem_clear_data shmem_clear_signal my_symbolic_pe"
    ).split(),
    "experimental": ("online_softmax online_softmax_update nop shmem_store shmem_load").split(),
    "frontend": ("dynamic").split(),
    "pypto_impl": ("TileL1Info TileL0Info").split(),
    "runtime": ("_device_synchronize").split(),
    "SymbolicScalar": ("is_concrete is_symbol is_expression is_immediate").split(),
    "Tensor": (
        "__mod__ id is_empty axpy_ hypot prelu fmod remainder greater fill_ sinh cosh asinh acosh lrelu "
        "quant_mx sort32 mrgsort signbit erfc gathermask index_add_ index_add cumprod gcd triu_ tril_"
    ).split(),
}
ERRORS_NOT_OFFERED = (
    "PyptoGeneralError ParserError RenderedParserError FeError PyptoRtError PassError VerifyError".split()
)


def refuse(owner: str, name: str) -> NoReturn:
    where = "pypto" if owner == "pypto" else f"pypto.{owner}"
    raise_error("UNSUPPORTED", f"{where}.{name}", name, "", "is documented and not offered", "another operation")


class NotOffered:
    """A documented name that nobody computes here: programs may import it, and calling it says so."""

    def __init__(self, owner: str, name: str) -> None:
        self.owner, self.__name__ = owner, name

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        refuse(self.owner, self.__name__)

    def __repr__(self) -> str:
        return f"<pypto.{self.__name__}, documented and not offered>"


def error_not_offered(name: str) -> type[Error]:
    """A class that `except` may name and nobody raises."""

    def init(self: Any, *args: Any) -> None:
        refuse("error", name)

    return type(name, (Error,), {"__init__": init, "__module__": __name__, "__doc__": "Documented and not offered."})
