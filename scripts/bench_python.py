#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a call from Python costs beyond the work of the library: mla_prolog_v3 with 17 tensors and 9 attributes, so small that
nearly nothing is computed; the same as torch_npu; and what calls of torch cost while dsakit is torch_npu.

    .venv/bin/python scripts/bench_python.py

The library's part is what a call takes longer when its work is done many times.
"""

import time

import torch

import dsakit
import dsakit.npu


def bf16(*shape):
    return (torch.rand(shape) - 0.5).to(torch.bfloat16)


def codes(*shape):
    return torch.randint(-9, 9, shape, dtype=torch.int8)


def arguments():
    """One token, int8 throughout: 17 tensors and 9 attributes."""
    he, hcq, n, d, dr, latent = 64, 32, 1, 16, 32, 32
    rows = lambda *shape: torch.rand(shape) * 0.01 + 0.01
    tensors = dict(
        token_x=codes(1, he),
        weight_dq=codes(he, hcq),
        weight_uq_qr=codes(hcq, n * (d + dr)),
        weight_uk=bf16(n, d, latent),
        weight_dkv_kr=codes(he, latent + dr),
        rmsnorm_gamma_cq=bf16(hcq),
        rmsnorm_gamma_ckv=bf16(latent),
        rope_sin=bf16(1, dr),
        rope_cos=bf16(1, dr),
        kv_cache=codes(2, 4, 1, latent),
        kr_cache=bf16(2, 4, 1, dr),
        cache_index=torch.zeros(1, dtype=torch.int64),
        dequant_scale_x=rows(1, 1),
        dequant_scale_w_dq=rows(1, hcq),
        dequant_scale_w_uq_qr=rows(1, n * (d + dr)),
        dequant_scale_w_dkv_kr=rows(1, latent + dr),
        quant_scale_ckv=rows(1, 1).reshape(1),
    )
    attributes = dict(
        rmsnorm_epsilon_cq=1e-5,
        rmsnorm_epsilon_ckv=1e-5,
        cache_mode="PA_BSND",
        query_norm_flag=True,
        weight_quant_mode=2,
        kv_cache_quant_mode=1,
        query_quant_mode=1,
        ckvkr_repo_mode=0,
        quant_scale_repo_mode=0,
    )
    return tensors, attributes


def microseconds(call, calls=200, rounds=40):
    """The best of many rounds."""
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, (time.perf_counter() - start) / calls)
    return best * 1e6


X = torch.ones(8)
# calls that do not say "npu", those of which install() changes the method, and factories without and with the device
PLAIN = {
    "x + x": lambda: X + X,
    "torch.zeros": lambda: torch.zeros(8),
    "x.view": lambda: X.view(2, 4),
    "torch.nn.functional.relu": lambda: torch.nn.functional.relu(X),
}
MOVES = {
    "x.to(dtype)": lambda: X.to(torch.float32),
    'x.to("cpu")': lambda: X.to("cpu"),
    "x.cpu()": lambda: X.cpu(),
}
FACTORIES = {
    "torch.empty": lambda **k: torch.empty(8, **k),
    "torch.zeros": lambda **k: torch.zeros(8, **k),
    "torch.arange": lambda **k: torch.arange(8, **k),
    "torch.tensor": lambda **k: torch.tensor([1.0], **k),
}


def line(name, took, library, allocation=0.0):
    """What a call takes; above the library's part; and without the results that torch.empty made, which a C++ caller makes too."""
    without = f"   {took - library - allocation:+6.1f}" if allocation else ""
    print(f"  {name:<34}  {took:6.1f}   {took - library:+6.1f}{without}")


def torch_npu_lines(tensors, attributes, library, allocation):
    """Before and after install()."""
    before = {name: microseconds(f) for name, f in (PLAIN | MOVES).items()}
    dsakit.npu.install()
    import torch_npu

    took = microseconds(written(torch_npu.npu_mla_prolog_v3, tensors | attributes))
    line("torch_npu.npu_mla_prolog_v3", took, library, allocation)
    print("calls of torch before install() and after it")
    for name, f in PLAIN.items():
        after = microseconds(f)
        print(f"  {name:<34}  {before[name]:6.2f}   {after:6.2f}   x {after / before[name]:.2f}")
    for name, f in MOVES.items():
        after = microseconds(f)
        print(f"  {name:<34}  {before[name]:6.2f}   {after:6.2f}   {after - before[name]:+.2f}")
    print('factories, and with device="npu"')
    for name, f in FACTORIES.items():
        plain, npu = microseconds(f), microseconds(lambda: f(device="npu"))
        print(f"  {name:<34}  {plain:6.2f}   {npu:6.2f}   x {npu / plain:.1f}")


def written(function, arguments):
    """The call as a program writes it, keyword by keyword: joining dicts would cost as much again."""
    source = ", ".join(f"{name}={name}" for name in arguments)
    return eval(f"lambda: call({source})", arguments | {"call": function})


def main():
    dsakit.set_num_threads(1)
    tensors, attributes = arguments()
    print(f"mla_prolog_v3, {len(tensors)} tensors, {len(attributes)} attributes, one thread; microseconds a call")
    call = written(dsakit.mla_prolog_v3, tensors | attributes)
    outs = dict(zip(("query", "query_rope", "dequant_scale_q_nope", "query_norm", "dequant_scale_q_norm"), call()))
    into = written(dsakit.mla_prolog_v3, tensors | attributes | outs)
    many = 100
    once = microseconds(into)
    dsakit._core.repeat(many + 1)
    library = (microseconds(into, 10) - once) / many
    dsakit._core.repeat(1)
    torch_ops = written(torch.ops.dsakit.mla_prolog_v3, tensors | attributes)
    made = [dict(size=tuple(t.shape), dtype=t.dtype) for t in outs.values()]
    allocate = lambda: [torch.empty(**how) for how in made]
    allocation = microseconds(allocate)
    calls = {"results given": into, "results made": call, "torch.ops.dsakit": torch_ops}
    took = {name: float("inf") for name in calls}
    for _ in range(10):  # by turns: a shared machine is not as fast from one moment to the next
        allocation = min(allocation, microseconds(allocate, rounds=4))
        took = {name: min(took[name], microseconds(f, rounds=4)) for name, f in calls.items()}
    print(f"  {'':<34}  {'all':>6}   above the library, without torch.empty of the {len(made)} results ({allocation:.1f})")
    for name in calls:
        line(f"from Python, {name}", took[name], library, 0 if name == "results given" else allocation)
    torch_npu_lines(tensors, attributes, library, allocation)


if __name__ == "__main__":
    main()
