# SPDX-License-Identifier: Apache-2.0
"""dsakit plot: what every kind shows, and how it looks."""

import io
import json
import pathlib
import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import ml_dtypes
import numpy as np
import pytest

import dsakit
from dsakit import debug
from dsakit.debug import gather
from dsakit.debug.picture import DARK, LINES, PAPER

Image = pytest.importorskip("PIL.Image")
PROGRAM = pathlib.Path(dsakit.__file__).parent / "bin" / "dsakit"
SCRIPT = pathlib.Path(sys.executable).parent / "dsakit"
BF16 = ml_dtypes.bfloat16


def indexer(layout="PA_BSND", k=12, rows=20, keys=60):
    """The last rows of a sequence; keys in pages of 8, in mixed order, or as one piece."""
    random = np.random.default_rng(11)
    case = debug.Case(
        "dsakit.quant_lightning_indexer", {"sparse_count": k, "layout_query": "TND", "layout_key": layout}
    )
    case["in.query"] = random.integers(-127, 128, (rows, 4, 32), np.int8)
    case["in.weights"] = random.uniform(0.1, 1, (rows, 4)).astype(np.float16)
    case["in.query_dequant_scale"] = random.uniform(0.01, 0.05, (rows, 4)).astype(np.float16)
    flat = random.integers(-127, 128, (keys, 1, 32), np.int8)
    scales = random.uniform(0.01, 0.05, (keys, 1)).astype(np.float16)
    case["in.actual_seq_lengths_query"] = np.array([rows], np.int32)
    case["in.actual_seq_lengths_key"] = np.array([keys], np.int32)
    if layout == "PA_BSND":
        pages = -(-keys // 8)
        table = random.permutation(pages).astype(np.int32)
        pool, pool_scales = np.zeros((pages * 8, 1, 32), np.int8), np.zeros((pages * 8, 1), np.float16)
        at = table[np.arange(keys) // 8] * 8 + np.arange(keys) % 8
        pool[at], pool_scales[at] = flat, scales
        flat, scales = pool.reshape(pages, 8, 1, 32), pool_scales.reshape(pages, 8, 1)
        case["in.block_table"] = table[None]
    case["in.key"], case["in.key_dequant_scale"] = flat, scales
    case["out.sparse_indices"] = case.run(reference=True).results["out.sparse_indices"]
    return case


def attention(operator, whole=False, layout="PA_BSND", sinks=False):
    """Six rows of 5 heads over 40 keys in pages of 8; lists of 10, or with `whole` of everything that is seen."""
    random = np.random.default_rng(4)
    rows, heads, keys, latent, rope = 6, 5, 40, 16, 8
    query = random.standard_normal((rows, heads, latent)).astype(BF16)
    query_rope = random.standard_normal((rows, heads, rope)).astype(BF16)
    table = random.permutation(5).astype(np.int32)[None]
    seen = [keys - rows + i + 1 for i in range(rows)]
    width = keys if whole else 10
    lists = np.full((rows, width), -1, np.int32)
    for i, n in enumerate(seen):
        lists[i, : min(n, width)] = np.arange(n) if whole else random.permutation(n)[:width]
    codes = random.integers(-127, 128, (5, 8, 1, latent), np.int8)
    key_rope = random.standard_normal((5, 8, 1, rope)).astype(BF16)
    scales = random.uniform(0.005, 0.02, (5, 8, 1, 2)).astype(np.float32)
    if operator == "sparse_flash_attention_quant":
        attributes = {"b": 1, "s1": rows, "nq": heads, "softmax_scale": 0.3, "topk": width, "block_size": 8}
        case = debug.Case("dsakit." + operator, attributes)
        tensors = {"query_nope": query.reshape(-1, latent), "query_rope": query_rope.reshape(-1, rope)}
        tensors |= {"key_nope_2d": codes.reshape(-1, latent), "key_rope_2d": key_rope.reshape(-1, rope)}
        tensors |= {"k_nope_scales": scales.reshape(-1, 2), "topk_indices": lists, "block_table": table}
        tensors |= {"kv_act_seqs": np.array([keys], np.int32)}
    else:
        attributes = {"scale_value": 0.3, "layout_query": "TND", "layout_kv": layout, "attention_mode": 2}
        tensors = {"sparse_indices": lists[:, None], "actual_seq_lengths_query": np.array([rows], np.int32)}
        tensors |= {"actual_seq_lengths_kv": np.array([keys], np.int32)}
        if operator == "sparse_flash_attention":
            value = (codes.astype(np.float32) * np.repeat(scales, latent // 2, -1)).astype(BF16)
            if layout == "TND":
                value, key_rope = value.reshape(-1, 1, latent), key_rope.reshape(-1, 1, rope)
            tensors |= {"query": query, "query_rope": query_rope, "key": value, "value": value, "key_rope": key_rope}
        else:
            attributes |= {"key_quant_mode": 2, "value_quant_mode": 2, "tile_size": 8, "rope_head_dim": rope}
            rows_ = dsakit.pack_kv_rows(codes, key_rope, scales)
            tensors |= {"query": np.concatenate([query, query_rope], -1), "key": rows_, "value": rows_}
        if layout == "PA_BSND":
            tensors["block_table"] = table
        if sinks:
            tensors["sinks"] = random.standard_normal(heads).astype(np.float32)
        case = debug.Case("dsakit." + operator, attributes)
    for name, value in tensors.items():
        case["in." + name] = value
    case["out.attention_out"] = case.run(reference=True).results["out.attention_out"]
    return case


def times():
    """Dense 1 ms per 1024 keys; sparse 3 ms, 1 ms of it in the indexer at 16K: they meet at 3K, 5 % apart at 3.15K."""
    rows = []
    for context in (1024, 2048, 4096, 16384):
        for threads in (1, 2):
            scale = 1e-3 / threads
            index = scale * context / 16384
            for operator, seconds, i8, bf16 in (
                ("fused_infer_attention_score_v2", scale * context / 1024, 0, 3e5 * context),
                ("sparse_flash_attention", 3 * scale - index, 0, 3e5 * 2048),
                ("quant_lightning_indexer", index, 16384 * context, 0),
            ):
                moved, ops = 1152 * context if i8 == 0 else 130 * context, i8 + bf16
                rows.append(
                    {"operator": operator, "size": f"t=1 context={context}", "threads": threads, "isa": "avx512",
                     "seconds": seconds, "bytes": moved, "i8_ops": i8, "bf16_flops": bf16,
                     "bytes_per_second": moved / seconds, "ops_per_second": ops / seconds,
                     "floor_seconds": 0.5 * seconds, "share_of_floor": 0.5}
                )  # fmt: skip
    return rows


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """For each kind something to show, as files."""
    folder = tmp_path_factory.mktemp("cases")
    indexer().save(folder / "indexer.safetensors")
    attention("sparse_flash_attention").save(folder / "attention.safetensors")
    (folder / "bench.json").write_text(json.dumps(times()))
    of = dict.fromkeys(("selection", "profile", "codes"), "indexer.safetensors")
    of |= dict.fromkeys(("mass", "recency", "heads", "ulp"), "attention.safetensors")
    of |= dict.fromkeys(("latency", "roofline"), "bench.json")
    return {kind: folder / name for kind, name in of.items()}


def texts(svg):
    """The words of a picture, and the sizes in which they are set."""
    words, sizes = [], []
    for one in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text"):
        words.append("".join(one.itertext()))
        sizes.append(float(re.search(r"([\d.]+)px", one.get("style"))[1]))
    return words, sizes


def test_every_kind_is_there(sources):
    assert sorted(debug.KINDS) == sorted(sources)


@pytest.mark.parametrize("kind", debug.KINDS)
def test_labels_units_and_source(kind, sources):
    picture = debug.plot(kind, sources[kind])
    svg = picture.svg()
    words, sizes = texts(svg)
    assert min(sizes) >= 9
    assert any(w.startswith("n = ") and re.search(r"\d", w) for w in words)
    assert any(f"source: {sources[kind].name}" in w for w in words)
    (axis, *_) = picture.figure.axes
    units = r"tokens|keys|ULP|steps|best = 1|no unit|number|count|s, ms, us|GOP/s|a byte"
    for label in (axis.get_xlabel(), axis.get_ylabel()):
        assert re.search(rf"\(.*({units}).*\)|^share|mass|recall", label), label
        assert label in words
    assert len(picture.alt) > 80 and re.search(r"\d", picture.alt)
    root = ET.fromstring(svg)
    assert root.get("role") == "img"
    assert root.findtext("{http://www.w3.org/2000/svg}desc") == picture.alt
    assert not re.search(r'(href|src)="(?!data:|#)', svg)  # nothing is fetched
    assert picture.svg() == svg == debug.plot(kind, sources[kind]).svg()
    assert picture.png() == debug.plot(kind, sources[kind]).png()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("kind", debug.KINDS)
def test_ink_in_colour_and_grey(kind, dark, sources):
    """Something is drawn inside the axes, and it can be seen without colours."""
    picture = debug.plot(kind, sources[kind], dark=dark)
    image = Image.open(io.BytesIO(picture.png()))
    assert image.info["Description"] == picture.alt
    grey = np.asarray(image.convert("L")).astype(int)
    paper = tuple(int((DARK[PAPER] if dark else PAPER)[i : i + 2], 16) for i in (1, 3, 5))
    assert image.convert("RGB").getpixel((1, 1)) == paper
    box = picture.figure.axes[0].get_position()
    height, width = grey.shape
    inside = grey[int((1 - box.y1) * height) : int((1 - box.y0) * height), int(box.x0 * width) : int(box.x1 * width)]
    assert (np.abs(inside - grey[1, 1]) > 60).mean() > 0.004


def test_lines_differ_in_colour_dash_and_marker(sources):
    for kind in ("mass", "recency", "latency"):
        for dark in (False, True):
            lines = debug.plot(kind, sources[kind], dark=dark).figure.axes[0].lines
            known = {DARK[c] if dark else c for c in LINES}
            lines = [a for a in lines if a.get_color() in known]
            assert len(lines) >= 3
            looks = {(a.get_color(), a.get_linestyle(), a.get_marker(), str(a._dash_pattern)) for a in lines}
            for part in (0, 2, 3):
                assert len({look[part] for look in looks}) == len(lines)


def test_an_svg_follows_the_reader(sources):
    svg = debug.plot("mass", sources["mass"]).svg()
    style = re.search(r"<style>(@media \(prefers-color-scheme: dark\).*?)</style>", svg, re.S)[1]
    for light in set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", svg.replace(style, ""))):
        assert f'"fill: {light}"' in style and f"{DARK[light]} !important" in style
    assert "@media" not in debug.plot("mass", sources["mass"], dark=True).svg()


# ---- the numbers


@pytest.mark.parametrize("layout", ["PA_BSND", "TND"])
def test_rows_see_what_the_operator_says(layout):
    case = indexer(layout)
    rows = gather.query_rows(gather.Call(case))
    assert [r.visible for r in rows] == [len(s) for s in case.index_scores([r.number for r in rows])]
    assert [r.position for r in rows] == list(range(40, 60))
    for row, scores in zip(rows, case.index_scores([r.number for r in rows])):
        best = gather.list_of(gather.Call(case), row, gather.lists(gather.Call(case)))
        assert set(best) == set(np.argsort(-scores, kind="stable")[:12])


@pytest.mark.parametrize(
    "operator,layout,sinks",
    [
        ("sparse_flash_attention", "PA_BSND", False),
        ("sparse_flash_attention", "TND", False),
        ("sparse_flash_attention", "PA_BSND", True),
        ("kv_quant_sparse_flash_attention", "PA_BSND", False),
        ("sparse_flash_attention_quant", "PA_BSND", False),
    ],
)
def test_the_softmax_is_the_operators(operator, layout, sinks):
    """Over all visible keys, times their latents, it is the result of a call whose list has them all."""
    case = attention(operator, whole=True, layout=layout, sinks=sinks)
    over = gather.Attention(gather.Call(case))
    result = case["out.attention_out"].reshape(6, 5, 16).astype(np.float64)
    for row in over.rows:
        mine = over.softmax(row) @ over._matrix(row)[:, :16]
        np.testing.assert_allclose(mine, result[row.number], rtol=2**-7, atol=2e-3)
    assert debug.plot("mass", case).alt.count("100.0 %") == (0 if sinks else 4)


def test_pages_that_are_not_stored_are_named():
    case = attention("sparse_flash_attention")
    listed = case["in.sparse_indices"]
    listed[:] = [[*range(8), -1, -1]]  # the first page
    case["in.sparse_indices"] = listed
    case["pages.key"] = case["in.block_table"][0, :1].astype(np.int64)
    for key in ("in.key", "in.value", "in.key_rope"):
        full = case[key]
        case[key] = full[case["pages.key"]]
        case.set_layout(key, pages="pages.key", full=list(full.shape))
    with pytest.raises(dsakit.Error, match=r"in.key has 4 of the 5 visible pages not stored, wanted all .*whole"):
        debug.plot("mass", case)
    assert "selected" in debug.plot("selection", case).alt  # of the lists alone


def test_a_starved_head_is_named():
    case = attention("sparse_flash_attention")
    query = case["in.query"]
    query[:, 3] = 0  # with a rope part of nothing: a flat softmax, of which ten of about 38 keys hold a quarter
    rope = case["in.query_rope"]
    rope[:, 3] = 0
    listed = case["in.sparse_indices"]
    over = gather.Attention(gather.Call(case))
    for row in over.rows:  # the others find their best keys in the list
        listed[row.number, 0] = np.argsort(-np.delete(over.softmax(row), 3, 0).mean(0))[:10]
    case["in.query"], case["in.query_rope"], case["in.sparse_indices"] = query, rope, listed
    alt = debug.plot("heads", case).alt
    assert "worst is head 3 with 26" in alt and "its own best list would hold 26" in alt


def test_tails_of_a_fault_are_seen():
    case = attention("sparse_flash_attention")
    assert "at most 0 ULP, 0.00 % beyond" in debug.plot("ulp", case).alt
    wrong = case["out.attention_out"]
    wrong[0] *= BF16(1.5)
    case["out.attention_out"] = wrong
    share = float(re.search(r"([\d.]+) % beyond one", debug.plot("ulp", case).alt)[1])
    assert 14 < share < 17  # a row of six
    wrong[1, 0, :3] = BF16("nan")
    case["out.attention_out"] = wrong
    assert "attention_out, bfloat16: 3 not finite" in debug.plot("ulp", case).alt


def test_codes_count_zeros_and_the_ends():
    case = debug.Case("dsakit.dynamic_quant")
    case["in.x"] = np.ones((4, 100), BF16)
    codes = np.full((4, 100), 5, np.int8)
    codes[0, :50], codes[1, :4] = 0, 127
    case["out.y"] = codes
    assert "dynamic_quant, y: 12.5 % zeros, 1.00 % at -128, -127 or 127" in debug.plot("codes", case).alt


def test_recall_against_what_was_there_before_quantisation():
    case = indexer("TND")
    case["float.query"] = case["in.query"].astype(np.float32) * case["in.query_dequant_scale"][..., None].astype(
        np.float32
    )
    scale = case["in.key_dequant_scale"][..., None].astype(np.float32)
    case["float.key"] = case["in.key"].astype(np.float32) * scale
    for kind in ("mass", "recency"):
        assert "100.00 %" in debug.plot(kind, case).alt
    case["float.key"] = case["float.key"][::-1].copy()
    assert "100.00 %" not in debug.plot("mass", case).alt


def test_the_crossing_is_where_the_lines_meet(sources):
    picture = debug.plot("latency", sources["latency"])
    assert "Sparse attention is faster by 5 % and more from about 3.2K tokens on" in picture.alt
    assert "dense takes 8 ms, sparse with its indexer 1.5 ms, 5 times less" in picture.alt  # two threads
    assert "The median reaches 50 % of its limit" in debug.plot("roofline", sources["roofline"]).alt


def test_roofs_are_those_of_the_machine_where_they_were_measured(sources, tmp_path):
    limits = {
        "threads": 2,
        "bytes_per_second": 5e9,
        "i8_ops_per_second": 4e11,
        "bf16_flops_per_second": 2e11,
        "rungs": {},
    }
    (tmp_path / "limits.json").write_text(json.dumps([limits]))
    words, _ = texts(debug.plot("roofline", sources["roofline"], tmp_path / "limits.json").svg())
    assert "limits measured: memory 5.0 GB/s, int8 400 GOP/s, bf16 200 GOP/s" in words


def test_wanted_results_are_those_of_the_same_operator():
    case, other = attention("sparse_flash_attention"), attention("sparse_flash_attention")
    other["out.attention_out"] = -other["out.attention_out"]
    assert "100.00 % beyond one" in debug.plot("ulp", case, ref=other).alt
    assert case.keys("ref") == []  # it stays as it is
    for wrong, says in ((indexer(), r"a call of sparse_flash_attention .*\[CASE_CALL\]"), (case, None)):
        if says is None:
            del wrong["out.attention_out"]
            says = r"group out is empty.*\[CASE_MISSING\]"
        with pytest.raises(dsakit.Error, match=says):
            case.copy().want_results(wrong)


# ---- refusals and the command


def test_refusals(sources, tmp_path):
    for arguments, says in (
        (("pie", sources["mass"]), "kind is 'pie', wanted selection, profile"),
        (("mass",), "sources are none"),
        (("heads", sources["profile"]), "heads has quant_lightning_indexer, wanted a call of sparse_flash_attention"),
        (("mass", sources["profile"]), "group float lacks query or key"),
        (("profile", sources["mass"]), "wanted a call of lightning_indexer"),
        (("latency", sources["mass"]), "is no list of times, wanted what dsakit bench --json prints"),
        (("mass", tmp_path), "holds no case"),
        (("mass", tmp_path / "none"), "cannot be opened"),
    ):
        with pytest.raises(dsakit.Error, match=re.escape(says)):
            debug.plot(*arguments)
    with pytest.raises(dsakit.Error, match="output is x.gif, wanted a file"):
        debug.plot("mass", sources["mass"], output=tmp_path / "x.gif")
    with pytest.raises(dsakit.Error, match="row is 99"):
        debug.plot("mass", sources["mass"], row=99)


def test_the_command_of_the_wheel_draws(sources, tmp_path):
    out = tmp_path / "x.svg"
    done = subprocess.run([SCRIPT, "plot", "mass", sources["mass"], "-o", out], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.strip() == debug.plot("mass", sources["mass"]).alt
    assert out.read_text() == debug.plot("mass", sources["mass"]).svg()
    for arguments, code in ((["mass", sources["profile"], "-o", out], 3), (["pie", out, "-o", out], 2), (["mass"], 2)):
        done = subprocess.run([SCRIPT, "plot", *arguments], capture_output=True, text=True)
        assert done.returncode == code and done.stderr and not done.stdout


def test_without_the_extra_it_is_named(sources, tmp_path):
    program = "import sys; sys.modules['matplotlib'] = None; from dsakit.debug.__main__ import main; sys.exit(main())"
    arguments = ["plot", "mass", sources["mass"], "-o", tmp_path / "x.svg"]
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (
        2, "plot: matplotlib is not installed, wanted pip install 'dsakit[plot]'\n"
    )  # fmt: skip


@pytest.mark.parametrize(
    "arguments",
    [["plot", "mass", "f", "-o", "x.svg"], ["report", "f", "-o", "x.html"], ["import", "f", "-o", "x"]],
    ids=str,
)
def test_the_bare_program_names_the_extra(arguments):
    done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True)
    package = "dsakit" if arguments[0] == "import" else "dsakit[plot]"
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == f"{arguments[0]}: this program has no Python, wanted the command of pip install '{package}'\n"


def test_both_commands_describe_the_same_options():
    from dsakit.debug.__main__ import parsers

    for name, parser in parsers("dsakit").items():
        done = subprocess.run([PROGRAM, name, "--help"], capture_output=True, text=True, check=True)
        said = set(re.findall(r"^\s+(?:-\w,)?(--[\w-]+)", done.stdout, re.M)) - {"--help"}
        have = {o for a in parser._actions for o in a.option_strings if o.startswith("--")} - {"--help"}
        assert said == have, name
        if name == "plot":
            assert all(kind in done.stdout for kind in debug.KINDS)
