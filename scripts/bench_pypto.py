#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a PyPTO program costs on dsakit.pypto: mla_prolog_quant at the sizes of DeepSeek-V3.2 beside the fused operator,
what an operation and a view cost, and products beside the library's packed product.

    .venv/bin/python scripts/bench_pypto.py [threads]

Peers take turns in one run, and their medians are compared: a shared machine is not as fast from one moment to the
next.
"""

import statistics
import sys
import time

import ml_dtypes
import numpy as np

import dsakit
from dsakit import pypto
from dsakit.pypto import programs

BF16, F = np.dtype(ml_dtypes.bfloat16), np.float32
HE, HCQ, N, D, DR, LATENT, GROUPS, BLOCK = 7168, 1536, 128, 128, 64, 512, 4, 128
RNG = np.random.default_rng(1)


def bf16(*shape, scale=1.0):
    return (RNG.random(shape, F) * F(2 * scale) - F(scale)).astype(BF16)


def codes(*shape):
    return RNG.integers(-128, 128, shape, np.int8)


def medians(calls, rounds):
    """Milliseconds of each call, by turns."""
    took = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            took[name].append((time.perf_counter() - start) * 1e3)
    return {name: statistics.median(values) for name, values in took.items()}


def line(name, value, ceiling, note=""):
    print(f"  {name:<44}  {value:>10}   {ceiling:<18}  {note}")


# ---- a program beside its operator


def weights():
    return dict(
        w_dq=bf16(HE, HCQ, scale=HE**-0.5),
        w_uq_qr=codes(HCQ, N * (D + DR)),
        w_uk=bf16(N, D, LATENT, scale=D**-0.5),
        w_dkv_kr=bf16(HE, LATENT + DR, scale=HE**-0.5),
    )


def arguments(t, w):
    """The operator's published form, caches in place."""
    caches = codes(4, BLOCK, 1, LATENT), bf16(4, BLOCK, 1, DR), np.zeros((4, BLOCK, 1, GROUPS), F)
    outs = np.zeros((t, HCQ), np.int8), np.zeros((t, 1), F), np.zeros((t, N, LATENT), BF16), np.zeros((t, N, DR), BF16)
    scale = (RNG.random((N * (D + DR), 1)) * 1e-3).astype(F)
    first = bf16(t, HE), w["w_dq"], w["w_uq_qr"], scale, w["w_uk"], w["w_dkv_kr"]
    index = RNG.permutation(4 * BLOCK)[:t].astype(np.int64)
    return [*first, bf16(HCQ), bf16(LATENT), bf16(t, DR), bf16(t, DR), index, *caches, *outs, *caches]


def beside_the_operator():
    print("mla_prolog_quant, DeepSeek-V3.2 sizes: program / fused operator")
    plain = weights()
    forms = {
        "row-major": (plain, plain),
        "packed": (
            {n: pypto.prepack(w) for n, w in plain.items()},
            {n: dsakit.pack_weight(w) for n, w in plain.items()},
        ),
    }
    for t in (1, 8, 32):
        calls = {}
        for form, (ours, theirs) in forms.items():
            program, operator = arguments(t, ours), arguments(t, theirs)
            calls["program", form] = lambda a=program: programs.mla_prolog_quant(*a)
            calls["operator", form] = lambda a=operator: dsakit.mla_prolog_quant(*a)
        took = medians(calls, 21)
        for form in forms:
            ours, theirs = took["program", form], took["operator", form]
            line(
                f"{t:2} tokens, {form}", f"{ours / theirs:.2f} x", "20 x, aim 8 x", f"{ours:.2f} ms and {theirs:.2f} ms"
            )


def watched():
    print("the program of 32 tokens, packed weights: with debugging / without")
    packed = {n: pypto.prepack(w) for n, w in weights().items()}
    given = arguments(32, packed)

    def under(aid):
        with aid():
            programs.mla_prolog_quant(*given)

    took = medians(
        {
            "plain": lambda: programs.mla_prolog_quant(*given),
            "watch": lambda: under(pypto.debug.watch),
            "profile": lambda: under(pypto.debug.profile),
        },
        11,
    )
    for aid in ("watch", "profile"):
        line(f"debug.{aid}", f"{took[aid] / took['plain']:.2f} x", "2 x", f"{took[aid]:.2f} ms and {took['plain']:.2f} ms")


# ---- what an operation costs

X = np.ones((4, 4), F)
CALLS = 1000
spent = {}


def spend(name, work):
    start = time.perf_counter()
    for _ in range(CALLS):
        work()
    spent.setdefault(name, []).append((time.perf_counter() - start) / CALLS * 1e6)


@pypto.frontend.jit
def operations(x: pypto.Tensor([4, 4]), y: pypto.Tensor([4, 4])):
    spend("add of [4, 4]", lambda: pypto.add(x, x))
    spend("view", lambda: pypto.view(x, [2, 4], [1, 0]))
    spend("x[1:3]", lambda: x[1:3])
    spend("reshape", lambda: pypto.reshape(x, [2, 8]))
    y[:] = x


def of_an_operation():
    print(f"an operation, the mean of {CALLS}; microseconds")
    for _ in range(21):
        operations(X, X.copy())
    for name, values in spent.items():
        line(name, f"{statistics.median(values):.2f} us", "20 us" if name.startswith("add") else "10 us")


# ---- products


@pypto.frontend.jit
def beside(
    x: pypto.Tensor(),
    plain: pypto.Tensor(),
    packed: pypto.Tensor(),
    wide: pypto.Tensor(),
    packed_wide: pypto.Tensor(),
    y: pypto.Tensor(),
    peers,
    took,
):
    n = plain.shape[1]
    calls = {
        "prepacked": lambda: pypto.matmul(x, packed, y.dtype),
        "prepacked, a view": lambda: pypto.matmul(x, packed_wide[:, :n], y.dtype),
        "row-major": lambda: pypto.matmul(x, plain, y.dtype),
        "row-major, a view": lambda: pypto.matmul(x, wide[:, :n], y.dtype),
    }
    took |= medians(peers | calls, 31)
    y[:] = calls["prepacked"]()


def peers_of(x, w, out):
    """The library's product of a packed weight, and of a row-major one."""
    if out is BF16:
        stack = dsakit.pack_weight(w[None])
        return {
            "packed": lambda: dsakit.transpose_batchmatmul(x[None], stack),
            "rows": lambda: dsakit.transpose_batchmatmul(x[None], w[None]),
        }
    packed = dsakit.pack_weight(w)
    return {
        "packed": lambda: dsakit.quant_matmul(x, packed, None, output_dtype="int32"),
        "rows": lambda: dsakit.quant_matmul(x, w, None, output_dtype="int32"),
    }


def products(rows=32):
    print(f"matmul of {rows} rows / the library's product of the packed weight, and of the row-major one")
    for word, data, out, k, n in (("bf16", bf16, BF16, HE, HCQ), ("int8", codes, np.int32, HCQ, N * (D + DR))):
        x, w, wide = data(rows, k), data(k, n), data(k, n + 64)
        took = {}
        tensors = x, w, pypto.prepack(w.copy()), wide, pypto.prepack(wide.copy()), np.zeros((rows, n), out)
        beside(*tensors, peers_of(x, w, out), took)
        packed, plain = took.pop("packed"), took.pop("rows")
        for form, ms in took.items():
            ceiling = "1.1 x" if form.startswith("prepacked") else "1.3 x"
            note = f"{ms:.2f} ms and {packed:.2f} ms" + (
                "" if ceiling == "1.1 x" else f"; {ms / plain:.2f} x of {plain:.2f} ms"
            )
            line(f"{word} [{k}, {n}], {form}", f"{ms / packed:.2f} x", ceiling, note)


def main():
    dsakit.set_num_threads(int(sys.argv[1]) if len(sys.argv) > 1 else 2)
    info = dsakit.info()
    print(f"{info['isa']}, {info['threads']} threads")
    print(f"  {'':<44}  {'':>10}   {'ceiling':<18}")
    beside_the_operator()
    watched()
    of_an_operation()
    products()


if __name__ == "__main__":
    main()
