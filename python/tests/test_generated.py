# SPDX-License-Identifier: Apache-2.0
"""The operators of the package are plain functions, written from the library's own descriptions, that teach their call."""

import importlib.util
import inspect
import pathlib
import pydoc
import re
import subprocess
import sys

import numpy as np
import pytest

import dsakit
from dsakit import _core

ROOT = pathlib.Path(__file__).parent.parent.parent
DESCRIPTION = _core.describe()
MEMBERLESS = ("reserved", "hint", "tolerated")


def generator():
    spec = importlib.util.spec_from_file_location("generate_python", ROOT / "scripts" / "generate_python.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["generate_python"] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


GENERATOR = generator()


def spellings():
    """(module, function, what the generator was told of it) for every generated function that has an operator's parameters."""
    for name, d in DESCRIPTION.items():
        for spelling in GENERATOR.spellings(name, d["family"]):
            for module in (dsakit, dsakit.reference):
                yield module, getattr(module, spelling.name), spelling
    for space, forms in GENERATOR.OPS.items():
        for spelling in forms:
            module = getattr(dsakit.ops, space)
            yield module, getattr(module, spelling.name), spelling


def public():
    """Every operator under every name: module, name."""
    for module in (dsakit.operators, dsakit.reference, dsakit.ops.npu, dsakit.ops.custom, dsakit.ops._C_ascend):
        for name in module.__all__:
            yield pytest.param(module, name, id=f"{module.__name__.removeprefix('dsakit.')}-{name}")


every_spelling = pytest.mark.parametrize(
    "module, function, spelling", [pytest.param(*s, id=f"{s[0].__name__}-{s[2].name}") for s in spellings()]
)
every_name = pytest.mark.parametrize("module, name", list(public()))


def test_what_is_checked_in_is_what_the_generator_writes():
    files = GENERATOR.files(GENERATOR.described())
    for path, text in files.items():
        assert (GENERATOR.PACKAGE / path).read_text() == text, f"{path}: run scripts/generate_python.py"
    there = {p.relative_to(GENERATOR.PACKAGE).as_posix() for p in (GENERATOR.PACKAGE / "_generated").rglob("*.py")}
    assert {p for p in there if not p.endswith("__init__.py")} == {p for p in files if p.startswith("_generated")}


@every_spelling
def test_signature_is_the_description(module, function, spelling):
    d, own = DESCRIPTION[spelling.operator], inspect.signature(function).parameters
    fields = {f["name"]: f for f in d["fields"] if f["name"] not in spelling.without}
    positional = [f["name"] for f in d["fields"][: d["positional"]] if f["name"] not in spelling.keywords]
    assert [n for n, p in own.items() if p.kind is p.POSITIONAL_OR_KEYWORD] == positional
    only_here = {"more", "other"} if spelling.published else set()
    only_here |= {"p_rounding"} if module is dsakit.reference and spelling.operator + "_rounded" in vars(_core) else set()
    assert set(own) == set(fields) | only_here
    for name, field in fields.items():
        default = own[name].default
        if name in spelling.defaults or field["role"] == "tolerated":
            assert default is not inspect.Parameter.empty
        elif field["required"]:
            assert default is inspect.Parameter.empty, name
        else:
            assert default == field["default"] and type(default) is type(field["default"]), name
        assert own[name].annotation in ("None", "Any") or own[name].annotation[0].isalpha()


@every_spelling
def test_docstring_has_every_parameter(module, function, spelling):
    doc, d = inspect.getdoc(function), DESCRIPTION[spelling.operator]
    squeezed = " ".join(doc.split())
    assert all(" ".join(line.split()) in squeezed for line in d["formula"].splitlines()) and d["formula"]
    assert " ".join((d["summary"] + ".").split()) in squeezed and d["source"] in squeezed and d["page"] in squeezed
    assert all(" ".join(line.split()) in squeezed for line in d["errors"].splitlines())
    for field in d["fields"]:
        if field["name"] in spelling.without:
            continue
        if field["role"] == "reserved":
            assert re.search(rf"Reserved, only None: [\w, ]*\b{field['name']}\b", squeezed)
            continue
        assert re.search(rf"^    {field['name']}  +\S", doc, re.M), field["name"]
        for part in ("dtypes", "shape", "meaning"):
            assert " ".join(field[part].split()) in squeezed, (field["name"], part)
    assert (ROOT / "docs" / "operators" / d["page"]).exists()


@every_name
def test_help_fits_a_terminal_and_starts_with_the_name(module, name):
    text = pydoc.render_doc(getattr(module, name), renderer=pydoc.plaintext)
    title, _, call, *rest = text.splitlines()
    assert max(map(len, rest)) <= 100
    assert title.startswith(f"Python Library Documentation: function {name} in module dsakit")
    assert call.startswith(name + "(") and getattr(module, name).__qualname__ == name
    assert "mx_quant" in name or re.search(r"^        \w+ .*[\[(](bfloat16|float16|float32|int8|int32)", text, re.M)


@every_name
def test_it_is_a_plain_function_in_a_file(module, name):
    function = getattr(module, name)
    source = inspect.getsource(function)
    assert re.search(rf"^def {name}\(", source, re.M) and pathlib.Path(inspect.getsourcefile(function)).exists()


@every_name
def test_a_refusal_names_the_spelling_that_was_called(module, name):
    with pytest.raises(dsakit.Error) as caught:
        getattr(module, name)()
    assert caught.value.operator == name and str(caught.value).startswith(f"{name}: {caught.value.parameter} ")


X = np.ones((1, 2, 3, 16), np.float16)


@pytest.mark.parametrize(
    "module, name, given, parameter",
    [
        (dsakit, "npu_lightning_indexer", dict(query=X, key=X[:, :, :1], weights=X), "weights"),
        (dsakit.reference, "npu_lightning_indexer", dict(query=X, key=X[:, :, :1], weights=X), "weights"),
        (dsakit.ops.npu, "lightning_indexer", dict(query=X, key=X[:, :, :1], weights=X), "weights"),
        (dsakit, "npu_dynamic_quant", dict(input=X, level="lax"), "level"),
        (dsakit, "npu_dynamic_quant", dict(input=[1.0]), "input"),
        (dsakit, "npu_dynamic_block_quant", dict(x=X[0, 0], dst_type="float8_e4m3fn"), "dst_type"),
        (dsakit, "npu_mla_prolog_v3", dict(token_x_dtype=1), "token_x_dtype"),
        (dsakit, "npu_mla_prolog_v3", dict(k_pe_clip_alpha=1.0), "k_pe_clip_alpha"),
        (dsakit, "npu_quant_lightning_indexer", dict(level="strict"), "query_quant_mode"),
        (dsakit.reference, "npu_sparse_flash_attention", dict(p_rounding="some"), "p_rounding"),
        (dsakit, "mla_prolog_quant_p", dict(), "dequant_scale"),
        (dsakit, "mla_prolog_quant_d", dict(dequant_scale=X, rope_cfg=3, token_x=X), "w_dq"),
        (dsakit, "mla_indexer_prolog_quant_d", dict(attrs=3), "attrs"),
        (dsakit, "npu_format_cast", dict(x=X, format=3), "format"),
        (dsakit, "npu_format_cast", dict(x=[1], format=29), "x"),
        (dsakit, "format_cast", dict(x=X[0, 0, 0], format=29), "x"),
    ],
)
def test_refusals_of_every_floor_name_the_spelling(module, name, given, parameter):
    """The door, the binding, the package."""
    with pytest.raises(dsakit.Error) as caught:
        getattr(module, name)(**given)
    error = caught.value
    assert (error.operator, error.parameter) == (name, parameter) and str(error).startswith(f"{name}: {parameter}")


def test_wrong_keywords_name_the_spelling():
    with pytest.raises(TypeError, match=r"^npu_dynamic_quant\(\) got an unexpected keyword argument 'no_such'"):
        dsakit.npu_dynamic_quant(X, no_such=1)
    with pytest.raises(TypeError, match=r"^mla_prolog_quant_d\(\) got an unexpected keyword argument 'no_such'"):
        dsakit.mla_prolog_quant_d(no_such=1)


SNIPPET = """
import numpy as np
import dsakit
from dsakit import Layer, Model, load_safetensors, npu_dynamic_quant

x = np.ones((1, 2, 4, 16), np.int8)
w = np.ones((1, 2, 4), np.float16)
picked = dsakit.quant_lightning_indexer(x, x, w, w, w[..., :1], sparse_count=5, actual_seq_lengths_key=[2])
y, scale = npu_dynamic_quant(x, dst_type="int8")
packed: dsakit.PackedWeight = dsakit.pack_weight(x[0, 0])
dsakit.mla_prolog_quant_d(x, packed, dsakit.format_cast(x, 29), x, x, x, x, x, x, x, x, x, x, None, x, tile_config=3)
print(picked.shape, y.dtype, scale.shape, dsakit.ops.npu.lightning_indexer(x, x, x), dsakit.reference.dynamic_quant(x))
tokens: list[int] = Model("folder").generate(b"text", 3)
hidden = Layer("folder", 0).prefill(np.ones((3, 64), np.float32), out=None)
names: list[str] = list(load_safetensors("file"))
status: str = dsakit.Error("sentence").status
dsakit.lightning_indexer(x, x)  # [call-arg]
dsakit.lightning_indexer(x, x, x, sparse_count="5")  # [arg-type]
dsakit.lightning_indexer(x, x, x, sparse_cuont=5)  # [call-arg]
dsakit.npu_no_such(x)  # [attr-defined]
"""


def test_a_type_checker_knows_the_package(tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "snippet.py").write_text(SNIPPET)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", tmp_path / "cache", "snippet.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    lines = SNIPPET.splitlines()
    wanted = [(i + 1, line.split("# ")[1]) for i, line in enumerate(lines) if "# [" in line]
    found = [(int(n), kind) for n, kind in re.findall(r"^snippet.py:(\d+): error: .*(\[[a-z-]+\])$", done.stdout, re.M)]
    assert found == wanted, done.stdout + done.stderr


def test_the_stub_of_the_module_has_its_names():
    stub = (GENERATOR.PACKAGE / "_core.pyi").read_text()
    functions = {n for n in vars(_core) if not n.startswith("__") and n != "operators"}
    functions -= {n + end for n in DESCRIPTION for end in ("", "_reference", "_rounded", "_check", "_straight", "_shapes")}
    assert set(re.findall(r"^(?:def|class) ((?!__)\w+)", stub, re.M)) == functions
    for name in ("Layer", "Model", "PackedWeight"):
        (text,) = re.findall(rf"^class {name}:\n((?:    .*\n)+)", stub, re.M)
        skip = ("__module__", "__new__", "__doc__", "__repr__") + (("__init__",) if name == "PackedWeight" else ())
        assert set(re.findall(r"^    def (\w+)", text, re.M)) == set(vars(getattr(_core, name))) - set(skip)
