# SPDX-License-Identifier: Apache-2.0
"""What every operation of dsakit.pypto does, an example each: run by test_pypto_conformance.py and printed as
docs/pypto_operations.md. Run as a script it writes that page."""

from __future__ import annotations

import pathlib
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from dsakit import pypto

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "pypto_operations.md"


def fp32(values, valid=None):
    return _tensor(np.array(values, np.float32), valid)


def fp16(values, valid=None):
    return _tensor(np.array(values, np.float16), valid)


def bf16(values, valid=None):
    return _tensor(np.array(values, np.float32).astype(ml_dtypes.bfloat16), valid)


def int32(values, valid=None):
    return _tensor(np.array(values, np.int32), valid)


def int64(values):
    return _tensor(np.array(values, np.int64), None)


def int8(values):
    return _tensor(np.array(values, np.int64).astype(np.int8), None)


def boolean(values):
    return _tensor(np.array(values, np.bool_), None)


def _tensor(a, valid):
    t = pypto.from_torch(np.ascontiguousarray(a))
    return t if valid is None else pypto.view(t, list(a.shape), [0] * a.ndim, valid_shape=valid)


def in_place(t, *writes):
    """t after writes to it, each a function of it."""
    for write in writes:
        write(t)
    return t


def indices(loop):
    return [tuple(int(x) for x in i) if isinstance(i, tuple) else int(i) for i in loop]


def shown(x: Any) -> str:
    """A result on one line: elements outside of the valid region as dots."""
    if isinstance(x, tuple):
        return " at ".join(shown(y) for y in x)
    if not isinstance(x, pypto.Tensor):
        return str(x)
    a, valid = x.numpy(), [slice(0, n) for n in x.valid_shape]
    inside = np.zeros(a.shape, bool)
    inside[tuple(valid)] = True

    def word(v, good):
        if not good:
            return "."
        if isinstance(v, (np.bool_, bool)):
            return "T" if v else "F"
        v = float(v)
        return "nan" if v != v else f"{v:.6g}"

    def text(a, inside):
        if a.ndim == 0:
            return word(a[()], inside[()])
        if a.ndim == 1:
            return " ".join(word(v, g) for v, g in zip(a, inside))
        mark = " / " if a.ndim == 2 else " // "
        return mark.join(text(b, i) for b, i in zip(a, inside))

    return text(a, inside)


class Example(NamedTuple):
    name: str
    mark: str
    call: str
    result: str


def row(line: str) -> Example:
    name, mark, call, result = (part.strip() for part in line.split("|"))
    return Example(name, mark, call, result)


EXAMPLES = [
    row(line)
    for line in """
add | D, I | fp32([16777216, 1]) + fp32([1, 1]) | 1.67772e+07 2
add | D, I | add(bf16([256, 1]), bf16([1, 1])) | 256 2
add | D | int32([2147483647]) + 1 | -2.14748e+09
add | D | fp32([[1, 2]]) + fp32([[10], [20]]) | 11 12 / 21 22
add | I | add(fp32([1, 2, 3], [2]), fp32([1, 1, 1])) | 2 3 .
sub | D, I | sub(fp16([1, 2]), fp16([3, 0.5])) | -2 1.5
sub | D | 1 - fp32([0.25, 3]) | 0.75 -2
mul | D, I | mul(int8([100]), 3) | 44
div | D, I | div(fp32([1, -1, 0]), fp32([3, 0, 0])) | 0.333333 -inf nan
div | D, I | int32([7]) / 2 | 3.5
div | D | 127.0 / fp32([2]) | 63.5
sqrt | D, I | sqrt(fp32([2, 9, -1])) | 1.41421 3 nan
reciprocal | D, I | reciprocal(fp32([3, 0])) | 0.333333 inf
rsqrt | D, I | rsqrt(fp32([4, 2])) | 0.5 0.707107
exp | D, I | exp(fp32([0, 1, -200, 100])) | 1 2.71828 0 inf
exp2 | D | exp2(fp32([3, -1])) | 8 0.5
expm1 | D | expm1(fp32([0, 1e-10])) | 0 1e-10
log | D | log(fp32([1, 0, -1])) | 0 -inf nan
log2 | D | log2(fp32([8])) | 3
log10 | D | log10(fp32([1000])) | 3
log1p | D | log1p(fp32([1e-10])) | 1e-10
sin | D | sin(fp32([0, 1])) | 0 0.841471
cos | D | cos(fp32([0, 1])) | 1 0.540302
tanh | D | tanh(fp32([0, 100])) | 0 1
sigmoid | D | sigmoid(fp32([0, -200])) | 0.5 0
abs | D, I | abs(fp32([-2, 3])) | 2 3
neg | D | neg(int32([5, -2147483648])) | -5 -2.14748e+09
sign | D | sign(fp32([-3, 0, 2])) | -1 0 1
relu | D | relu(fp32([-1, 2])) | 0 2
floor | D | floor(fp32([-1.5, 1.5])) | -2 1
ceil | D | ceil(fp32([-1.5, 1.5])) | -1 2
trunc | D | trunc(fp32([-1.5, 1.5])) | -1 1
round | D | round(fp32([2.5, -2.5, 3.5])) | 2 -2 4
round | D | round(fp32([1.26]), 1) | 1.3
pow | D | pow(fp32([2, 9]), 0.5) | 1.41421 3
maximum | D, I | maximum(fp32([1, float("nan")]), 2.0) | 2 nan
minimum | D, I | minimum(int32([1, 5]), 2) | 1 2
clip | D, I | clip(fp32([-3, 0.5, 7]), -1.0, 1.0) | -1 0.5 1
amax | D, I | amax(fp32([[1, float("nan")], [3, 2]]), -1) | nan 3
amax | S, I | amax(fp32([1, 2, 3], [2]), 0, keepdim=True) | 2
amin | D, I | amin(int32([[4, 2], [3, 9]]), 0) | 3 2
sum | D, I | sum(fp32([16777216, 1] + 14 * [0] + [1, 1]), 0) | 1.67772e+07
sum | D | sum(int32([[1, 2], [3, 4]]), 0, keepdim=True) | 4 6
sum | S | sum(view(fp32([[1, 2, 3]]), [1, 3], [0, 1]), -1) | 5
prod | D | prod(fp32([[1, 2], [3, 4]]), -1) | 2 12
cumsum | D | cumsum(fp32([1, 2, 3]), 0) | 1 3 6
var | D | var(fp32([[1, 2, 3, 4]]), -1) | 1.66667
argmax | D | argmax(fp32([[1, 5, 5], [7, 2, 3]])) | 1 0
argmin | D | argmin(fp32([[1, 0, 0]]), -1) | 1
softmax | D, I | softmax(fp32([[0, 0, 0, 0]]), -1) | 0.25 0.25 0.25 0.25
rms_norm | D, I | rms_norm(fp32([[3, 4]]), fp32([1, 2]), 0.0) | 0.848528 2.26274
matmul | D | matmul(bf16([[1, 2]]), bf16([[3], [4]]), DT_FP32) | 11
matmul | D | matmul(int8([[100, 100]]), int8([[100, 100]]), DT_INT32, b_trans=True) | 20000
matmul | D, I | matmul(int8([[3]]), int8([[1]]), DT_FP16, extend_params={"scale": 0.2}) | 0.599609
matmul | S, I | matmul(fp32([[1, 2, 9]], [1, 2]), fp32([[1], [1], [1]]), DT_FP32) | 3
experimental.transposed_batchmatmul | D | experimental.transposed_batchmatmul(bf16([[[1, 2]]]), bf16([[[3], [4]]]), DT_BF16) | 11
view | D | view(fp32([[1, 2], [3, 4]]), [1, 2], [1, 0]) | 3 4
view | S | view(fp32([[1, 2], [3, 4]]), [2, 2], [1, 1]) | 4 . / . .
view | D | view(int32([[1, -1]]), dtype=DT_INT8) | 1 0 0 0 -1 -1 -1 -1
reshape | D | reshape(fp32([[1, 2], [3, 4]]), [-1]) | 1 2 3 4
reshape | D, I | reshape(fp32([[1, 2], [3, 4]], [1, 2]), [2, 1, 2]) | 1 2 // . .
reshape | S | in_place(fp32([1, 2]), lambda t: reshape(t, [2, 1], inplace=True).assemble(fp32([[9]]), [1, 0])) | 1 9
transpose | D | transpose(fp32([[1, 2], [3, 4]]), 0, 1) | 1 3 / 2 4
permute | D | permute(fp32([[1, 2, 3]]), [1, 0]) | 1 / 2 / 3
unsqueeze | D | unsqueeze(fp32([1, 2]), 0) | 1 2
expand_clone | D | expand_clone(fp32([[1], [2]]), [2, 3]) | 1 1 1 / 2 2 2
concat | D | concat([fp32([1]), fp32([2, 3], [1])], 0) | 1 2 .
clone | D | clone(int32([7])) | 7
assemble | D, I | in_place(fp32([[9, 9], [9, 9]]), lambda t: assemble(fp32([[1, 2]]), [1, 0], t)) | 9 9 / 1 2
assemble | D, I | in_place(fp32([9, 9]), lambda t: assemble([(fp32([1]), [0]), (fp32([2]), [0])], t, True)) | 2 9
full | D | full([2], 3, DT_INT32) | 3 3
zeros | D | zeros(2, 2) | 0 0 / 0 0
ones | D | ones([2], dtype=DT_BF16) | 1 1
arange | D, I | arange(1, 2, 0.3) | 1 1.3 1.6 1.9
arange | D, I | arange(5, 0, -2).dtype.name | DT_INT32
scatter_update | D, I | scatter_update(zeros(3, 2), -2, int64([[2, -1, 2]]), fp32([[1, 1], [2, 2], [3, 3]])) | 0 0 / 0 0 / 3 3
experimental.gather_in_ub | D | experimental.gather_in_ub(fp32([[0], [1], [2], [3]]), int32([[2, 1]]), int32([[1, 0]]), 2, -2) | 0 / 3
experimental.gather_in_l1 | D | experimental.gather_in_l1(bf16([[0, 5], [1, 6]]), int32([[1]]), int32([[0]]), 2, 1, True, False) | 1
gather | D | gather(fp32([[1, 2], [3, 4]]), 0, int32([[1, 0]])) | 3 2
gather | D | fp32([[1, 2], [3, 4]])[1:int32([[1], [0]])] | 2 / 3
index_select | D, I | index_select(fp32([[1, 2], [3, 4]]), 0, int32([1, 1])) | 3 4 / 3 4
scatter | D | scatter(zeros(2, 2), 1, int32([[1], [0]]), 5.0) | 0 5 / 5 0
scatter_ | D | scatter_(zeros(1, 3), 1, int32([[2, 2]]), fp32([[1, 2]])) | 0 0 2
topk | D, I | topk(fp32([1, 3, 3, -0.0, 0, float("nan"), 2]), 4) | 3 3 2 1 at 1 2 6 0
topk | I | topk(fp32([5, 7, 0, 0], [2]), 3) | 7 5 . at 1 0 .
argsort | D, I | argsort(fp32([2, float("nan"), 3]), descending=False) | 0 2 1
where | D | where(fp32([1, 5]) > 2, fp32([1, 5]), 0.0) | 0 5
eq | D | eq(int32([1, 2]), 2) | F T
ne | D | int32([1, 2]) != 2 | T F
lt | D | fp32([1, float("nan")]) < 2.0 | T F
le | D | le(fp32([2]), 2.0) | T
gt | D | gt(fp32([3]), 2.0) | T
ge | D | ge(fp32([1]), 2.0) | F
logical_and | D | logical_and(boolean([1, 1]), boolean([0, 1])) | F T
logical_not | D | logical_not(fp32([0, 2])) | T F
isnan | D | isnan(fp32([0, float("nan")])) | F T
isfinite | D | isfinite(fp32([0, float("inf")])) | T F
bitwise_and | D | bitwise_and(int32([6]), 3) | 2
bitwise_or | D | bitwise_or(int32([6]), int32([3])) | 7
bitwise_xor | D | bitwise_xor(int32([6]), 3) | 5
bitwise_not | D | bitwise_not(int32([0])) | -1
bitwise_left_shift | D | bitwise_left_shift(int32([1]), 4) | 16
bitwise_right_shift | D | bitwise_right_shift(int32([-16]), 2) | -4
pad | D | pad(fp32([[1]]), [1, 0], value=9) | 9 1
fillpad | S, D | fillpad(fp32([1, 2], [1]), value=7) | 1 7
one_hot | D | one_hot(int32([2, 0]), 3) | 0 0 1 / 1 0 0
tril | D | tril(fp32([[1, 2], [3, 4]])) | 1 0 / 3 4
triu | D | triu(fp32([[1, 2], [3, 4]]), 1) | 0 2 / 0 0
cast | D | cast(fp32([2.5, -2.6]), DT_INT32) | 2 -2
cast | D | cast(fp16([300, -300]), DT_INT8, satmode=SaturationMode.ON) | 127 -128
cast | D | cast(fp16([300, -300]), DT_INT8) | 44 -44
loop | D | indices(loop(0, 5, 2)) | [0, 2, 4]
loop_unroll | D | indices(loop_unroll(0, 5, unroll_list=[4, 2])) | [(0, 4), (4, 1)]
is_loop_begin | D | [is_loop_begin(i) for i in loop(3)] | [True, False, False]
is_loop_end | D | [is_loop_end(i) for i, p in loop_unroll(5, unroll_list=[2])] | [False, False, True]
cond | D | cond(SymbolicScalar(0) + 1) | True
min | D | min(SymbolicScalar(3), 5) | 3
max | D | max(2, 5.5) | 5.5
Element | D | full([1], Element(DT_INT8, 3), DT_INT8) | 3
pypto_impl.ScalarDivS | D, S | pypto_impl.ScalarDivS(fp32([4]), Element(DT_FP32, 1.0), True) | 0.25
""".strip().splitlines()
]


def evaluate(example: Example) -> str:
    names = {n: getattr(pypto, n) for n in pypto.__all__} | {
        f.__name__: f for f in (fp32, fp16, bf16, int32, int64, int8, boolean, in_place, indices)
    }
    return shown(eval(example.call, names))


def page() -> str:
    lines = [
        "# Operations of `dsakit.pypto`",
        "",
        "An example of each, run by the tests (`python/tests/pypto_conformance.py`, which also writes this page). D: documented by PyPTO; "
        "S: seen in its programs; I: decided here.",
        "`.` stands for an element outside of the valid region, `/` between rows, `at` before positions.",
        "",
        "| operation | mark | call | result |",
        "|---|---|---|---|",
    ]
    for e in EXAMPLES:
        call = e.call.replace("|", "\\|")
        lines.append(f"| `{e.name}` | {e.mark} | `{call}` | `{e.result}` |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
