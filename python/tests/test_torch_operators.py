# SPDX-License-Identifier: Apache-2.0
"""The operators as torch has them: checked schemas, compiled and exported calls, fake and meta tensors, symbolic sizes."""

import subprocess
import sys

import numpy as np
import pytest

import dsakit
from dsakit import _core, graph
from oracle.calls import CALLS
from oracle.harness import to_torch

torch = pytest.importorskip("torch")
testing = pytest.importorskip("torch._dynamo.testing")
ROLES = {name: {f["name"]: f["role"] for f in d["fields"]} for name, d in _core.describe().items()}
every_call = pytest.mark.parametrize("name", CALLS)


def mapped(change, args):
    """The arguments with every tensor changed, those of lists too."""
    return torch.utils._pytree.tree_map(lambda v: change(v) if isinstance(v, torch.Tensor) else v, args)


def plain(tensor):
    return torch.nan_to_num(tensor) if tensor.is_floating_point() else tensor


def inputs(name, outs=False):
    """Tensors of a small good call, without the NaN that lie in unused cache rows: torch compares whole caches."""
    call = CALLS[name]
    args = {k: v for k, v in call.make().items() if outs or ROLES[call.operator][k] != "out"}
    return mapped(plain, torch.utils._pytree.tree_map(to_torch, args))


def form(name):
    graph.register()
    return graph._forms[CALLS[name].operator]


def of_schema(name):
    """The arguments as the schema has them."""
    f, given = form(name), inputs(name)
    for key, value in given.items():
        if f.inputs[key]["kind"] == "dtype" and isinstance(value, str):
            given[key] = getattr(torch, value)
        if f.inputs[key]["kind"] == "lengths" and isinstance(value, list):
            given[key] = torch.tensor(value)
    return [given.pop(n, f.defaults[n]) for n in f.positional], given


def assert_equal(got, want, args, kept):
    got, want = (r if isinstance(r, tuple) else (r,) for r in (got, want))
    assert len(got) == len(want)
    for a, b in zip(got, want):
        assert (a is None) == (b is None)
        if a is None:
            continue
        assert a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    for key, value in args.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, kept[key]), key


@every_call
def test_opcheck(name):
    args, kwargs = of_schema(name)
    torch.library.opcheck(getattr(torch.ops.dsakit, form(name).spelling).default, tuple(args), kwargs)


@every_call
@pytest.mark.parametrize("outs", [False, True], ids=["", "outs given"])
def test_compiled(name, outs):
    operator = getattr(dsakit, CALLS[name].operator)
    args, compiled = inputs(name, outs), inputs(name, outs)
    torch._dynamo.reset()
    got = torch.compile(lambda **k: operator(**k), backend="aot_eager", fullgraph=True)(**compiled)
    assert_equal(got, operator(**args), compiled, args)


@pytest.mark.parametrize("name", ["v3", "lip", "kvsfa"])
def test_inductor(name):
    operator = getattr(dsakit, CALLS[name].operator)
    args, compiled = inputs(name), inputs(name)
    torch._dynamo.reset()
    got = torch.compile(lambda **k: operator(**k), fullgraph=True)(**compiled)
    assert_equal(got, operator(**args), compiled, args)


@every_call
def test_exported(name):
    operator = getattr(dsakit, CALLS[name].operator)

    class Module(torch.nn.Module):
        def forward(self, given):
            return operator(**given)

    args, again = inputs(name), inputs(name)
    program = torch.export.export(Module(), (inputs(name),))
    targets = {str(n.target) for n in program.graph.nodes}
    assert any(t.startswith("dsakit.") for t in targets), targets
    assert_equal(program.module()(args), operator(**again), args, again)


@every_call
def test_meta_and_fake(name):
    operator, args = getattr(dsakit, CALLS[name].operator), inputs(name)
    want = operator(**inputs(name))
    meta = operator(**mapped(lambda v: v.to("meta"), args))
    with torch._subclasses.FakeTensorMode() as mode:
        fake_args = mapped(mode.from_tensor, args)
        fake = operator(**fake_args)
    outside = operator(**fake_args)
    for got in (meta, fake, outside):
        got, expected = (r if isinstance(r, tuple) else (r,) for r in (got, want))
        shapes = [[(r.shape, r.dtype) for r in results if r is not None] for results in (got, expected)]
        assert shapes[0] == shapes[1]


# One tensor argument of each call whose first axis counts tokens or rows, with what goes with it.
TOKENS = {
    "li": ["query", "weights"],
    "qli": ["query", "weights", "query_dequant_scale"],
    "sfa": ["query", "query_rope", "sparse_indices"],
    "kvsfa": ["query", "sparse_indices"],
    "v3": ["token_x", "rope_sin", "rope_cos", "dequant_scale_x", "cache_index"],
    "lip": ["x", "q_norm", "q_norm_scale", "cos", "sin", "k_cache_index"],
    "quantize": ["input"],
    "pack": ["codes", "rope", "scales"],
}


@pytest.mark.parametrize("name", TOKENS)
def test_number_of_tokens_stays_symbolic(name):
    """One program for any number of tokens: compiled once for four, then called with three."""
    operator, args = getattr(dsakit, CALLS[name].operator), inputs(name)
    fewer = {k: v[:-1].clone() if k in TOKENS[name] else v.clone() if torch.is_tensor(v) else v for k, v in args.items()}
    if "actual_seq_lengths_query" in fewer:
        fewer["actual_seq_lengths_query"] = fewer["actual_seq_lengths_query"].clamp(max=len(fewer["query"]))
    again = {k: v.clone() if torch.is_tensor(v) else v for k, v in fewer.items()}
    for key in TOKENS[name]:
        torch._dynamo.mark_dynamic(args[key], 0)
    torch._dynamo.reset()
    counter = testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda **k: operator(**k), backend=counter, fullgraph=True)
    compiled(**args)
    assert_equal(compiled(**fewer), operator(**again), fewer, again)
    assert counter.frame_count == 1


def test_refusals_keep_their_sentence():
    args = inputs("quantize") | dict(scales=torch.ones(7))
    with pytest.raises(dsakit.Error) as straight:
        dsakit.npu_quantize(**args)
    with pytest.raises(dsakit.Error) as meta:
        dsakit.npu_quantize(**mapped(lambda v: v.to("meta"), args))
    assert str(straight.value) == str(meta.value) and str(meta.value).startswith("npu_quantize: scales")


def test_no_gradient_flows():
    x = torch.ones(2, 3, 5, 8, requires_grad=True)
    y = torch.ops.dsakit.rotary_mul(x, torch.ones(2, 1, 5, 8), torch.ones(2, 1, 5, 8))
    assert not y.requires_grad and not dsakit.rotary_mul(x, torch.ones(2, 1, 5, 8), torch.ones(2, 1, 5, 8)).requires_grad


def test_numpy_calls_pass_by_modes_of_torch():
    call = CALLS["rotary"]
    args = {k: v for k, v in call.make().items() if k != "y"}
    want = dsakit.rotary_mul(**args)
    with torch._subclasses.FakeTensorMode():
        got = dsakit.rotary_mul(**args)
    assert isinstance(got, np.ndarray) and got.tobytes() == want.tobytes()


def test_registered_at_the_first_tensor_and_not_before():
    code = """
import sys, dsakit, numpy as np
x = np.ones((1, 1, 1, 8), np.float32)
dsakit.rotary_mul(x, x, x)
assert "torch" not in sys.modules
import torch
assert not hasattr(torch.ops.dsakit, "rotary_mul")
x = torch.ones(1, 1, 1, 8)
dsakit.rotary_mul(x, x, x)
assert torch.ops.dsakit.rotary_mul(x, x, x).sum() == 8 and torch.ops.dsakit.npu_rotary_mul
"""
    subprocess.run([sys.executable, "-c", code], check=True)
