# SPDX-License-Identifier: Apache-2.0
"""dsakit plan: sizes of the published models, what fits, and what to fetch for a part of one."""

import json
import pathlib
import sys

import pytest
from test_command import COMMAND, dsakit_command

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))
import make_checkpoints as made

CONFIGS = ROOT / "tests" / "configs"
GB = 1e9


def plan(*args):
    return json.loads(dsakit_command("plan", *args, "--json"))


PUBLISHED = {  # what is known of the models, to the digits that are known
    "deepseek-v3.2": dict(
        parameters=672,
        active_parameters=37.5,
        attention_parameters=12.3,
        experts=14848,
        expert_bytes=0.0440,
        resident_bytes=19.3,
        routed_bytes_per_token=20.4,
        int8=1.6,
        bf16=2.8,
    ),
    "glm-5": dict(
        parameters=744,
        active_parameters=40.8,
        attention_parameters=13.6,
        experts=19200,
        expert_bytes=0.0377,
        resident_bytes=20.65,
        routed_bytes_per_token=22.6,
        int8=2.0,
        bf16=3.6,
    ),
    "kimi-k2": dict(
        parameters=1026,
        active_parameters=31.7,
        attention_parameters=6.2,
        experts=23040,
        expert_bytes=0.0440,
        resident_bytes=12.7,
        routed_bytes_per_token=21.1,
        bf16=2.3,
    ),
}


def same_digits(got, known):
    """got in billions, rounded, is `known`."""
    digits = len(str(known).partition(".")[2])
    return abs(got / GB - known) <= 0.5 * 10.0**-digits


@pytest.mark.parametrize("name", PUBLISHED)
def test_sizes_of_published_models(name):
    known, got = dict(PUBLISHED[name]), plan(CONFIGS / f"{name}.json", "--memory", "64GB")
    modes = got["modes"]
    assert list(modes)[0] == "dense_bf16" and len(modes) == (4 if "int8" in known else 1)
    if "int8" in known:
        assert same_digits(modes["sparse_w8a8"]["cache_bytes"], known.pop("int8"))
        assert same_digits(modes["sparse_bf16"]["cache_bytes"], known.pop("bf16"))
    else:
        assert same_digits(modes["dense_bf16"]["cache_bytes"], known.pop("bf16"))
    assert got["experts"] == known.pop("experts")
    for key, value in known.items():
        assert same_digits(got[key], value), (key, got[key], value)


@pytest.mark.parametrize(
    "memory,held,decode,prefill",
    [
        ("64GB", 0.056, [0.15, 0.32, 0.58], [206, 88, 44]),
        ("128GB", 0.155, [0.16, 0.35, 0.62], [184, 79, 39]),
    ],
)
def test_ceilings(memory, held, decode, prefill):
    fit = plan(CONFIGS / "deepseek-v3.2.json", "--memory", memory)["modes"]["sparse_w8a8"]
    assert fit["fits"] and abs(fit["held"] - held) < 1e-3
    assert [round(x, 2) for x in fit["tokens_per_second"]] == decode
    assert [round(x) for x in fit["pass_seconds"]] == prefill


def test_everything_held_and_nothing_fits():
    config = CONFIGS / "deepseek-v3.2.json"
    fit = plan(config, "--memory", "800GB")["modes"]["sparse_w8a8"]
    assert fit["held"] == 1 and fit["pass_seconds"] == [0, 0, 0] and len(set(fit["tokens_per_second"])) == 1
    assert round(fit["tokens_per_second"][0] * 200 / 60, 1) == 5.0  # with memory of 200 GB/s
    got = plan(config, "--memory", "25 GiB")
    assert not any(mode["fits"] for mode in got["modes"].values())
    text = dsakit_command("plan", config, "--memory", "25GiB").decode()
    short = 9 * got["expert_bytes"] - got["modes"]["dense_bf16"]["expert_memory"]
    assert f"does not fit: {short / 1e9:.1f} GB more are needed" in text


@pytest.mark.parametrize("name", made.SETS)
def test_parts_of_what_is_stored(tmp_path, name):
    checkpoint = made.make(*made.SETS[name])
    got = plan(checkpoint.write(tmp_path))
    assert got["shards"] == got["shards_read"] > 3
    assert sum(part["bytes"] for part in got["parts"]) == sum(t.codes.nbytes for t in checkpoint.tensors.values())
    assert sum(part["parameters"] for part in got["parts"]) == sum(v.size for v in checkpoint.values.values())
    experts = [name for name in checkpoint.values if ".experts." in name and "layers.3." not in name]
    assert 3 * got["experts"] == len(experts)
    codes = "I8" if checkpoint.description or "compressed" in name else "F8_E4M3" if "fp8" in name else "BF16"
    codes = "BF16" if "-as-" in name else "F8_E4M3" if "mtp" in name else codes
    assert {part["format"] for part in got["parts"] if part["part"] == "routed experts"} == {codes}
    one = checkpoint.values[experts[0]].size * 3
    assert got["expert_bytes"] == one * (2 if codes == "BF16" else 1)
    assert got["routed_bytes_per_token"] == got["expert_bytes"] * 3 * 2  # 3 of 8, in two layers


def wanted_names(checkpoint, layers, attention_only):
    """The selected tensors, said another way."""
    names = []
    for name in checkpoint.tensors:
        words = name.split(".")
        if words[1] == "layers":
            inside = int(words[2]) in layers
            attention = words[3] in ("self_attn", "input_layernorm")
        else:
            inside, attention = (0 if words[1] == "embed_tokens" else 2) in layers, False
        if inside and (attention or not attention_only):
            names.append(name)
    return names


def fetch(source, here, args):
    """What a downloader does: fetch the ranges that are named until none is left. Bytes fetched."""
    fetched = 0
    for _ in range(4):
        report = plan(here, *args)
        todo = [(s["file"], r) for s in report["selected"] if s["state"] != "whole" for r in s["ranges"]]
        if not todo:
            return fetched, report
        for name, (begin, end) in todo:
            parts = here / f"{name}.parts"
            parts.mkdir(exist_ok=True)
            (parts / f"{begin}-{end}").write_bytes((source / name).read_bytes()[begin:end])
            fetched += end - begin
    raise AssertionError("length, header, tensors: there is no fourth round")


@pytest.mark.parametrize(
    "layers,attention_only", [("0-1", False), ("1,2", True), ("0-2", True), ("2", False), (None, True)]
)
@pytest.mark.parametrize("kind,form", [("v32", "fp8"), ("glm", "static"), ("k2", "fused"), ("v3", "mtp")])
def test_fetching_a_part(tmp_path, kind, form, layers, attention_only):
    checkpoint = made.make(kind, form)
    source, here = checkpoint.write(tmp_path / "source"), tmp_path / "here"
    here.mkdir()
    for path in source.glob("*.json"):
        (here / path.name).write_bytes(path.read_bytes())
    args = (["--layers", layers] if layers else []) + (["--attention-only"] if attention_only else [])

    text = dsakit_command("plan", here, *args).decode()
    assert "header unknown, fetch bytes 0..7 first" in text
    fetched, report = fetch(source, here, args)
    numbers = {"0-1": {0, 1}, "1,2": {1, 2}, "0-2": {0, 1, 2}, "2": {2}, None: {0, 1, 2}}[layers]
    wanted = wanted_names(checkpoint, numbers, attention_only)
    data = sum(checkpoint.tensors[name].codes.nbytes for name in wanted)
    assert report["selected_bytes"] == data and sum(s["tensors"] for s in report["selected"]) == len(wanted)
    headers = 0
    for shard in report["selected"]:
        length = int.from_bytes((source / shard["file"]).read_bytes()[:8], "little")
        headers += 8 + length
        assert (here / f"{shard['file']}.parts" / f"8-{8 + length}").exists()
    assert fetched == headers + data
    assert dsakit_command("plan", here, *args).decode().count("all here") == len(report["selected"])

    whole = plan(source, *args)  # the ranges of files that are here: the same bytes
    assert sum(s["bytes"] for s in whole["selected"]) == fetched
    assert {s["state"] for s in whole["selected"]} == {"whole"}


def test_page_shows_what_is_printed(monkeypatch):
    monkeypatch.chdir(ROOT)
    blocks = (ROOT / "docs" / "checkpoints.md").read_text().split("```")
    (shown,) = [block for block in blocks if block.startswith("\n$ dsakit plan tests/configs")]
    command, _, output = shown.strip().removeprefix("$ dsakit ").partition("\n")
    assert dsakit_command(*command.split()).decode().rstrip() == output


def test_config_alone_and_a_folder_without_index(tmp_path):
    config = CONFIGS / "kimi-k2.json"
    assert "no index is here" in dsakit_command("plan", config, "--attention-only").decode()
    (tmp_path / "config.json").write_bytes(config.read_bytes())
    assert plan(tmp_path, "--layers", "0") == plan(config, "--layers", "0")
    got = plan(config, "--attention-only")
    assert got["selected"] == [] and abs(got["selected_bytes"] / 6.17e9 - 1) < 0.01


def test_refusals(tmp_path):
    config = CONFIGS / "kimi-k2.json"
    for layers in ("61", "3-1", "a", "1,", "0--2", "-1", "1-", "9999999999999999999"):
        message = dsakit_command("plan", config, f"--layers={layers}", status=2)
        assert message == f"plan: layers is {layers}, wanted numbers and ranges within 0..60, such as 0-3,7\n"
    for size in ("0", "-1", "many", "1 kb", "1e400", "nan", "64GBs"):
        assert f"--memory: is '{size}'" in dsakit_command("plan", config, f"--memory={size}", status=2)
    dsakit_command("plan", tmp_path, status=3)

    folder = made.make("k2", "float").write(tmp_path)
    shard = sorted(folder.glob("*.safetensors"))[0]
    data = shard.read_bytes()
    shard.unlink()
    parts = folder / f"{shard.name}.parts"
    parts.mkdir()
    (parts / "0-8").write_bytes(data[:7])
    message = dsakit_command("plan", folder, status=3)
    assert f"{shard.name}.parts/0-8 has 7 bytes, wanted 8 (its name)" in message
    (parts / "0-8").write_bytes(bytes([255] * 8))
    assert "header length" in dsakit_command("plan", folder, status=3)
    (parts / "0-8").unlink()
    (parts / "0-8.incomplete").write_bytes(data[:3])  # a downloader's own
    assert plan(folder)["shards_read"] == plan(folder)["shards"] - 1


@pytest.fixture
def w8a8(tmp_path):
    """DeepSeek-V3.2 as published W8A8 checkpoints have it: in attention, kv_b_proj and the indexer are not quantised."""
    config = json.loads((CONFIGS / "deepseek-v3.2.json").read_text())
    del config["quantization_config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    modules = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj")
    description = {f"model.layers.{i}.self_attn.{m}.weight": "W8A8_DYNAMIC" for i in range(61) for m in modules}
    (tmp_path / "quant_model_description.json").write_text(json.dumps(description))
    return tmp_path


def ranks(path, count, *args):
    return plan(path, "--ranks", count, "--memory", "256GB", *args)["parallel"]


def grid_of(report, name):
    (grid,) = [grid for grid in report["grids"] if grid["parallel"] == name]
    return grid


@pytest.mark.parametrize(
    "grid,options,exchanges,received,at_128k,at_1m",
    [
        ("kv=1", [], 0, 0, 157, 387),
        ("heads=8", [], 6, 89, 27.0, 55.7),
        ("heads=8", ["--prolog", "copy"], 4, 74, 37.1, 65.8),
        ("kv=8", [], 7, 1265, 33.7, 62.3),
        ("kv=8", ["--exchange", "partials"], 8, 448, 30.6, 59.3),
        ("kv=64", [], 7, 1464, 24.2, 27.8),
    ],
)
def test_ranks_golden(w8a8, grid, options, exchanges, received, at_128k, at_1m):
    for context, known in ((131072, at_128k), (1048576, at_1m)):
        count = grid.partition("=")[2]
        got = grid_of(ranks(w8a8, count, "--attention-only", "--context", context, *options), grid)
        assert abs(1e3 * got["seconds"] / known - 1) < 0.05
        assert got["messages"] == 61 * exchanges and round(got["received_bytes"] / 61e3) == received


def test_every_grid_fastest_first():
    report = ranks(CONFIGS / "deepseek-v3.2.json", 12)
    grids = report["grids"]
    assert {(g["kv"], g["heads"], g["query"]) for g in grids} == {
        (c, h, 12 // c // h) for c in range(1, 13) for h in range(1, 13) if 12 % (c * h) == 0
    }
    assert [g["seconds"] for g in grids] == sorted(g["seconds"] for g in grids)
    assert report["best"] == grids[0]["parallel"] and grids[0]["fits"]
    assert report["context"] == 32768 and report["rows"] == 1 and report["mode"] == "sparse_w8a8"
    for g in grids:
        assert abs(sum(g["terms"].values()) / g["seconds"] - 1) < 1e-12
        assert g["messages"] == sum(e["messages"] for e in g["exchanges"].values())
    whole = grid_of(report, "heads=12")["exchanges"]
    assert whole["mlp_hidden"]["messages"] == 61 and whole["logits"]["messages"] == 1
    assert abs(whole["mlp_hidden"]["received_bytes"] - 61 * 73728 * 11 / 12) < 1


def test_network_machine_and_mode(tmp_path):
    config = CONFIGS / "deepseek-v3.2.json"
    limits = tmp_path / "bench.json"
    entry = {"threads": 2, "bytes_per_second": 400e9, "i8_ops_per_second": 8e12, "bf16_flops_per_second": 4e12}
    limits.write_text(json.dumps([{**entry, "threads": 1, "bytes_per_second": 1}, entry]))
    usual = grid_of(ranks(config, 8), "heads=8")["terms"]
    other = grid_of(
        ranks(config, 8, "--net", "25GB/s", "--latency", "0.01 ms", "--machine", limits, "--merge", "two"), "heads=8"
    )["terms"]
    for term, factor in dict(weights=2, index=2, attention=2, transfer=2, latency=0.5, merge=1, rest=1).items():
        assert abs(usual[term] / other[term] / factor - 1) < 1e-12
    dense = grid_of(ranks(CONFIGS / "kimi-k2.json", 8, "--mode", "dense_bf16"), "kv=8")
    assert set(dense["exchanges"]) >= {"queries", "attention"} and "index_queries" not in dense["exchanges"]
    assert ranks(CONFIGS / "kimi-k2.json", 2)["mode"] == "dense_bf16"


def test_memory_of_a_rank(w8a8):
    def one(*args):
        return grid_of(plan(w8a8, "--ranks", 8, "--context", 131072, *args)["parallel"], "heads=8")

    assert one("--memory", "1TB")["held"] == 1
    some, none = one("--memory", "64GB"), one("--memory", "10GB")
    assert 0 < some["held"] < 1 and some["fits"] and some["terms"]["disk"] > 0
    assert abs(some["memory"] - 58e9) < 1
    assert not none["fits"] and none["missing"] > 0
    report = plan(w8a8, "--ranks", 8, "--memory", "7GB")["parallel"]
    assert report["best"] is None
    text = dsakit_command("plan", w8a8, "--ranks", 8, "--memory", "7GB").decode()
    assert "no grid fits" in text and text.count("GB more are needed") == len(report["grids"]) + 4  # and four modes
    assert "best: --parallel heads=8\n" in dsakit_command("plan", w8a8, "--ranks", 8, "--memory", "1TB").decode()


def test_page_of_processes_shows_what_is_planned():
    sys.path.insert(0, str(ROOT / "scripts"))
    import plan_ranks

    plans = plan_ranks.plans(COMMAND)
    docs = ROOT / "docs"
    shown = (docs / "distributed.md").read_text().partition(plan_ranks.BEGIN)[2].partition(plan_ranks.END)[0]
    assert shown == "\n" + plan_ranks.tables(plans)
    assert (docs / "distributed.svg").read_text() == plan_ranks.picture(plans)


def test_refusals_of_ranks(tmp_path):
    config = CONFIGS / "deepseek-v3.2.json"

    def refused(*args, status=2):
        return dsakit_command("plan", config, *args, status=status)

    for count in ("0", "-1", "many", "1025"):
        assert f"--ranks: is '{count}'" in refused(f"--ranks={count}")
    for option, value in (("--net", "fast"), ("--net", "0Gb"), ("--latency", "5"), ("--context", "0"), ("--rows", "0")):
        assert f"{option}: is '{value}'" in refused("--ranks", 2, f"{option}={value}")
    for option, value in (("--net", "1Gb"), ("--context", "1"), ("--mode", "dense_bf16"), ("--index", "kv")):
        assert f"{option} requires --ranks" in refused(option, value)
    assert "excludes" in refused("--ranks", 2, "--layers", "0")
    assert refused("--ranks", 2, "--exchange", "row") == "plan: exchange is row, wanted rows or partials\n"
    assert refused("--ranks", 2, "--index", "none") == "plan: index is none, wanted all, kv or copy\n"
    assert "mode is sparse" in refused("--ranks", 2, "--mode", "sparse")
    limits = tmp_path / "bench.json"
    refused("--ranks", 2, "--machine", limits, status=3)
    for text, got in (
        ("{}", "is no list of limits"),
        ("[", "is no list of limits"),
        ("[{}]", "has no bytes_per_second above 0"),
        ('[{"bytes_per_second": 1, "i8_ops_per_second": 0}]', "has no i8_ops_per_second above 0"),
    ):
        limits.write_text(text)
        message = refused("--ranks", 2, "--machine", limits, status=3)
        assert message == f"plan: machine {got}, wanted what `dsakit bench limits --json` prints\n"
