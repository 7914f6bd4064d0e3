# SPDX-License-Identifier: Apache-2.0
"""dsakit.pypto.debug and compare: planted faults are located."""

import numpy as np
import pytest

import dsakit
from dsakit import pypto
from dsakit.pypto import debug

F, I32, I8 = pypto.DT_FP32, pypto.DT_INT32, pypto.DT_INT8


@pypto.frontend.jit
def quantised_product(
    x: pypto.Tensor([pypto.DYNAMIC, 8], F), w: pypto.Tensor([8, 8], I8), y: pypto.Tensor([pypto.DYNAMIC, 8], F)
):
    for i, p in pypto.loop_unroll(0, x.shape[0], unroll_list=[2], name="rows", idx_name="row"):
        pypto.set_semantic_label("Quant")
        rows = pypto.view(x, [p, 8], [i, 0])
        scale = pypto.amax(pypto.abs(rows), -1, True) / 127.0
        codes = pypto.cast(pypto.cast(rows / scale, pypto.DT_FP16), I8)
        pypto.set_semantic_label("Product")
        acc = pypto.matmul(codes, w, I32)
        pypto.set_semantic_label("Out")
        y[i:, 0:] = pypto.cast(acc, F) * scale


def data(rows=3):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((rows, 8)).astype(np.float32)
    return x, rng.integers(-100, 100, (8, 8), np.int8), np.zeros((rows, 8), np.float32)


def test_watch():
    x, w, y = data()
    with debug.watch("Quant/cast", values=True) as record:
        quantised_product(x, w, y)
    assert [o.op for o in record] == ["cast"] * 4
    o = record[3]
    assert (o.label, o.indices, o.occurrence, o.shape, o.valid, o.dtype) == (
        "Quant",
        {"row": 2},
        1,
        [1, 8],
        [1, 8],
        "int8",
    )
    assert o.max in (127, 126) or o.min in (-127, -126)
    assert (
        o.values.tolist() and o.place.startswith("test_pypto_debug.py:") and o.key == f"{o.number:04d}.Quant.cast.row=2"
    )
    assert f"Quant/cast row=2 int8[1, 8] min {o.min:.6g}" in str(record)
    with debug.watch("matmul") as products, debug.watch("*", when=lambda i: i.get("row") == 2) as late:
        quantised_product(x, w, y)
    assert [o.op for o in products] == ["matmul", "matmul"] and products[0].values is None
    assert late and all(o.indices == {"row": 2} for o in late)


def test_counts():
    @pypto.frontend.jit
    def kernel(x: pypto.Tensor(), y: pypto.Tensor()):
        x[:] = x / 0.0
        y[0:] = pypto.cast(pypto.full([4], 200.0, pypto.DT_FP16), I8)

    with debug.watch() as record:
        kernel(np.array([0, 1, -1, 2], np.float32), np.zeros(4, np.int8))
    by = {o.op: o for o in record}
    assert (by["div"].nan, by["div"].inf) == (1, 3) and by["cast"].wrapped == 4 and by["full"].wrapped == 0
    assert "wrapped 4" in str(by["cast"])


def test_dump_and_diff(tmp_path):
    x, w, y = data()
    with debug.dump(tmp_path / "a.safetensors"):
        quantised_product(x, w, y)
    tensors = dsakit.load_safetensors(tmp_path / "a.safetensors")
    assert any(k.endswith(".Product.matmul.row=0") for k in tensors)
    with debug.watch(values=True) as same:
        quantised_product(x, w, y)
    assert not debug.diff(tmp_path / "a.safetensors", same) and str(debug.diff(same, same)) == "no difference"
    w2 = w.copy()
    w2[3, 5] += 1
    with debug.watch(values=True) as other:
        quantised_product(x, w2, y)
    found = debug.diff(tmp_path / "a.safetensors", other)
    a, b, at = found.first
    assert (a.label, a.op, at) == ("Product", "matmul", (0, 5)) and a.values[0, 5] != b.values[0, 5]
    assert set(found.labels) == {"Product", "Out"} and not found.missing
    assert found.labels["Product"][0] == 3 and "first: Product/matmul" in str(found)
    short = data(1)
    with debug.watch(values=True) as fewer:
        quantised_product(short[0], short[1], short[2])
    assert {side for side, _ in debug.diff(fewer, other).missing} >= {"b"}


def test_first_nan():
    x, w, y = data()
    x[1] = 0  # a group of zeros: 0 / 0
    with pytest.raises(
        ValueError,
        match=r"pypto.div: result\[1\]\[0\] is nan, the first of 8, from finite inputs, wanted finite values \(Quant, op",
    ):
        with debug.first_nan():
            quantised_product(x, w, y)
    with debug.first_nan(ignore=["Quant"]):
        quantised_product(x, w, y)

    @pypto.frontend.jit
    def kernel(w: pypto.Tensor(), y: pypto.Tensor()):
        pypto.set_semantic_label("Up")
        y[:] = pypto.matmul(y, w, F)
        pypto.set_semantic_label("Next")
        y[:] = pypto.exp(y * 1e30)

    weight = np.eye(2, dtype=np.float32)
    with pytest.raises(ValueError, match=r"Next, op"), debug.first_nan():
        kernel(weight, np.ones((2, 2), np.float32))
    weight[1, 1] = np.nan  # planted: not finite from the start, so nothing finite makes NaN
    with debug.first_nan(inf=False):
        kernel(weight, np.ones((2, 2), np.float32))
    with debug.watch("*/matmul") as record:
        kernel(weight, np.ones((2, 2), np.float32))
    assert record[0].nan == 2


def test_profile():
    x, w, y = data(4)
    with debug.profile() as found:
        quantised_product(x, w, y)
    row = found.rows["Product", "matmul"]
    assert (row.count, row.elements, row.operations) == (2, 32, 2 * 32 * 8)
    assert row.read == 2 * (16 + 64) and row.written == 2 * 64
    assert "Product" in str(found)


def test_notes():
    @pypto.frontend.jit
    def kernel(x: pypto.Tensor([4, 4], F)):
        pypto.set_vec_tile_shapes(128, 256)
        part = pypto.view(x, [4, 4], [0, 0], valid_shape=[2, 4])
        x[:] = x + part
        pypto.sum(x, 0)

    with debug.watch() as record:
        kernel(np.ones((4, 4), np.float32))
    assert record.notes[0].startswith("add: valid shapes [4, 4] and [2, 4] (test_pypto_debug.py:")
    assert record.notes[1].startswith("sum: a tile of 131072 bytes, more than 64 KiB (test_pypto_debug.py:")


# ---- check


def checked(body, *arrays, **options):
    @pypto.frontend.jit
    def kernel(x: pypto.Tensor(), y: pypto.Tensor()):
        body(x, y)

    arrays = arrays or (np.ones((4, 4), np.float32), np.zeros((4, 4), np.float32))
    with debug.check(**options):
        kernel(*arrays)


def test_reading_what_nobody_wrote():
    def body(x, y):
        t = pypto.Tensor([4, 4], F)
        t[0:, 0:] = x[0:3, 0:4]
        y[:] = t + 1

    with pytest.raises(
        ValueError, match=r"has 4 of 16 elements that nobody wrote \(made at test_pypto_debug.py:\d+\), wanted a box"
    ):
        checked(body)
    checked(body, unassigned=False)

    def through_a_view(x, y):
        t = pypto.Tensor([4, 4], F)
        t[0:, 0:] = x[0:3, 0:4]
        y[0:, 0:] = t[0:3, 0:4] * 1  # written
        y[3:, 0:] = pypto.reshape(t[3:4, 0:4], [1, 4]) * 1

    with pytest.raises(ValueError, match=r"pypto.mul: input has 4 of 4 elements that nobody wrote"):
        checked(through_a_view)


def test_an_output_that_was_not_written_to_the_end():
    def body(x, y):
        out = pypto.Tensor([4, 4], F)
        for i in pypto.loop(0, 3):
            out[i:, 0:] = x[0:1, 0:4]
        y[:] = out

    with pytest.raises(ValueError, match=r"pypto.(move|__setitem__): .* 4 of 16 elements that nobody wrote"):
        checked(body)


def test_a_view_past_its_source():
    def body(x, y):
        y[2:, 0:] = pypto.view(x, [4, 4], [2, 0])

    with pytest.raises(
        IndexError, match=r"pypto.view: shape\[0\] is 4 at 2, wanted at most 2 \(axis of size 4\), or valid_shape"
    ):
        checked(body)
    checked(lambda x, y: y.assemble(pypto.view(x, [4, 4], [2, 0], valid_shape=[2, 4]), [0, 0]))
    with pytest.raises(IndexError, match=r"__getitem__: shape\[0\] is 4 at 2"):
        checked(lambda x, y: y.assemble(x[2:6, 0:4], [0, 0]))


def test_boxes_that_overlap_in_one_iteration():
    def body(x, y):
        for _ in pypto.loop(2):
            y[0:, 0:] = x[0:2, 0:4]
            y[1:, 0:] = x[0:2, 0:4]

    with pytest.raises(ValueError, match=r"covers 4 elements that test_pypto_debug.py:\d+ wrote in the same iteration"):
        checked(body)
    checked(body, overlap=False)


def test_boxes_that_parallel_iterations_share():
    def writes(x, y):
        for i in pypto.loop(2, name="tiles", parallel=True):
            y[i:, 0:] = x[0:2, 0:4]

    with pytest.raises(
        ValueError,
        match=r"is written in iteration 1 and was written in 0 \(test_pypto_debug.py:\d+\), wanted boxes that iterations of the parallel loop tiles",
    ):
        checked(writes)
    checked(writes, races=False)

    def reads(x, y):
        for i in pypto.loop(2, parallel=True):
            y[i : i + 1, 0:] = x[0:1, 0:4]
            x[3:4, 0:] = y[0:1, 0:4] * 1

    with pytest.raises(ValueError, match="is read in iteration 1 and was written in 0"):
        checked(reads)

    def in_turn(x, y):
        for i in pypto.loop(2):
            y[i:, 0:] = x[0:2, 0:4]

    checked(in_turn)


def test_faults_that_are_always_refused():
    def page(x, y):
        t = pypto.cast(pypto.full([1, 1], 0.0, F), I32)
        table = pypto.sub(t, 1)
        y[0:1, 0:] = pypto.experimental.gather_in_ub(x, t, table, 2, -2)

    with pytest.raises(IndexError, match=r"gather_in_ub: block_table\[0\]\[0\] is -1, wanted 0..1 \(pages of 2\)"):
        checked(page)
    with pytest.raises(ValueError, match="has no values yet"):
        checked(lambda x, y: y.move(pypto.Tensor([4, 4], F)))


def test_arguments_are_written_before_the_kernel():
    checked(lambda x, y: y.move(x + y))


# ---- compare


def reference(x, w, y):
    scale = (np.abs(x).max(-1, keepdims=True) / np.float32(127)).astype(np.float32)
    codes = np.trunc((x / scale).astype(np.float16)).astype(np.int8)
    y[:] = (codes.astype(np.int32) @ w.astype(np.int32)).astype(np.float32) * scale


def test_compare():
    x, w, y = data()
    found = pypto.compare(quantised_product, reference, x, w, y)
    assert found.verdict == "equal" and [line.name for line in found] == ["x", "w", "y"] and (y == 0).all()
    assert found["y"].elements == 24

    def slightly(x, w, y):
        reference(x, w, y)
        y[1, 2] = np.nextafter(y[1, 2], np.float32(np.inf))

    found = pypto.compare(quantised_product, slightly, x, w, y)
    assert (found.verdict, found["y"].different, found["y"].ulp, found["y"].first) == ("licensed", 1, 1, (1, 2))

    def wrong(x, w, y):
        reference(x, w, y)
        y[2, 7] += 100

    found = pypto.compare(quantised_product, wrong, x, w, y)
    assert found.verdict == "wrong" and found["y"].first == (2, 7) and "wrong, first [2, 7]" in str(found)


def test_compare_stage_by_stage():
    x, w, y = data(2)

    def product(before):
        return before["Quant"].astype(np.int32) @ w.astype(np.int32)

    def product_and_one(before):
        return product(before) + 1

    assert (
        pypto.compare(quantised_product, reference, x, w, y, stages={"Product": product})["Product"].verdict == "equal"
    )
    assert (
        pypto.compare(quantised_product, reference, x, w, y, stages={"Product": product_and_one})["Product"].verdict
        == "wrong"
    )
    with pytest.raises(ValueError, match=r"stages has 'Nope', wanted labels of the program \(Quant, Product, Out\)"):
        pypto.compare(quantised_product, reference, x, w, y, stages={"Nope": product})


def test_compare_keeps_shared_memory_shared():
    base = np.arange(6, dtype=np.float32)

    @pypto.frontend.jit
    def program(x: pypto.Tensor(), y: pypto.Tensor()):
        y[:] = y + 1
        x[:] = x * 2

    def operator(x, y):
        y += 1
        x *= 2

    found = pypto.compare(program, operator, base[:4], base[2:])
    assert found.verdict == "equal" and base.tolist() == [0, 1, 2, 3, 4, 5]
    torch = pytest.importorskip("torch")
    t = torch.ones(3, dtype=torch.bfloat16)
    assert pypto.compare(program, operator, t[:2], t[1:]).verdict == "equal" and (t == 1).all()
