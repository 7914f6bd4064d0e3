# SPDX-License-Identifier: Apache-2.0
"""examples/npu_capture.py: a recorder that knows nothing of dsakit writes what dsakit reads."""

import pathlib
import runpy

import numpy as np
import pytest

from dsakit import debug

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")
SCRIPT = pathlib.Path(__file__).parents[2] / "examples" / "npu_capture.py"


@pytest.fixture
def record():
    return runpy.run_path(str(SCRIPT))["record"]


def test_a_call_by_position(npu, record, tmp_path):
    path = str(tmp_path / "a.safetensors")
    x, gamma = torch.randn(3, 64).bfloat16(), torch.ones(64).bfloat16()
    results = record(path, npu.npu_rms_norm, "torch_npu.npu_rms_norm", x, gamma, epsilon=1e-5, npu_format={"0": 2})
    case = debug.Case.load(path)
    assert case.keys() == ["in.0", "in.1", "out.0", "out.1"] and case.attributes == {"epsilon": 1e-5}
    assert case.layout("in.0") == {"npu_format": 2}
    same = case.compare(case.run())
    assert [s.parameter for s in same] == ["y", "rstd"] and all(s.equal for s in same)
    np.testing.assert_array_equal(case["out.0"].view(np.uint16), results[0].view(torch.uint16).numpy())


def test_updates_and_lists(npu, record, tmp_path):
    path = str(tmp_path / "a.safetensors")
    cache, rows = torch.zeros(6, 4), torch.randn(2, 4)
    index = torch.tensor([[4], [1]])
    name = "torch_npu.npu_scatter_nd_update_"
    record(path, npu.npu_scatter_nd_update_, name, cache, index, rows, in_place=(0,))
    case = debug.Case.load(path)
    assert not case["in.0"].any() and case["after.0"].any()
    compared = {c.name: c for c in case.compare(case.run())}
    assert compared["after.0"].equal

    shards = [torch.randn(3, 8) for _ in range(2)]
    lse = [torch.randn(3) for _ in range(2)]
    record(path, npu.npu_attention_update, "torch_npu.npu_attention_update", lse, shards, 1)
    case = debug.Case.load(path)
    assert case.keys("in") == ["in.0.0", "in.0.1", "in.1.0", "in.1.1"] and case.attributes == {"2": 1}
    assert all(c.equal for c in case.compare(case.run()))
