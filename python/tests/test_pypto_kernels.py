# SPDX-License-Identifier: Apache-2.0
"""How kernels are called: arguments by address, what happens to them, views as of their call, tiles and options without effect."""

import os
import pathlib
import subprocess
import sys
import warnings

import ml_dtypes
import numpy as np
import pytest

import dsakit
from dsakit import pypto

F, I32 = pypto.DT_FP32, pypto.DT_INT32
ANY = pypto.Tensor([...], F)


def run(body, *arrays):
    """A kernel of two tensors."""

    @pypto.frontend.jit
    def kernel(x: pypto.Tensor([...], F), y: pypto.Tensor([...], F)):
        body(x, y)

    kernel(*arrays)
    return arrays


def ones(*shape):
    return np.ones(shape, np.float32)


def test_with_and_without_parentheses():
    def body(x: pypto.Tensor(), n=2):
        x[:] = x * n

    x = ones(3)
    pypto.frontend.jit(body)(x)
    pypto.frontend.jit()(body)(x, 3)
    pypto.frontend.jit(runtime_options={"device_sched_mode": 1})(body)(x, n=0.5)
    assert x.tolist() == [3, 3, 3]


def test_annotations_may_be_text():
    source = """
from __future__ import annotations
from dsakit import pypto
def factory(n):
    @pypto.frontend.jit
    def kernel(x: pypto.Tensor([n, pypto.DYNAMIC], pypto.DT_FP32), k: int = 1):
        x[:] = x + k
    return kernel
"""
    space = {}
    exec(source, space)
    x = ones(2, 3)
    space["factory"](2)(x)
    assert (x == 2).all()
    with pytest.raises(ValueError, match=r"x has shape \[2, 3\], wanted \[4, DYNAMIC\] \(declared\)"):
        space["factory"](4)(x)


@pytest.mark.parametrize("spec", ["Tensor([2, DYNAMIC], DT_FP32)", "Tensor[[2, STATIC], DT_FP32]", "Tensor([DYN, 3])",
                                  "Tensor([2, ...], DT_FP32)", "Tensor([...])", "Tensor()", "Tensor"])  # fmt: skip
def test_declarations_that_fit(spec):
    space = {n: getattr(pypto, n) for n in ("Tensor", "DYNAMIC", "DYN", "STATIC", "DT_FP32")}

    def body(x):
        x[:] = x + 1

    body.__annotations__["x"] = eval(spec, space)
    x = ones(2, 3)
    pypto.frontend.jit(body)(x)
    assert (x == 2).all()


def test_torch_tensors_and_numpy_arrays_by_address():
    torch = pytest.importorskip("torch")

    @pypto.frontend.jit
    def kernel(a: pypto.Tensor(), b: pypto.Tensor()):
        b[:] = a + b

    for kind in (torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.int64):
        a, b = torch.ones(2, 3, dtype=kind), torch.full((2, 3), 2, dtype=kind)
        kernel(a, b)
        assert (b == 3).all()
    a, b = np.ones((2, 2), ml_dtypes.bfloat16), np.zeros((2, 2), ml_dtypes.bfloat16)
    kernel(a, b)
    assert (b == 1).all()
    w = torch.nn.Parameter(torch.ones(2, 3))
    b = torch.zeros(2, 3)
    kernel(w, b)
    assert (b == 1).all()
    memory = torch.zeros(2, 3)
    kernel(torch.ones(2, 3), pypto.from_torch(memory, "b"))
    assert (memory == 1).all()


def test_weights_in_fractal_nz():
    torch = pytest.importorskip("torch")
    w = np.random.default_rng(4).standard_normal((64, 32)).astype(ml_dtypes.bfloat16)

    @pypto.frontend.jit
    def kernel(
        x: pypto.Tensor(),
        w: pypto.Tensor([64, 32], pypto.DT_BF16, format=pypto.TileOpFormat.TILEOP_NZ),
        y: pypto.Tensor(),
    ):
        assert w.format is pypto.TileOpFormat.TILEOP_NZ
        y[:] = pypto.matmul(x, w, F)

    x = np.random.default_rng(5).standard_normal((32, 64)).astype(ml_dtypes.bfloat16)
    found = [np.zeros((32, 32), np.float32) for _ in range(3)]
    kernel(x, w, found[0])
    kernel(x, dsakit.format_cast(w, 29), found[1])
    kernel(x, dsakit.format_cast(torch.from_numpy(w.view(np.int16)).view(torch.bfloat16), 29), found[2])
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


def test_arguments_may_share_memory():
    base = np.arange(8, dtype=np.float32)

    def body(x, y):
        before = x[0:4]
        y[0:] = pypto.full([4], 9.0, F)  # y is x[2:6]
        x[4:] = before + 0.0

    run(body, base, base[2:6])
    assert base.tolist() == [0, 1, 9, 9, 0, 1, 2, 3]


def test_views_are_values_as_of_their_call():
    def body(x, y):
        window, turned, flat = x[0:1, 0:2], pypto.transpose(x, 0, 1), pypto.reshape(x, [4])
        kept = window
        x[0:, 0:] = x + 10.0
        y[0, 0:] = kept[0]
        y[1, 0:] = turned[0:1, 0:2].reshape([2]) + flat[2:4]
        window[0:, 0:] = pypto.zeros(1, 2)  # writes to a copy
        y[2, 0:] = x[0]

    x, y = run(body, np.array([[1, 2], [3, 4]], np.float32), np.zeros((3, 2), np.float32))
    assert x.tolist() == [[11, 12], [13, 14]]
    assert y.tolist() == [[1, 2], [1 + 3, 3 + 4], [11, 12]]


def test_inplace_shapes_write_through():
    def body(x, y):
        flat = pypto.reshape(x, [4], inplace=True)
        flat[1:2] = pypto.full([1], 5.0, F)
        deep = x.unsqueeze(0)
        deep[0:, 1:, 0:1] = pypto.full([1, 1, 1], 7.0, F)
        y[:] = x

    x, y = run(body, np.zeros((2, 2), np.float32), np.zeros((2, 2), np.float32))
    assert x.tolist() == y.tolist() == [[0, 5], [7, 0]]


def test_local_tensors_take_what_is_moved_to_them():
    seen = {}

    def body(x, y):
        t = pypto.Tensor([2, 2], F)
        t[:] = pypto.cast(x, pypto.DT_BF16)
        seen["t"] = t.shape, t.dtype
        u = pypto.tensor([4], F)
        u[1:] = x[0]
        y[:] = pypto.cast(t, F)

    run(body, ones(1, 3), ones(1, 3))
    assert seen["t"] == ([1, 3], pypto.DT_BF16)


def test_arguments_copy_what_is_moved_to_them():
    with pytest.raises(ValueError, match=r"other has shape \[2\], wanted \[3\] \(an argument\)"):
        run(lambda x, y: y.move(pypto.zeros(2)), ones(3), ones(3))
    with pytest.raises(TypeError, match="other has dtype bfloat16, wanted float32"):
        run(lambda x, y: y.move(pypto.cast(x, pypto.DT_BF16)), ones(3), ones(3))


def test_single_elements():
    got = []

    @pypto.frontend.jit
    def kernel(t: pypto.Tensor([2, 2], I32)):
        got.append(t[1, 0])
        t[0, 1] = got[0] + 4
        t[1, 1] = pypto.Element(I32, 9)

    a = np.array([[1, 2], [3, 4]], np.int32)
    kernel(a)
    assert a.tolist() == [[1, 7], [3, 9]] and isinstance(got[0], pypto.SymbolicScalar) and got[0] == 3


@pytest.mark.parametrize("on_error", ["restore", "keep"])
def test_an_error_gives_the_arguments_their_bytes_back(on_error):
    def body(x, y):
        x[0:2] = pypto.full([2], 7.0, F)
        y[:] = x
        x[1:3] = pypto.full([2], 8.0, F)
        pypto.scatter_update(
            y.reshape([3, 1], inplace=True), -2, pypto.from_torch(np.array([[0, 2]])), pypto.full([2, 1], 5.0, F)
        )
        pypto.view(x, [9], [9])

    x, y = np.arange(3, dtype=np.float32), -np.arange(3, dtype=np.float32)
    with (
        pypto.configure(on_error=on_error),
        pytest.raises(IndexError, match=r"pypto.view: offsets\[0\] is 9, wanted 0..2"),
    ):
        run(body, x, y)
    if on_error == "restore":
        assert x.tolist() == [0, 1, 2] and y.tolist() == [0, -1, -2]
    else:
        assert x.tolist() == [7, 8, 8] and y.tolist() == [5, 7, 5]


def test_any_exception_restores():
    x = ones(2)
    with pytest.raises(KeyError):
        run(lambda x, y: (x.move(y + 1), {}["nothing"]), x, ones(2))
    assert x.tolist() == [1, 1]


def test_errors_name_label_operation_and_line():
    def body(x, y):
        pypto.set_semantic_label("Matmul_qa")
        a = pypto.cast(x, pypto.DT_BF16)
        pypto.matmul(a, y, F)

    with pytest.raises(TypeError) as error:
        run(body, ones(2, 2), ones(2, 2))
    assert (
        "pypto.matmul: mat2 has dtype float32, wanted bfloat16 (dtype of input) (Matmul_qa, op 2, test_pypto_kernels.py:"
        in str(error.value)
    )
    assert isinstance(error.value, pypto.error.PyptoError) and error.value.operator == "pypto.matmul"
    assert error.value.parameter == "mat2" and error.value.status == "INVALID_DTYPE"


def test_nothing_written_is_a_warning_and_a_value_returned_is_ignored():
    @pypto.frontend.jit
    def kernel(x: pypto.Tensor()):
        y = x + 1
        return y

    with pytest.warns(UserWarning, match="no argument was written"):
        assert kernel(ones(2)) is None
    with pypto.configure(level="strict"), pytest.raises(ValueError, match="return is"):

        @pypto.frontend.jit
        def other(x: pypto.Tensor()):
            x[:] = x
            return 5

        other(ones(2))


def test_functions_and_kernels_inside_run_as_part():
    @pypto.frontend.function
    def double(t):
        return t * 2

    @pypto.frontend.jit
    def inner(t: pypto.Tensor(), n: int):
        t[:] = double(t) + n

    @pypto.frontend.jit
    def outer(x: pypto.Tensor([2], F)):
        with pypto.function("part", x):
            inner(x, 1)
            x[:] = double(x)

    x = ones(2)
    outer(x)
    assert x.tolist() == [6, 6]


def test_parameters_by_position_keyword_and_default():
    @pypto.frontend.jit
    def kernel(x: pypto.Tensor(), y: pypto.Tensor(), scale: float = 2.0, *, shift=1.0):
        y[:] = x * scale + shift

    x, y = ones(2), ones(2)
    kernel(x, y)
    assert y.tolist() == [3, 3]
    kernel(x, y=y, scale=5.0, shift=0.0)
    assert y.tolist() == [5, 5]
    kernel(x, y, 1.0)
    assert y.tolist() == [2, 2]


def test_prepacked_weights_have_the_same_bits():
    rng = np.random.default_rng(1)
    x = rng.standard_normal((5, 600)).astype(ml_dtypes.bfloat16)
    w = rng.standard_normal((600, 130)).astype(ml_dtypes.bfloat16)
    codes, v = rng.integers(-128, 128, (5, 64), np.int8), rng.integers(-128, 128, (64, 70), np.int8)

    @pypto.frontend.jit
    def kernel(x: pypto.Tensor(), w: pypto.Tensor([600, 130], pypto.DT_BF16), codes: pypto.Tensor(), v: pypto.Tensor(),
               y: pypto.Tensor(), half: pypto.Tensor(), z: pypto.Tensor()):  # fmt: skip
        y[:] = pypto.matmul(x, w, F)
        half[:] = pypto.matmul(x[0:, 300:], w[300:, 0:], F)
        z[:] = pypto.matmul(codes, v, I32)

    def outputs():
        return np.zeros((5, 130), np.float32), np.zeros((5, 130), np.float32), np.zeros((5, 70), np.int32)

    plain, packed, again = outputs(), outputs(), outputs()
    kernel(x, w, codes, v, *plain)
    handles = pypto.prepack(w), pypto.prepack(v)
    kernel(x, handles[0], codes, handles[1], *packed)
    kernel(x, handles[0], codes, handles[1], *again)
    for a, b, c in zip(plain, packed, again):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, c)
    assert len(handles[0].panels) == 2 and len(handles[1].panels) == 1

    @pypto.frontend.jit
    def writes(w: pypto.Tensor()):
        w[0:] = pypto.cast(pypto.zeros(600, 130), pypto.DT_BF16)

    with pytest.raises(ValueError, match="w is read-only"):
        writes(handles[0])


def test_panels_of_memory_that_is_written_are_not_used():
    w = np.eye(64, dtype=np.float32).astype(ml_dtypes.bfloat16)

    @pypto.frontend.jit
    def kernel(w: pypto.Tensor(), same: pypto.Tensor(), y: pypto.Tensor()):
        same[0:] = pypto.cast(pypto.cast(same, F) * 2, pypto.DT_BF16)
        y[:] = pypto.matmul(pypto.cast(pypto.ones(1, 64), pypto.DT_BF16), w, F)

    handle, y = pypto.prepack(w), np.zeros((1, 64), np.float32)
    for due in (2, 4):
        kernel(handle, w, y)
        assert (y == due).all()


def attention_like(x, y, tiles=False, unroll=(4, 2, 1)):
    """A bit of everything, for what may not change a bit."""
    for i, p in pypto.loop_unroll(0, x.shape[0], unroll_list=list(unroll), name="rows"):
        if tiles:
            pypto.set_vec_tile_shapes(1 + i, 64)
            pypto.set_cube_tile_shapes([16, 16], [16, 64], [64, 128], True)
            pypto.set_pass_options(vec_nbuffer_setting={-1: 4, "DEFAULT": 2}, sg_set_scope=1)
            pypto.experimental.set_operation_options(combine_axis=False)
        rows = pypto.cast(pypto.view(x, [p, x.shape[1]], [i, 0]), pypto.DT_BF16)
        scores = pypto.matmul(rows, pypto.cast(x, pypto.DT_BF16), F, b_trans=True)
        e = pypto.exp(scores - pypto.amax(scores, -1, True))
        y[i:, 0:] = e / pypto.sum(e, -1, True)


def test_tiles_options_unroll_lists_and_threads_change_no_bit():
    x = np.random.default_rng(2).standard_normal((11, 300)).astype(np.float32)
    wanted = run(attention_like, x, np.zeros((11, 11), np.float32))[1]
    threads = dsakit.get_num_threads()
    try:
        for n in (1, 2, 5):
            dsakit.set_num_threads(n)
            for unroll in ([1], [8, 4, 2], {3, 5}):
                for tiles in (False, True):
                    found = run(lambda a, b: attention_like(a, b, tiles, unroll), x, np.zeros((11, 11), np.float32))[1]  # noqa: B023
                    np.testing.assert_array_equal(found, wanted)
    finally:
        dsakit.set_num_threads(threads)
        pypto.reset_options()


def test_tiles_are_kept_to_the_end_of_the_kernel():
    seen = []

    def body(x, y):
        seen.append(pypto.get_vec_tile_shapes())
        pypto.set_vec_tile_shapes(1, 2)
        pypto.set_cube_tile_shapes([16, 32], [16, 32, 64], [16, 16])
        seen.append((pypto.get_vec_tile_shapes(), pypto.get_cube_tile_shapes()))
        y[:] = x

    run(body, ones(2), ones(2))
    assert seen == [[], ([1, 2], ([16, 32], [16, 32, 64], [16, 16], False))] and pypto.get_vec_tile_shapes() == []


def test_options():
    pypto.set_host_options(compile_stage=pypto.CompStage.CODEGEN_BINARY, compile_timeout=5)
    assert pypto.get_host_options()["compile_timeout"] == 5
    with pypto.options(
        "part", pass_options={"ooo_sched_mode": "HLF"}, vec_tile_shapes=[4, 4], cube_tile_shapes=[[16, 16]] * 3
    ):
        assert pypto.get_pass_options()["ooo_sched_mode"] == "HLF" and pypto.get_vec_tile_shapes() == [4, 4]
    assert pypto.get_pass_options()["ooo_sched_mode"] == "" and pypto.get_vec_tile_shapes() == []
    pypto.set_print_options(precision=2)
    pypto.set_options(codegen_options={"soc_version": "x"}, debug_options={"runtime_debug_mode": 1})
    assert pypto.get_codegen_options()["soc_version"] == "x"
    pypto.reset_options()
    assert pypto.get_host_options()["compile_timeout"] == 600 and pypto.get_codegen_options()["soc_version"] == ""
    assert pypto.experimental.get_operation_options() == {"combine_axis": True}


def test_verifying(tmp_path, capsys):
    verify = {"enable_pass_verify": True, "pass_verify_save_tensor_dir": str(tmp_path)}

    @pypto.frontend.jit(verify_options=verify)
    def kernel(x: pypto.Tensor([...], F)):
        x[:] = x + 1
        for i in pypto.loop(2):
            pypto.pass_verify_print("x is", x, cond=i == 1)
            pypto.pass_verify_save(x, "x_$idx", idx=i)

    pypto.set_verify_golden_data(goldens=[np.array([2, 2.001], np.float32)])
    try:
        kernel(ones(2))
        assert capsys.readouterr().out.startswith("x is Tensor([2], DT_FP32)")
        assert np.load(tmp_path / "x_1.npy").tolist() == [2, 2]
        pypto.set_verify_golden_data(goldens=[np.array([2, 3], np.float32)])
        with pytest.raises(ValueError, match=r"x\[1\] is 2.0, one of 1 of 2 that differ, wanted 3.0 \(goldens\[0\]\)"):
            kernel(ones(2))
    finally:
        pypto.set_verify_golden_data()


def test_loops_end_with_their_bodies():
    for _ in pypto.loop(5):
        break
    with pytest.raises(ValueError, match="as a loop yielded it"):
        pypto.is_loop_begin(3)
    [last] = [i for i in pypto.loop(1)]
    assert pypto.is_loop_begin(last) and pypto.is_loop_end(last)
    with pytest.raises(ValueError, match="as a loop yielded it"):
        pypto.is_loop_end(last + 0)


def test_checking_values():
    with pypto.configure(check_values=True):
        with pytest.raises(ValueError, match=r"pypto.div: result\[1\] is inf, wanted a finite number"):
            pypto.div(pypto.from_torch(ones(2)), pypto.from_torch(np.array([1, 0], np.float32)))
    pypto.div(pypto.from_torch(ones(1)), 0.0)


INSTALL = """
import sys, dsakit
dsakit.pypto.install()
dsakit.pypto.install()
import pypto, pypto.frontend, pypto.experimental, pypto.operation, pypto.pypto_impl, pypto.error, pypto.debug
from pypto.operation import op_wrapper
from pypto import pypto_impl
assert pypto is dsakit.pypto and pypto.symbolic_scalar is pypto.SymbolicScalar and pypto.platform.npuarch == "DAV_3510"

@op_wrapper
def div_by(t, value, reverse):
    return pypto_impl.ScalarDivS(t, pypto_impl.Element(t.dtype, value), reverse)

assert div_by(pypto.ones(2), 4.0, False).numpy().tolist() == [0.25, 0.25]
dsakit.pypto.uninstall()
assert "pypto" not in sys.modules and "pypto.debug" not in sys.modules
sys.modules["pypto"] = sys
try:
    dsakit.pypto.install()
except ValueError as e:
    assert "is imported from" in str(e)
else:
    raise SystemExit("a module of that name was replaced")
"""


def test_install():
    environment = {"DSAKIT_PYPTO_ARCH": "DAV_3510", "PATH": "/usr/bin"}
    subprocess.run([sys.executable, "-c", INSTALL], check=True, env=environment)


def test_the_module_is_not_imported_with_the_package():
    code = "import sys, dsakit; assert 'dsakit.pypto' not in sys.modules; dsakit.pypto.add"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_numpy_is_quiet_about_what_programs_do():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pypto.div(pypto.from_torch(ones(2)), 0.0)
        run(lambda x, y: y.move(pypto.exp(x * 1e30)), ones(2), ones(2))


def run_scripts(folder):
    """Every script of a folder that has a main, where `import pypto` and `import torch_npu` compute here. Their names."""
    names = []
    for script in sorted(pathlib.Path(folder).glob("**/*.py")):
        if "__main__" not in script.read_text():
            continue
        start = "import runpy, sys, dsakit, dsakit.npu; dsakit.npu.install(); dsakit.pypto.install(); del sys.argv[0]; "
        start += "sys.path.insert(0, sys.argv[0].rpartition('/')[0]); runpy.run_path(sys.argv[0], run_name='__main__')"
        subprocess.run([sys.executable, "-c", start, script], check=True, cwd=script.parent)
        names.append(script.name)
    return names


SCRIPT = """
import torch, torch_npu, pypto
from helper import scale

@pypto.frontend.jit(runtime_options={"device_sched_mode": 1})
def kernel(x: pypto.Tensor([pypto.DYNAMIC, pypto.STATIC], pypto.DT_BF16), y: pypto.Tensor([pypto.DYNAMIC, pypto.STATIC], pypto.DT_BF16)):
    pypto.set_vec_tile_shapes(1, 64)
    y[:] = scale(x)

if __name__ == "__main__":
    x = torch.ones(3, 64, dtype=torch.bfloat16, device="npu")
    y = torch.empty_like(x)
    kernel(x, y)
    torch_npu.npu.synchronize()
    assert (y.cpu() == 2).all()
"""


def test_programs_of_a_folder(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "helper.py").write_text("def scale(x):\n    return x * 2.0\n")
    (tmp_path / "part" / "program.py").write_text(SCRIPT)
    assert run_scripts(tmp_path) == ["program.py"]


def test_a_users_own_programs():
    """A copy of published examples."""
    folder = os.environ.get("DSAKIT_PYPTO_EXAMPLES")
    if not folder:
        pytest.skip("DSAKIT_PYPTO_EXAMPLES names no folder of PyPTO programs")
    assert run_scripts(folder)


def test_the_example_of_the_page(tmp_path):
    import re

    page = pathlib.Path(__file__).resolve().parents[2] / "docs" / "pypto.md"
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.S)
    script = tmp_path / "example.py"
    script.write_text(code)
    out = subprocess.run([sys.executable, script], check=True, capture_output=True, text=True).stdout
    assert [line.split()[1:4] for line in out.splitlines()[::3]] == [
        ["Quant/cast", f"tokens={i}", "int32" + s]
        for i, s in ((0, "[32,"), (32, "[8,"), (40, "[1,"), (41, "[1,"), (42, "[1,"), (43, "[1,"), (44, "[1,"))
    ]
