# SPDX-License-Identifier: Apache-2.0
"""What dsakit.pypto refuses: by a sentence and a built-in class, with arguments as they were."""

import inspect

import ml_dtypes
import numpy as np
import pypto_conformance as conformance
import pytest

from dsakit import pypto

VALUE, TYPE, INDEX, NOT = ValueError, TypeError, IndexError, NotImplementedError
CALLS = [
    # operands
    (TYPE, "add(x, h)", r"add: other has dtype bfloat16, wanted float32 \(dtype of input\)"),
    (TYPE, "add(i, 1.5)", r"add: other is 1.5, wanted an integer \(input is int32\)"),
    (TYPE, "i * 2.0", r"mul: other is 2.0, wanted an integer"),
    (TYPE, "add(x, 'a')", r"add: other is 'a', wanted a pypto tensor or a number"),
    (TYPE, "add(3, 4)", r"add: other is 4, wanted a pypto tensor"),
    (TYPE, "x + True", r"add: other is True"),
    (VALUE, "add(x, zeros(3, 3))", r"add: other has shape \[3, 3\], wanted \[2, 3\], or axes of size 1"),
    (VALUE, "i + 2**40", r"add: other is 1099511627776, wanted -2147483648..2147483647"),
    (TYPE, "sqrt(i)", r"sqrt: input has dtype int32"),
    (TYPE, "exp([1])", r"exp: input is \[1\], wanted a pypto tensor"),
    (VALUE, "clip(x)", r"clip: min is missing, as is max"),
    (VALUE, "pow(i, -1)", r"pow: other is negative"),
    (TYPE, "bitwise_and(x, x)", r"bitwise_and: input has dtype float32"),
    (TYPE, "bool(x)", r"Tensor: self has no truth value"),
    (TYPE, "1 if x > 0 else 2", r"has no truth value"),
    (VALUE, "add(Tensor([2, 3], DT_FP32, 'q'), x)", r"add: input q has no values yet"),
    # cast
    (TYPE, "cast(x, 'int8')", r"cast: dtype is 'int8', wanted one of pypto.DT_FP32"),
    (NOT, "cast(x, DT_FP8E4M3)", r"cast: dtype is DT_FP8E4M3"),
    (TYPE, "cast(x, DT_INT8, 1)", r"cast: mode is 1, wanted one of pypto.CastMode"),
    (TYPE, "cast(x, DT_INT8, CastMode.CAST_RINT, True)", r"cast: satmode is True"),
    # reductions
    (VALUE, "sum(x, 2)", r"sum: dim is 2, wanted -2..1"),
    (TYPE, "amax(x, 1.0)", r"amax: dim is 1.0, wanted an integer"),
    (TYPE, "softmax(i, 0)", r"softmax: input has dtype int32"),
    (VALUE, "rms_norm(x, zeros(2))", r"rms_norm: gamma has shape \[2\], wanted \[3\]"),
    (TYPE, "rms_norm(x, cast(zeros(3), DT_BF16))", r"rms_norm: gamma has dtype bfloat16"),
    (TYPE, "var(i)", r"var: input has dtype int32"),
    (VALUE, "topk(x, 4)", r"topk: k is 4, wanted 1..3"),
    (TYPE, "topk(x, 2.0)", r"topk: k is 2.0"),
    (VALUE, "argmax(view(x, [2, 3], [0, 0], valid_shape=[2, 0]))", r"argmax: input has valid shape \[2, 0\]"),
    # matmul
    (TYPE, "matmul(x, h, DT_FP32)", r"matmul: mat2 has dtype bfloat16, wanted float32 \(dtype of input\)"),
    (VALUE, "matmul(x, x, DT_FP32)", r"matmul: mat2 has shape \[2, 3\], wanted 3 rows"),
    (VALUE, "matmul(x, zeros(3), DT_FP32)", r"matmul: mat2 has rank 1, wanted 2"),
    (VALUE, "matmul(zeros(2, 2, 3), zeros(3, 3, 1), DT_FP32)", r"matmul: mat2 has leading axes \[3\]"),
    (TYPE, "matmul(x, zeros(3, 1), DT_BF16)", r"matmul: out_dtype is bfloat16, wanted float32 or int8"),
    (TYPE, "matmul(i, i, DT_INT32, b_trans=True)", r"matmul: input has dtype int32"),
    (VALUE, "matmul(q, q, DT_FP16, b_trans=True)", r"matmul: extend_params has no scale, wanted a scale"),
    (VALUE, "matmul(q, q, DT_INT32, b_trans=True, extend_params={'scale': 2.0})", r"extend_params has a scale, wanted none"),
    (VALUE, "matmul(x, x, DT_FP32, b_trans=True, extend_params={'bias': 1})", r"extend_params has 'bias', wanted some of"),
    (TYPE, "matmul(x, x, DT_FP32, b_trans=True, extend_params=[1])", r"extend_params is \[1\]"),
    (NOT, "matmul(x, x, DT_FP32, b_trans=True, extend_params={'trans_mode': TransMode.CAST_RINT})", r"trans_mode"),
    (VALUE, "matmul(x, x, DT_FP32, b_trans=True, extend_params={'bias_tensor': zeros(1, 3)})", r"bias_tensor has shape \[1, 3\], wanted \[1, 2\]"),
    (TYPE, "matmul(q, q, DT_INT32, b_trans=True, extend_params={'bias_tensor': zeros(1, 2)})", r"bias_tensor has dtype float32"),
    (TYPE, "experimental.transposed_batchmatmul(x, x, DT_FP32)", r"transposed_batchmatmul: tensor_a has dtype float32"),
    (VALUE, "experimental.transposed_batchmatmul(h, h, DT_BF16)", r"transposed_batchmatmul: tensor_b has shape"),
    # windows
    (VALUE, "view(x, [2], [0, 0])", r"view: shape has 1 axes, wanted 2"),
    (VALUE, "view(x, [2, 2])", r"view: offsets is missing"),
    (INDEX, "view(x, [1, 1], [0, 3])", r"view: offsets\[1\] is 3, wanted 0..2"),
    (INDEX, "view(x, [1, 1], [-1, 0])", r"view: offsets\[0\] is -1"),
    (VALUE, "view(x, [3, 3], [0, 0], valid_shape=[3, 3])", r"view: valid_shape\[0\] is 3, wanted 0..2"),
    (TYPE, "view(x, [1.0, 1], [0, 0])", r"view: shape\[0\] is 1.0"),
    (VALUE, "view(q, dtype=DT_INT16)", r"view: input has 3 elements in a row, wanted a multiple of 2 bytes"),
    (VALUE, "x[0:2:2]", r"__getitem__: key\[0\] has the step 2"),
    (TYPE, "x[True]", r"__getitem__: key\[0\] is True"),
    (INDEX, "x[2]", r"__getitem__: key\[0\] is 2, wanted -2..1"),
    (INDEX, "x[0, 0, 0]", r"__getitem__: key has 3 entries"),
    (TYPE, "x[0, 0]", r"__getitem__: tensor has dtype float32, wanted int32"),
    (TYPE, "i.__setitem__((0, 0), 1.5)", r"__setitem__: value is 1.5"),
    (TYPE, "x.__setitem__((slice(0, 1), slice(0, 1)), 5)", r"__setitem__: value is 5, wanted a pypto tensor"),
    (VALUE, "x.__setitem__((slice(0, 2), slice(0, 2)), zeros(1, 2))", r"__setitem__: value\[0\] has 1 elements, wanted 2"),
    (TYPE, "x.__setitem__(slice(None), 5)", r"move: other is 5"),
    # writing
    (TYPE, "assemble(h, [0, 0], x)", r"assemble: src has dtype bfloat16, wanted float32 \(dtype of dst\)"),
    (INDEX, "assemble(zeros(2, 2), [1, 0], x)", r"assemble: offsets\[0\] is 1 for 2 elements"),
    (VALUE, "assemble(zeros(2), [0], x)", r"assemble: src has 1 axes, wanted 2"),
    (TYPE, "assemble([zeros(2, 3)], x)", r"assemble: srcs\[0\] is"),
    (INDEX, "assemble([(zeros(1, 1), [0, 0]), (zeros(1, 1), [2, 0])], x)", r"assemble: offsets\[1\]\[0\] is 2"),
    (INDEX, "scatter_update(c, -2, index([[8]]), zeros(1, 1, 1, 2))", r"index\[0\]\[0\] is 8, wanted below 8 \(2 blocks of 4\)"),
    (VALUE, "scatter_update(c, 0, index([[0]]), zeros(1, 1, 1, 2))", r"scatter_update: dim is 0, wanted -2"),
    (VALUE, "scatter_update(c, -2, index([[0]]), zeros(1, 2))", r"scatter_update: src has shape \[1, 2\], wanted \[1, 1, 1, 2\]"),
    (TYPE, "scatter_update(c, -2, zeros(1, 1), zeros(1, 1, 1, 2))", r"scatter_update: index has dtype float32"),
    (TYPE, "scatter_update(c, -2, index([[0]]), h)", r"scatter_update: src has dtype bfloat16"),
    (VALUE, "scatter_update(zeros(2, 2, 2), -2, index([[0]]), zeros(1, 2))", r"scatter_update: input has shape \[2, 2, 2\]"),
    (NOT, "scatter(x, 0, index([[0]]), x, reduce='add')", r"scatter: reduce is 'add', wanted None"),
    (INDEX, "scatter(x, 0, index([[2]]), x)", r"scatter: index\[0\]\[0\] is 2, wanted 0..1"),
    # shapes
    (VALUE, "reshape(x, [4])", r"reshape: shape is \[4\], wanted 6 elements"),
    (VALUE, "reshape(x, [-1, -1])", r"reshape: shape is \[-1, -1\]"),
    (VALUE, "reshape(view(x, [2, 3], [0, 0], valid_shape=[2, 2]), [6])", r"reshape: valid_shape is missing"),
    (VALUE, "reshape(transpose(x, 0, 1), [6], inplace=True).dim > 9 or reshape(h, [5])", r"reshape: shape is \[5\]"),
    (VALUE, "permute(x, [0, 0])", r"permute: dims is \[0, 0\], wanted each of 0..1 once"),
    (VALUE, "transpose(x, 0, 2)", r"transpose: dim1 is 2"),
    (VALUE, "expand_clone(x, [2, 6])", r"expand_clone: shape is \[2, 6\]"),
    (TYPE, "concat(x)", r"concat: tensors is"),
    (TYPE, "concat([x, h])", r"concat: tensors\[1\] has dtype bfloat16"),
    (VALUE, "concat([x, zeros(2, 2)])", r"concat: tensors\[1\] has shape \[2, 2\]"),
    (VALUE, "concat([view(x, [2, 3], [0, 0], valid_shape=[1, 3]), x])", r"concat: tensors\[0\] has 1 valid of 2"),
    (VALUE, "full([2], 1, DT_FP32, valid_shape=[3])", r"full: valid_shape is \[3\]"),
    (TYPE, "full([2], 1.5, DT_INT32)", r"full: fill_value is 1.5"),
    (VALUE, "arange(0, 1, 0)", r"arange: step is 0"),
    (NOT, "pad(x, [1, 1], 'reflect')", r"pad: mode is 'reflect'"),
    (INDEX, "one_hot(i, 1)", r"one_hot: input\[0\]\[1\] is 1, wanted 0..0"),
    (INDEX, "gather(x, 0, index([[-1]]))", r"gather: index\[0\]\[0\] is -1, wanted 0..1"),
    (VALUE, "index_select(x, 0, index([[0, 1], [1, 0]]))", r"index_select: index has shape \[2, 2\]"),
    (INDEX, "index_select(x, 1, index([3]))", r"index_select: index\[0\] is 3, wanted 0..2"),
    (INDEX, "experimental.gather_in_ub(x, index([[-1]]), index([[0]]), 2, -2)", r"gather_in_ub: indices\[0\]\[0\] is -1"),
    (INDEX, "experimental.gather_in_ub(x, index([[1]]), index([[-1]]), 2, -2)", r"gather_in_ub: block_table\[0\]\[0\] is -1, wanted 0..0"),
    (INDEX, "experimental.gather_in_l1(x, index([[3]]), index([[0, 5]]), 2, 2, True, False)", r"block_table\[0\]\[1\] is 5"),
    (VALUE, "experimental.gather_in_l1(x, index([[0]]), index([[0]]), 2, 4, True, False)", r"gather_in_l1: size is 4, wanted 1..3"),
    (VALUE, "experimental.gather_in_ub(x, index([[0]]), index([[0]]), 2, 0)", r"gather_in_ub: axis is 0, wanted -2"),
    # loops, options
    (VALUE, "list(loop(0, 5, 0))", r"loop: step is 0, wanted 1 or more"),
    (TYPE, "list(loop('5'))", r"loop: stop is '5'"),
    (TYPE, "list(loop(5, foo=1))", r"unexpected keyword argument 'foo'"),
    (VALUE, "list(loop_unroll(5, unroll_list=[0]))", r"loop_unroll: unroll_list has 0"),
    (VALUE, "set_vec_tile_shapes()", r"set_vec_tile_shapes: shapes has 0 sizes"),
    (VALUE, "set_vec_tile_shapes(1, 0)", r"set_vec_tile_shapes: shapes\[1\] is 0"),
    (VALUE, "set_cube_tile_shapes([16], [16, 16], [16, 16])", r"set_cube_tile_shapes: m is \[16\], wanted \[L0, L1\]"),
    (VALUE, "set_cube_tile_shapes([16, 24], [16, 16], [16, 16])", r"set_cube_tile_shapes: m\[1\] is 24, wanted a multiple of 16"),
    (VALUE, "set_pass_options(pg_lower_bound=1)", r"set_pass_options: options has 'pg_lower_bound'"),
    (VALUE, "set_pass_options(ooo_sched_mode='X')", r"set_pass_options: ooo_sched_mode is 'X', wanted '' or 'GAPMIN' or 'HLF'"),
    (VALUE, "set_pass_options(cube_nbuffer_setting={-2: 1})", r"cube_nbuffer_setting is"),
    (VALUE, "set_host_options(compile_stage=6)", r"compile_stage is 6, wanted an integer in 0..5 or a CompStage"),
    (TYPE, "set_options(foo={})", r"unexpected keyword argument 'foo'"),
    (TYPE, "set_semantic_label(5)", r"set_semantic_label: label is 5"),
    (VALUE, "set_matrix_size([1, 2])", r"set_matrix_size: size is \[1, 2\]"),
    (TYPE, "max(x, 1e-12)", r"max: a is a tensor, wanted a number|no truth value"),
    (TYPE, "Element(DT_INT8, 'a')", r"Element: data is 'a'"),
    (TYPE, "Tensor([1.5], DT_FP32)", r"Tensor: shape\[0\] is 1.5"),
    (NOT, "Tensor([1], DT_INT4)", r"Tensor: dtype is DT_INT4"),
    (NOT, "conv(x)", r"conv: conv is documented and not offered"),
    (NOT, "experimental.online_softmax(x, 1)", r"pypto.experimental.online_softmax"),
]  # fmt: skip


def arguments():
    rng = np.random.default_rng(3)
    return {
        "x": rng.standard_normal((2, 3)).astype(np.float32),
        "h": rng.standard_normal((2, 3)).astype(ml_dtypes.bfloat16),
        "i": np.arange(6, dtype=np.int32).reshape(2, 3),
        "q": rng.integers(-128, 128, (2, 3), np.int8),
        "c": rng.standard_normal((2, 4, 1, 2)).astype(np.float32),
    }


def names_of_module():
    return {n: getattr(pypto, n) for n in [*pypto.__all__, "conv"]} | {
        "index": conformance.int32,
        "bool": bool,
        "list": list,
    }


@pytest.mark.parametrize("kind, call, sentence", CALLS, ids=[c[1] for c in CALLS])
def test_refusals(kind, call, sentence):
    @pypto.frontend.jit
    def kernel(x: pypto.Tensor(), h: pypto.Tensor(), i: pypto.Tensor(), q: pypto.Tensor(), c: pypto.Tensor()):
        pypto.set_semantic_label("Here")
        x[:] = x * 2
        c[0:1, 0:, 0:, 0:] = pypto.full([1, 4, 1, 2], 1.0, pypto.DT_FP32)
        eval(call, names_of_module(), {"x": x, "h": h, "i": i, "q": q, "c": c})

    given = arguments()
    before = {n: a.copy() for n, a in given.items()}
    with pytest.raises(kind, match=sentence) as error:
        kernel(**given)
    for name, a in given.items():
        assert a.tobytes() == before[name].tobytes(), name
    if isinstance(error.value, pypto.error.PyptoError):
        assert str(error.value).startswith("pypto.")
        assert "Here, op " in str(error.value)


def test_there_are_enough():
    assert len(CALLS) >= 80


ARGUMENTS = [
    (VALUE, "Tensor([2, 4])", r"kernel: x has shape \[2, 3\], wanted \[2, 4\] \(declared\)"),
    (VALUE, "Tensor([DYNAMIC])", r"wanted \[DYNAMIC\] \(declared\)"),
    (TYPE, "Tensor([2, 3], DT_BF16)", r"kernel: x has dtype float32, wanted bfloat16 \(declared\)"),
]


@pytest.mark.parametrize("kind, spec, sentence", ARGUMENTS)
def test_arguments_that_do_not_fit_their_declaration(kind, spec, sentence):
    def kernel(x):
        pytest.fail("it ran")

    kernel.__annotations__["x"] = eval(spec, names_of_module())
    with pytest.raises(kind, match=sentence):
        pypto.frontend.jit(kernel)(arguments()["x"])


def test_arguments_that_are_not_memory():
    @pypto.frontend.jit
    def kernel(x: pypto.Tensor(), n: int = 1):
        pytest.fail("it ran")

    x = arguments()["x"]
    for bad, kind, sentence in (
        (None, VALUE, "x is missing"),
        ([1], TYPE, r"x is \[1\], wanted a torch CPU tensor or a numpy array"),
        (x.T, VALUE, "x has strides"),
        (np.zeros(2), NOT, "x has dtype float64"),
        (np.array(["a"]), NOT, "x has dtype"),
        (pypto.Tensor([2]), VALUE, "x has no values"),
    ):
        with pytest.raises(kind, match=sentence):
            kernel(bad)
    for bad in ((), (x, 1, 2), (x,)):
        with pytest.raises(TypeError, match="arguments do not fit"):
            kernel(*bad, **({"m": 2} if len(bad) == 1 else {}))


def test_a_read_only_argument_is_not_written():
    @pypto.frontend.jit
    def kernel(x: pypto.Tensor(), y: pypto.Tensor()):
        y[:] = x
        x[0:] = pypto.zeros(2, 3)

    x, y = arguments()["x"], np.zeros((2, 3), np.float32)
    x.flags.writeable = False
    with pytest.raises(ValueError, match="x is read-only, wanted writable memory"):
        kernel(x, y)
    assert (y == 0).all()


def test_tensor_parameters_come_first():
    with pytest.raises(ValueError, match="y is a tensor behind n"):

        @pypto.frontend.jit
        def kernel(x: pypto.Tensor(), n: int, y: pypto.Tensor()):
            pass


def test_options_of_jit():
    for group, options, sentence in (
        ("runtime_options", {"device_sched_mode": 4}, "device_sched_mode is 4, wanted an integer in 0..3"),
        ("runtime_options", {"stitch": 1}, "runtime_options has 'stitch', wanted some of"),
        ("codegen_options", {"support_dynamic_aligned": 1}, "support_dynamic_aligned is 1, wanted True or False"),
        ("debug_options", {"dump_pass_graph": "a"}, "dump_pass_graph is 'a', wanted a list of strings"),
        ("verify_options", {"pass_verify_error_tol": [1]}, "pass_verify_error_tol"),
        ("pass_options", {"cube_l1_reuse_setting": {0: (1, "up")}}, "cube_l1_reuse_setting"),
        ("pass_options", {"sg_set_scope": (1, 2, 3)}, "sg_set_scope"),
    ):
        with pytest.raises(ValueError, match=sentence):
            pypto.frontend.jit(**{group: options})(lambda: None)
    with pytest.raises(TypeError, match="host_options is 5"):
        pypto.frontend.jit(host_options=5)(lambda: None)
    with pytest.raises(TypeError, match="unexpected keyword argument 'hosts'"):
        pypto.frontend.jit(hosts={})
    pypto.frontend.jit(
        pass_options={"cube_l1_reuse_setting": {0: (1, "left"), "Matmul": 4}, "sg_set_scope": (1, True, False)}
    )(lambda: None)


def test_configure():
    for given, kind in (
        ({"level": "lax"}, VALUE),
        ({"gemm": "slow"}, VALUE),
        ({"on_error": "x"}, VALUE),
        ({"check_values": 1}, TYPE),
    ):
        with pytest.raises(kind, match="pypto.configure: "), pypto.configure(**given):
            pass


# ---- strict


def tiles(vec=(8, 8), cube=([16, 16], [32, 32], [32, 32])):
    pypto.set_vec_tile_shapes(*vec)
    pypto.set_cube_tile_shapes(*cube)


STRICT = [
    ("x + x", {"vec": None}, r"add: set_vec_tile_shapes was not called, wanted 2 tile sizes \(.*\) \[strict: Atlas A2/A3\]$"),
    ("x + x", {"vec": (8,)}, r"add: set_vec_tile_shapes has 1 sizes, wanted 2 tile sizes"),
    ("sum(x, -1)", {"vec": (8,)}, r"sum: set_vec_tile_shapes has 1 sizes"),
    ("transpose(x, 0, 1)", {"vec": (8,)}, r"transpose: set_vec_tile_shapes has 1 sizes"),
    ("matmul(h, h, DT_FP32, b_trans=True)", {"cube": None}, r"matmul: set_cube_tile_shapes was not called"),
    ("matmul(h, h, DT_FP32, b_trans=True)", {"cube": ([16, 16], [8, 32], [32, 32])}, r"has k size 8, wanted multiples of 32 bytes"),
    ("matmul(big, big, DT_FP32, b_trans=True)", {"cube": ([128, 128], [512, 512], [32, 32])}, r"has m0 \* k0 of 131072 bytes, wanted at most 65536"),
    ("matmul(big, big, DT_FP32, b_trans=True)", {"cube": ([16, 16], [512, 512], [128, 128])}, r"has n0 \* k0 of 131072 bytes"),
    ("matmul(big, big, DT_FP32, b_trans=True)", {"cube": ([256, 256], [64, 64], [256, 256])}, r"has m0 \* n0 of 262144 bytes"),
    ("matmul(big, big, DT_FP32, b_trans=True)", {"cube": ([16, 256], [64, 1024], [64, 64])}, r"has m1 \* ka \+ n1 \* kb of 655360 bytes"),
    ("q + q", {}, r"add: input_tensor has dtype int8, wanted float32 or float16"),
    ("cast(h, DT_FP16)", {}, r"cast: dtype is float16, wanted one of float32, int32 \(input is bfloat16\)"),
    ("cast(q, DT_FP32)", {}, r"cast: dtype is float32, wanted one of float16 \(input is int8\)"),
    ("sum(cast(x, DT_FP16), 0)", {}, r"sum: input has dtype float16"),
    ("topk(i, 1)", {}, r"topk: input has dtype int32, wanted float32 or float16"),
    ("x + zeros(3)", {}, r"add: other has rank 1, wanted 2"),
    ("full([1], 1.5, DT_BF16)", {}, r"full: fill_value is the float32 1.5, wanted an Element of bfloat16"),
    ("maximum(x, 1)", {}, r"maximum: other is the int32 1, wanted an Element of float32"),
    ("reshape(x, [1, 1, 1, 2, 3]) + 1.0", {"vec": (1, 1, 1, 8)}, r"add: input_tensor has rank 5, wanted at most 4"),
    ("concat([x])", {}, r"concat: tensors has 1, wanted 2 to 128"),
    ("transpose(c, 0, 1)", {"vec": (1, 1, 1, 8)}, r"transpose: dim0 with dim1 is \[0, 1\]"),
    ("view(x, [s, 3], [0, 0])", {}, r"view: shape\[0\] is the run-time 2"),
    ("reshape(x, [s, 3])", {}, r"reshape: shape\[0\] is the run-time 2"),
    ("reshape(x[0:1, 0:3], [3], inplace=True)", {}, r"reshape: input is a view"),
    ("from_torch(array, tensor_format=TileOpFormat.TILEOP_NZ) + 1.0", {}, r"add: input_tensor is TILEOP_NZ"),
    ("[[0 for b in loop(2, idx_name='n')] for a in loop(2, idx_name='n')]", {}, r"loop: idx_name is 'n', that of a loop around"),
    ("platform.__setattr__('npuarch', 'DAV_3510')", {}, r"platform: npuarch is 'DAV_3510'"),
    ("scatter_update(c, -2, cast(cast(index([[0]]), DT_INT32), DT_UINT8), zeros(1, 1, 1, 2))", {}, r"cast: dtype is uint8|index has dtype uint8"),
]  # fmt: skip


@pytest.mark.parametrize("call, given, sentence", STRICT, ids=[c[0] for c in STRICT])
def test_strict(call, given, sentence):
    @pypto.frontend.jit
    def kernel(x: pypto.Tensor(), h: pypto.Tensor(), i: pypto.Tensor(), q: pypto.Tensor(), c: pypto.Tensor()):
        vec, cube = given.get("vec", (8, 8)), given.get("cube", ([16, 16], [32, 32], [32, 32]))
        if vec:
            pypto.set_vec_tile_shapes(*vec)
        if cube:
            pypto.set_cube_tile_shapes(*cube)
        big = pypto.from_torch(np.zeros((256, 1024), ml_dtypes.bfloat16))
        more = {"s": pypto.SymbolicScalar(2), "big": big, "array": np.zeros((2, 3), np.float32)}
        x[:] = x
        eval(call, names_of_module() | more | {"x": x, "h": h, "i": i, "q": q, "c": c})

    arrays = arguments()
    with pypto.configure(level="strict"), pytest.raises(NotImplementedError, match=sentence):
        kernel(**arrays)
    if "platform" not in call:
        with pypto.configure(level="portable"):
            kernel(**arrays)  # portable takes all of it


def test_strict_takes_more_tile_sizes_than_axes_and_views_without():
    @pypto.frontend.jit
    def kernel(x: pypto.Tensor()):
        y = pypto.reshape(pypto.view(x, [1, 3], [0, 0]), [3])
        pypto.set_vec_tile_shapes(1, 1, 8, 8)
        x[0:1, 0:] = pypto.reshape(y + 1.0, [1, 3])

    with pypto.configure(level="strict"):
        kernel(arguments()["x"])


def test_a_viewed_tensor_is_not_assembled_in_the_same_body():
    @pypto.frontend.jit
    def kernel(x: pypto.Tensor()):
        pypto.set_vec_tile_shapes(8, 8)
        for _ in pypto.loop(1):
            part = x[0:1, 0:3]
            x[1:, 0:] = part + 1.0

    kernel(arguments()["x"])
    with pypto.configure(level="strict"), pytest.raises(NotImplementedError, match="both viewed and assembled"):
        kernel(arguments()["x"])


def test_no_refusal_lacks_its_words():
    """Every sentence of the module says what was wanted."""
    from dsakit.pypto import elementwise, frontend, linear, loops, reduce, settings, shapes, windows

    for module in (elementwise, frontend, linear, loops, reduce, settings, shapes, windows):
        assert "assert " not in inspect.getsource(module).replace("AssertionError", "")
