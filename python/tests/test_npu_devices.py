# SPDX-License-Identifier: Apache-2.0
"""dsakit.npu: the device, its module, formats."""

import threading

import pytest

torch = pytest.importorskip("torch", minversion="2.13")

import dsakit  # noqa: E402
import dsakit.npu  # noqa: E402


def test_devices(npu):
    assert torch.zeros(2, device="npu").device.type == "cpu"
    assert torch.tensor([1, 2], device="npu:0").tolist() == [1, 2]
    assert torch.arange(3, device=torch.device("npu")).tolist() == [0, 1, 2]
    x = torch.ones(3)
    for moved in (x.npu(), x.to("npu"), x.cpu(), x.to("cpu"), x.to(device="npu:0"), x.to("npu", torch.float64)):
        assert moved.data_ptr() != x.data_ptr() and moved.tolist() == [1, 1, 1] and moved.is_npu
    sparse = torch.eye(2).to_sparse()
    assert sparse.cpu() is not sparse and sparse.cpu().to_dense().equal(torch.eye(2))
    assert x.to(torch.float32) is x and x.to(torch.float16).dtype == torch.float16
    with torch.device("npu"):
        assert torch.nn.Linear(2, 3).weight.shape == (3, 2)
    assert torch.nn.Linear(2, 2).npu().weight.is_npu
    for bad in ("npu:1", 1, torch.device("npu", 3)):
        with pytest.raises(dsakit.Error, match="npu:0..0"):
            x.to(bad)
        with pytest.raises((dsakit.Error, RuntimeError)):
            torch.zeros(2, device=bad if not isinstance(bad, int) else f"npu:{bad}")
    dsakit.npu.install(devices=2, host_copies=False)
    assert x.to("npu:1").shape == (3,) and torch.npu.device_count() == 2 and x.cpu() is x
    torch.npu.set_device(1)
    assert torch.npu.current_device() == 1
    torch.npu.set_device("npu:0")


FACTORIES = {
    "zeros": [(2, 3)], "ones": [(2, 3)], "full": [(2,), 3.5], "arange": [5], "linspace": [0, 1, 4], "eye": [3],
    "tensor": [[1, 2]], "as_tensor": [[1, 2]], "asarray": [[1, 2]], "tril_indices": [3, 4], "triu_indices": [3, 4],
    "zeros_like": [torch.ones(3)], "full_like": [torch.ones(3), 2], "hann_window": [4], "scalar_tensor": [2.5],
    "rand": [3], "randn": [3], "randint": [5, (3,)], "randperm": [5], "rand_like": [torch.ones(3)], "logspace": [0, 1, 3],
}  # fmt: skip


@pytest.mark.parametrize("name", FACTORIES)
@pytest.mark.parametrize("device", ["npu", "npu:1", torch.device("cpu"), None])
def test_factories(npu, name, device):
    """The tensor of the CPU, random ones too; the same with the device of a context or by default."""
    dsakit.npu.install(devices=2)
    torch.manual_seed(3)
    want = getattr(torch, name)(*FACTORIES[name])
    torch.manual_seed(3)
    if device is None:
        with torch.device("npu:1"):
            got = getattr(torch, name)(*FACTORIES[name])
    else:
        got = getattr(torch, name)(*FACTORIES[name], device=device)
    assert got.device.type == "cpu" and got.dtype == want.dtype and torch.equal(got, want)


def test_new_tensors_modules_and_threads(npu):
    x, made = torch.ones(3), []
    for new in (x.new_zeros(2, device="npu"), x.new_full((2,), 0.0, device="npu:0"), x.new_tensor([0.0, 0.0], device="npu")):
        assert new.tolist() == [0, 0] and new.device.type == "cpu"
    torch.set_default_device("npu")
    try:
        assert torch.nn.Linear(2, 3).weight.is_npu and torch.zeros(2).tolist() == [0, 0]
    finally:
        torch.set_default_device(None)
    module = torch.nn.Linear(2, 3).to("npu", torch.bfloat16)
    assert module.weight.dtype == torch.bfloat16 and module.weight.device.type == "cpu"
    thread = threading.Thread(target=lambda: made.append(torch.zeros(2, device="npu")))
    thread.start()
    thread.join()
    assert made[0].tolist() == [0, 0]


def test_kernels_for_the_device_serve_cpu_tensors(npu):
    mine = torch.library.Library("npu_face_test", "DEF")
    mine.define("double(Tensor x) -> Tensor")
    mine.impl("double", lambda x: x + x, "PrivateUse1")
    triple = torch.library.custom_op("npu_face_test::triple", lambda x: x * 3, mutates_args=(), device_types="npu",
                                     schema="(Tensor x) -> Tensor")  # fmt: skip
    assert torch.ops.npu_face_test.double(torch.ones(1)) == 2 and triple(torch.ones(1)) == 3
    mine._destroy()
    triple._lib._destroy()


ANSWERS = {
    "is_available()": True, "is_initialized()": True, "device_count()": 2, "current_device()": 0, "synchronize()": None,
    "empty_cache()": None, "ipc_collect()": None, "set_option({})": None, "set_compile_mode(jit_compile=False)": None,
    "reset_peak_memory_stats()": None, "Stream().query()": True, "Event().query()": True, "Stream().synchronize()": None,
    "Event().wait()": None, "Event().record()": None, "Event().reset()": None, "ExternalStream(3).npu_stream": 3,
    "ExternalEvent().query()": True, "get_soc_version()": 220, "get_device_name()": "Ascend910B1 (dsakit)",
    "get_device_properties().cube_core_num": 24, "get_device_properties(1).vector_core_num": 48,
    "config.allow_internal_format": True, "manual_seed(3)": None, "manual_seed_all(3)": None,
    "set_rng_state(npu.get_rng_state())": None, "is_current_stream_capturing()": False,
    "default_stream() is npu.current_stream()": True, "Stream() == npu.Stream()": False,
    "max_memory_allocated() >= 0 < npu.memory_reserved()": True, "memory_stats()['allocated_bytes.all.peak'] > 0": True,
    "autocast()": NotImplementedError, "NPUGraph()": NotImplementedError, "graph(None)": NotImplementedError,
    "graph_task_group_begin(None)": NotImplementedError, "graph_task_update_end(None)": NotImplementedError,
    "npugraph_ex()": NotImplementedError, "set_device(2)": ValueError, "device(-1)": ValueError, "no_name": AttributeError,
}  # fmt: skip


@pytest.mark.parametrize("asked", ANSWERS)
def test_torch_npu_answers(npu, asked):
    dsakit.npu.install(devices=2)
    answer = ANSWERS[asked]
    if isinstance(answer, type):
        with pytest.raises(answer):
            eval("npu." + asked, {"npu": torch.npu})
    else:
        assert eval("npu." + asked, {"npu": torch.npu}) == answer


def test_scopes_and_tags_of_torchair(npu):
    import torchair

    with torchair.scope.npu_stream_switch("a"), torchair.scope.limit_core_num(1, 2), torchair.scope.any_other():
        assert torchair.ops.npu_wait_tensor(1, 2) == 1 and torchair.ops.npu_tagged_event_record("a") is None
    assert torchair.patch_for_hcom() is None
    for refused in (torchair.register_fx_node_ge_converter, torchair.inference.cache_compile):
        with pytest.raises(NotImplementedError):
            refused(None)


def test_pinned_memory_is_memory(npu):
    x = torch.ones(3)
    assert x.pin_memory().data_ptr() != x.data_ptr() and not x.is_pinned()
    assert torch.zeros(2, device="npu", pin_memory=True).tolist() == [0, 0]


def test_torch_npu_module(npu):
    assert torch.npu is npu.npu and torch.npu.is_available()
    assert torch.npu.get_soc_version() == 220 and "dsakit" in torch.npu.get_device_name()
    start, end = torch.npu.Event(enable_timing=True), torch.npu.Event(enable_timing=True)
    start.record()
    end.record()
    assert start.elapsed_time(end) >= 0 and end.query()
    stream = torch.npu.Stream()
    with torch.npu.stream(stream):
        assert torch.npu.current_stream() is stream
    assert torch.npu.current_stream() is torch.npu.default_stream()
    torch.npu.synchronize()
    free, total = torch.npu.mem_get_info()
    assert 0 < free <= total and torch.npu.memory_allocated() > 0
    with pytest.raises(NotImplementedError):
        torch.npu.NPUGraph()
    with pytest.raises(AttributeError, match="torch_npu.npu: nothing_like_it is unknown"):
        torch.npu.nothing_like_it  # noqa: B018
    import torch_npu.profiler
    import torchair

    with pytest.warns(UserWarning, match="nothing is recorded"), torch_npu.profiler.profile():
        pass
    backend = torchair.get_npu_backend(compiler_config=torchair.CompilerConfig())
    assert torch.compile(lambda x: x + 1, backend=backend)(torch.ones(1)) == 2
    dsakit.npu.install(soc="A3")
    assert torch.npu.get_soc_version() == 250
    with pytest.raises(NotImplementedError):
        dsakit.npu.install(soc="310P")


def test_formats(npu):
    x = torch.rand(48, 32)
    w = npu.npu_format_cast(x, 29)
    nz = npu.Format.FRACTAL_NZ
    assert type(w) is torch.Tensor and torch.equal(w, x) and w.data_ptr() != x.data_ptr()
    parameter = torch.nn.Parameter(torch.empty(0))
    parameter.data = npu.npu_format_cast(x, npu.Format.FRACTAL_NZ)
    for same in (w, w.t(), w[:16], torch.nn.Parameter(w), parameter, npu.npu_format_cast(x, w), w.npu()):
        assert npu.get_npu_format(same) == nz
    for other in (x, w + 1, npu.npu_format_cast(w, 2)):
        assert npu.get_npu_format(other) == npu.Format.ND
    assert npu.npu_format_cast(w, 29) is w
    npu.npu_format_cast_(x, 29)
    assert npu.get_npu_format(x) == nz
    with pytest.raises(NotImplementedError):
        npu.npu_format_cast(torch.rand(2, 2), npu.Format.FRACTAL_Z)
    with pytest.raises(ValueError):
        npu.npu_format_cast(torch.rand(2, 2), 77)
    npu.npu.config.allow_internal_format = False
    try:
        with pytest.warns(UserWarning, match="stays ND"):
            assert npu.get_npu_format(npu.npu_format_cast(torch.rand(2, 2), 29)) == npu.Format.ND
    finally:
        npu.npu.config.allow_internal_format = True


def test_prefetch(npu):
    x = torch.zeros(4)
    assert npu.npu_prefetch(x, None, 16) is None
    for bad in (dict(max_size=0), dict(max_size=1, offset=16), dict(max_size=1, offset=-1)):
        with pytest.raises(ValueError):
            npu.npu_prefetch(x, x, **bad)
