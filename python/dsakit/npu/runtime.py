# SPDX-License-Identifier: Apache-2.0
"""torch.npu: a device whose work is done when a call returns."""

from __future__ import annotations

import contextlib
import os
import resource
import threading
import time
from collections.abc import Iterator
from typing import Any, NoReturn

import torch

from ..errors import raise_error, shown
from . import formats

SOC_VERSIONS = {"A2": 220, "A3": 250}
NAMES = {"A2": "Ascend910B1 (dsakit)", "A3": "Ascend910_9391 (dsakit)"}

count, soc = 1, "A2"  # as installed
_thread = threading.local()
config = formats.config


def index_of(device: Any) -> int:
    """The index that "npu:1", torch.device("npu"), 1 or None mean, checked."""
    index = device
    if device is None:
        return current_device()
    if isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device):
        index = current_device() if device.index is None else device.index
    if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < count:
        raise_error("INVALID_DEVICE", "torch.npu", "device", "", f"is {shown(device)}", f"npu:0..{count - 1}")
    return index


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    return True


def init() -> None:
    """Nothing: there is nothing to start."""


def is_bf16_supported() -> bool:
    return True


def device_count() -> int:
    return count


def current_device() -> int:
    return getattr(_thread, "device", 0)


def set_device(device: Any) -> None:
    _thread.device = index_of(device)


class device:
    """with torch.npu.device(1): .."""

    def __init__(self, device: Any):
        self.index = index_of(device)

    def __enter__(self) -> None:
        self.before = current_device()
        set_device(self.index)

    def __exit__(self, *error: object) -> None:
        _thread.device = self.before


class device_of(device):
    def __init__(self, tensor: Any):
        super().__init__(None)


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Every call is done when it returns."""


synchronize = empty_cache = ipc_collect = set_option = set_compile_mode = _nothing
reset_peak_memory_stats = reset_max_memory_allocated = _nothing


# ---- streams and events


class Stream:
    """A queue that is always empty."""

    def __init__(self, device: Any = None, priority: int = 0, **_: Any):
        self.device_index, self.priority = index_of(device), priority
        self.device = torch.device("npu", self.device_index)
        self.stream_id = self.npu_stream = id(self)

    def query(self) -> bool:
        return True

    def record_event(self, event: Any = None) -> Any:
        event = Event() if event is None else event
        event.record(self)
        return event

    synchronize = wait_stream = wait_event = _nothing

    def __enter__(self) -> Stream:
        self._before = current_stream()
        set_stream(self)
        return self

    def __exit__(self, *error: object) -> None:
        set_stream(self._before)


class ExternalStream(Stream):
    def __init__(self, stream_ptr: int = 0, device: Any = None):
        super().__init__(device)
        self.npu_stream = stream_ptr


class Event:
    """A time of the host."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, **_: Any):
        self.time = time.perf_counter()

    def record(self, stream: Any = None) -> None:
        self.time = time.perf_counter()

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds."""
        return (end.time - self.time) * 1e3

    synchronize = wait = reset = _nothing


class ExternalEvent(Event):
    pass


_default: dict[int, Stream] = {}


def default_stream(device: Any = None) -> Stream:
    index = index_of(device)
    return _default.setdefault(index, Stream(index))


def current_stream(device: Any = None) -> Stream:
    return getattr(_thread, "streams", {}).get(index_of(device)) or default_stream(device)


def set_stream(stream: Stream) -> None:
    if not hasattr(_thread, "streams"):
        _thread.streams = {}
    _thread.streams[stream.device_index] = stream


@contextlib.contextmanager
def stream(stream: Stream | None) -> Iterator[None]:
    if stream is None:
        yield
        return
    with stream:
        yield


# ---- memory and properties


def _resident() -> int:
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Free and total memory of the host."""
    page = os.sysconf("SC_PAGE_SIZE")
    return os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page


def memory_allocated(device: Any = None) -> int:
    """The resident set of the process."""
    return _resident()


memory_reserved = memory_allocated


def max_memory_allocated(device: Any = None) -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


max_memory_reserved = max_memory_allocated


def memory_stats(device: Any = None) -> dict[str, int]:
    now, most = _resident(), max_memory_allocated()
    names = ("allocated_bytes.all", "reserved_bytes.all")
    return {f"{n}.current": now for n in names} | {f"{n}.peak": most for n in names}


class _Properties:
    def __init__(self) -> None:
        self.name, self.total_memory = NAMES[soc], mem_get_info()[1]
        self.cube_core_num, self.vector_core_num = 24, 48


def get_device_properties(device: Any = None) -> Any:
    index_of(device)
    return _Properties()


def get_device_name(device: Any = None) -> str:
    index_of(device)
    return NAMES[soc]


def get_device_capability(device: Any = None) -> None:
    return None


def get_soc_version() -> int:
    return SOC_VERSIONS[soc]


# ---- random numbers are the CPU's


def manual_seed(seed: int) -> None:
    torch.default_generator.manual_seed(int(seed))


manual_seed_all = manual_seed


def seed() -> None:
    torch.default_generator.seed()


seed_all = seed


def initial_seed() -> int:
    return torch.default_generator.initial_seed()


def get_rng_state(device: Any = None) -> torch.Tensor:
    return torch.get_rng_state()


def set_rng_state(state: torch.Tensor, device: Any = None) -> None:
    torch.set_rng_state(state)


def _is_in_bad_fork() -> bool:
    return False


def get_amp_supported_dtype() -> list[Any]:
    return [torch.float16, torch.bfloat16, torch.float32]


# ---- graphs


def _run_eagerly(*args: Any, **kwargs: Any) -> NoReturn:
    raise_error("UNSUPPORTED", "torch.npu", "graph", "", "is not captured here", "eager calls")


NPUGraph = graph = make_graphed_callables = graph_pool_handle = _run_eagerly
graph_task_group_begin = graph_task_group_end = graph_task_update_begin = graph_task_update_end = _run_eagerly
npugraph_ex = _run_eagerly


class autocast:
    def __init__(self, *args: Any, **kwargs: Any):
        raise_error("UNSUPPORTED", "torch.npu", "autocast", "", "is not offered", "dtypes as they are")


def is_current_stream_capturing() -> bool:
    return False
