# SPDX-License-Identifier: Apache-2.0
"""dsakit convert: the numbers it writes, what it refuses, and what is left when something gives way."""

import fcntl
import json
import pathlib
import re
import resource
import shutil
import subprocess
import sys

import numpy as np
import pytest
from test_command import COMMAND, dsakit_command
from test_plan import fetch, wanted_names

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tests"))
import make_checkpoints as made

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors")

SMALL = ("--shard-size", "200KB")
SOURCES = ["v32-" + form for form in made.FORMS] + ["glm-fp8", "v3-compressed", "k2-fused", "glm-static"]
INT8 = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "wq_b", "gate_proj", "up_proj", "down_proj")


def converted(source, out, *args, status=0):
    return dsakit_command("convert", source, out, *args, status=status)


def read(folder):
    """Name -> (dtype as the file spells it, numpy codes) of all shards, index and headers agreeing."""
    (index,) = folder.glob("*.safetensors.index.json")
    weight_map, tensors = json.loads(index.read_text())["weight_map"], {}
    for path in sorted(folder.glob("*.safetensors")):
        with safetensors.safe_open(path, "pt") as file:
            for name in file.keys():
                assert weight_map[name] == path.name
                t = file.get_tensor(name)
                wide = {torch.bfloat16: torch.uint16, torch.float8_e4m3fn: torch.uint8}
                codes = t.view(wide.get(t.dtype, t.dtype))
                tensors[name] = (file.get_slice(name).get_dtype(), codes.numpy())
    assert tensors.keys() == weight_map.keys()
    return tensors


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def without_mtp(names):
    return {name for name in names if "layers.3." not in name}


def statics(name):
    return ("--static", "dequantise") if "static" in name else ()


@pytest.mark.parametrize("name", SOURCES)
def test_bf16_is_what_a_reader_would_get(tmp_path, name):
    checkpoint = made.make(*made.SETS[name])
    converted(checkpoint.write(tmp_path / "in"), tmp_path / "out", "--format", "bf16", *SMALL, *statics(name))
    tensors = read(tmp_path / "out")
    assert tensors.keys() == without_mtp(checkpoint.values)
    for key, (dtype, codes) in tensors.items():
        stored = checkpoint.tensors.get(key)
        kept = stored and stored.dtype == "F32"
        assert dtype == ("F32" if kept else "BF16")
        got = codes if kept else made.from_bf16(codes)
        assert np.array_equal(got, checkpoint.values[key]), key
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    expected = {k: v for k, v in checkpoint.config.items() if k != "quantization_config"}
    assert config == {**expected, "num_nextn_predict_layers": 0}
    shards = list((tmp_path / "out").glob("*.safetensors"))
    assert len(shards) > 5 and max(path.stat().st_size for path in shards) < 220_000
    dsakit_command("inspect", tmp_path / "out")


@pytest.mark.parametrize("name", SOURCES)
def test_w8a8_is_quantised_once(tmp_path, name):
    checkpoint = made.make(*made.SETS[name])
    converted(checkpoint.write(tmp_path / "in"), tmp_path / "out", "--format", "w8a8", *SMALL, *statics(name))
    tensors = read(tmp_path / "out")
    description = json.loads((tmp_path / "out" / "quant_model_description.json").read_text())
    assert description.pop("model_quant_type") == "W8A8_DYNAMIC"
    assert description.keys() - {"version", "group_size"} == tensors.keys()
    for key in without_mtp(checkpoint.values):
        dtype, codes = tensors[key]
        value, module = checkpoint.values[key], key.removesuffix(".weight")
        if module.split(".")[-1] not in INT8 or value.ndim != 2:
            assert dtype in ("BF16", "F32") and description[key] == "FLOAT"
            assert np.array_equal(made.from_bf16(codes) if dtype == "BF16" else codes, value), key
            continue
        assert dtype == "I8" and description[key] == description[f"{module}.weight_scale"] == "W8A8_DYNAMIC"
        stored = checkpoint.tensors.get(key)
        if stored and stored.dtype == "I8" and f"{module}.deq_scale" not in checkpoint.tensors:  # as it was
            wanted = stored.codes, checkpoint.tensors[f"{module}.weight_scale"].values().reshape(-1, 1)
        else:
            wanted = [part.codes for part in made.int8_codes(value)]
        assert np.array_equal(codes, wanted[0]) and np.array_equal(tensors[f"{module}.weight_scale"][1], wanted[1])
        assert not tensors[f"{module}.weight_offset"][1].any()
    again = tmp_path / "again"
    converted(tmp_path / "out", again, "--format", "w8a8", *SMALL)
    assert {k: v for k, v in contents(again).items() if k != "convert.json"} == {
        k: v for k, v in contents(tmp_path / "out").items() if k != "convert.json"
    }


@pytest.mark.parametrize("name", ["v32-fp8", "glm-fused", "k2-dynamic"])
def test_w8a8_of_attention_alone(tmp_path, name):
    """--mlp bf16: the numbers of MLPs and experts, whatever they are stored as; attention as ever."""
    checkpoint = made.make(*made.SETS[name])
    source, out = checkpoint.write(tmp_path / "in"), tmp_path / "out"
    converted(source, out, "--format", "w8a8", "--mlp", "bf16", "--weights", "bf16", *SMALL)
    converted(source, tmp_path / "all", "--format", "w8a8", *SMALL)
    tensors, whole = read(out), read(tmp_path / "all")
    description = json.loads((out / "quant_model_description.json").read_text())
    for key, (dtype, codes) in tensors.items():
        if ".mlp." not in key:
            assert dtype == whole[key][0] and np.array_equal(codes, whole[key][1])
            continue
        assert description[key] == "FLOAT" and dtype in ("BF16", "F32")
        assert np.array_equal(made.from_bf16(codes) if dtype == "BF16" else codes, checkpoint.values[key])
    assert "W8A8_DYNAMIC" in {description[key] for key in tensors}
    args = ("--mode", "dense_bf16", "--text", "-", "--json")
    said = [json.loads(dsakit_command("run", f, *args, stdin=b"Some text." * 9)) for f in (out, tmp_path / "all")]
    bits = [report["modes"]["dense_bf16"]["bits_per_token"] for report in said]
    assert bits[0] > 0 and 0 < abs(bits[0] - bits[1]) < 0.05 * bits[1]

    converted(source, out, "--format", "w8a8", "--mlp", "bf16", *SMALL)  # nothing is left to do
    for same in ((), ("--mlp", "int8")):
        message = converted(source, out, "--format", "w8a8", *same, *SMALL, status=3)
        assert "convert.json: int8_mlp is false, wanted true" in message
    converted(source, tmp_path / "all", "--format", "w8a8", "--mlp", "int8", *SMALL)


@pytest.mark.parametrize("name", ["v32-fp8", "glm-fused", "k2-dynamic", "v3-mtp"])
def test_packed_is_the_same_model(tmp_path, name):
    """Experts in blocks, everything else as it was: the same bits, whatever memory holds."""
    checkpoint = made.make(*made.SETS[name])
    source, out = checkpoint.write(tmp_path / "in"), tmp_path / "out"
    converted(source, out, "--format", "packed", *SMALL)
    tensors, experts = read(out), 0
    kept = {k: t for k, t in checkpoint.tensors.items() if ".mlp.experts." not in k and "layers.3." not in k}
    for key, (dtype, codes) in tensors.items():
        if key in kept:
            wanted = kept.pop(key)
            assert dtype == wanted.dtype and codes.tobytes() == wanted.codes.tobytes()
            continue
        assert re.fullmatch(r"model\.layers\.[12]\.mlp\.experts\.packed", key) and len(codes) == 8
        assert dtype == "U8" and codes.shape[1] % 4096 == 0
        (path,) = [p for p in out.glob("*.safetensors") if key.encode() in p.read_bytes()[:4096]]
        assert int.from_bytes(path.read_bytes()[:8], "little") % 4096 == 4088  # data begin at a multiple of 4096
        experts += 1
    assert not kept and experts == 2
    args = ("--mode", "dense_bf16", "--text", "-", "--json")
    bits, block = [], tensors["model.layers.1.mlp.experts.packed"][1].shape[1]
    for folder, more in ((source, ()), (out, ()), (out, ("--expert-memory", 5 * block))):
        report = json.loads(dsakit_command("run", folder, *args, *more, stdin=b"A text of bytes." * 9))
        bits.append(report["modes"]["dense_bf16"]["bits_per_token"])
    assert bits[0] == bits[1] == bits[2] > 0
    assert report["experts"]["read"] > 0
    plan = json.loads(dsakit_command("plan", out, "--json"))
    assert plan["expert_bytes"] == pytest.approx(block, rel=1e-3)
    converted(out, tmp_path / "again", "--format", "packed", *SMALL)
    ours = contents(out)
    assert {k for k, v in contents(tmp_path / "again").items() if v != ours[k]} == {"convert.json"}
    message = converted(out, tmp_path / "back", "--format", "bf16", status=3)
    assert "experts.0.gate_proj.weight is missing" in message


@pytest.mark.parametrize("kind", made.KINDS)
def test_transformers_loads_it(tmp_path, kind):
    """The logits of a float checkpoint of the same numbers, bit for bit."""
    transformers = pytest.importorskip("transformers")
    changes = {"model_type": "deepseek_v3"} if kind == "k2" else {}  # the same code; it has no kimi_k2
    made.make(kind, "fp8", **changes).write(tmp_path / "fp8")
    made.make(kind, "fp8-as-float", **changes).write(tmp_path / "float")
    converted(tmp_path / "fp8", tmp_path / "out", "--format", "bf16")
    logits = []
    for folder in ("float", "out"):
        model, report = transformers.AutoModelForCausalLM.from_pretrained(
            tmp_path / folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
        )
        assert not report["missing_keys"] and not report["unexpected_keys"], report
        with torch.no_grad():
            logits.append(model.eval()(torch.arange(60)[None], use_cache=False).logits)
    assert torch.equal(*logits)


@pytest.mark.parametrize("layers,attention_only", [("1", False), ("0,2", True), (None, True)])
@pytest.mark.parametrize("name", ["v32-fp8", "glm-dynamic"])
def test_parts_and_pieces(tmp_path, name, layers, attention_only):
    """A part from the bytes that `plan` names: those of the whole checkpoint."""
    checkpoint = made.make(*made.SETS[name])
    source, here = checkpoint.write(tmp_path / "source"), tmp_path / "here"
    here.mkdir()
    for path in source.glob("*.json"):
        shutil.copy(path, here)
    args = (["--layers", layers] if layers else []) + (["--attention-only"] if attention_only else [])
    fetch(source, here, args)
    numbers = {"1": {1}, "0,2": {0, 2}, None: {0, 1, 2}}[layers]
    for form in ("bf16", "w8a8"):
        converted(source, tmp_path / f"{form}-source", "--format", form, *args)
        converted(here, tmp_path / f"{form}-here", "--format", form, *args)
        tensors = read(tmp_path / f"{form}-here")
        wanted = set(wanted_names(checkpoint, numbers, attention_only)) & checkpoint.values.keys()
        assert {key for key in tensors if not key.endswith(("_scale", "_offset"))} == wanted
        assert contents(tmp_path / f"{form}-here") == contents(tmp_path / f"{form}-source")
    report = json.loads(dsakit_command("plan", tmp_path / "bf16-here", *args, "--json"))
    assert report["selected_bytes"] == sum(codes.nbytes for _, codes in read(tmp_path / "bf16-here").values())

    longest = max(here.glob("*.parts/*"), key=lambda path: path.stat().st_size)
    longest.unlink()
    begin, end = map(int, longest.name.split("-"))
    message = converted(here, tmp_path / "lacking", "--format", "bf16", *args, status=3)
    first, last = map(int, re.search(r"is not here, wanted bytes (\d+)\.\.(\d+)$", message.strip()).groups())
    assert begin <= first <= last < end
    shutil.rmtree(longest.parent)
    message = converted(here, tmp_path / "lacking", "--format", "bf16", *args, status=3)
    assert f"in {longest.parent.name.removesuffix('.parts')}, which is not here" in message
    assert not (tmp_path / "lacking").exists()


@pytest.fixture
def source(tmp_path):
    return made.make("v32", "fp8").write(tmp_path / "source")


def test_source_is_only_read(tmp_path, source):
    before = contents(source)
    for path in source.iterdir():
        path.chmod(0o444)
    source.chmod(0o555)
    converted(source, tmp_path / "out", "--format", "bf16")
    assert contents(source) == before


def test_files_beside_the_weights(tmp_path, source):
    (source / "tokenizer.json").write_text('{"version": "1.0"}')
    (source / "notes.txt").write_text("not a part of it")
    converted(source, tmp_path / "out", "--format", "bf16")
    assert (tmp_path / "out" / "tokenizer.json").read_text() == '{"version": "1.0"}'
    assert not (tmp_path / "out" / "notes.txt").exists()


def test_refusals_come_before_anything_is_written(tmp_path, source):
    out = tmp_path / "out"
    assert "format is fp4, wanted bf16, w8a8 or packed" in converted(source, out, "--format", "fp4", status=2)
    assert "layers is 3, wanted" in converted(source, out, "--format", "bf16", "--layers", "3", status=2)
    assert "static is no, wanted" in converted(source, out, "--format", "bf16", "--static", "no", status=2)
    assert "--format is required" in converted(source, out, status=2)
    for form, option, value, wanted in (
        ("bf16", "mlp", "int8", "bf16"),
        ("bf16", "mlp", "as_stored", "bf16"),
        ("w8a8", "mlp", "as_stored", "int8 or bf16"),
        ("packed", "mlp", "int8", "as_stored"),
        ("w8a8", "weights", "as_stored", "bf16"),
        ("packed", "weights", "bf16", "as_stored"),
    ):
        message = converted(source, out, "--format", form, "--" + option, value, status=2)
        assert f"convert: {option} is {value}, wanted {wanted} with format {form}" in message
    static = made.make("v32", "static").write(tmp_path / "static")
    assert "static activations" in converted(static, out, "--format", "bf16", status=2)
    checkpoint = made.make("v32", "fp8")
    lost, odd = "model.layers.2.mlp.experts.5.up_proj.weight", "model.layers.1.mlp.div.mul_scale"
    checkpoint.tensors[odd] = checkpoint.tensors.pop(lost)
    made.Checkpoint(checkpoint.config, checkpoint.tensors, {}).write(tmp_path / "odd")
    assert f"{odd} is not used by any rule" in converted(tmp_path / "odd", out, "--format", "bf16", status=2)
    del checkpoint.tensors[odd]
    made.Checkpoint(checkpoint.config, checkpoint.tensors, {}).write(tmp_path / "lost")
    message = converted(tmp_path / "lost", out, "--format", "bf16", status=3)
    assert f"{lost} is missing, wanted a tensor of shape [48, 160]" in message
    assert not out.exists()


def test_a_number_that_is_none(tmp_path):
    checkpoint = made.make("v32", "fp8")
    checkpoint.tensors["model.layers.1.self_attn.o_proj.weight"].codes[130, 7] = 0x7F
    message = converted(checkpoint.write(tmp_path / "nan"), tmp_path / "out", "--format", "bf16", *SMALL, status=3)
    assert "model.layers.1.self_attn.o_proj.weight[130][7] is NaN" in message
    assert not list((tmp_path / "out").glob(".*")) and not (tmp_path / "out" / "config.json").exists()


def test_folders_of_others(tmp_path, source):
    out = tmp_path / "out"
    out.mkdir()
    (out / "letter.txt").write_text("")
    assert "holds letter.txt and no convert.json" in converted(source, out, "--format", "bf16", status=3)
    assert contents(out) == {"letter.txt": b""}
    before = contents(source)
    assert "and no convert.json" in converted(source, source, "--format", "bf16", status=3)
    assert contents(source) == before

    out = tmp_path / "ours"
    converted(source, out, "--format", "bf16")
    finished = contents(out)
    converted(source, out, "--format", "bf16")
    for args, key in (
        (["w8a8"], "format"),
        (["bf16", "--layers", "0"], "layers"),
        (["bf16", "--attention-only"], "attention_only"),
        (["bf16", "--shard-size", "1MB"], "shard_bytes"),
    ):
        assert f"convert.json: {key} is " in converted(source, out, "--format", *args, status=3)
    # Another checkpoint of the same sizes has the same headers.
    other = made.make("v32", "fp8", seed=2).write(tmp_path / "other")
    assert "convert.json: source is another one" in converted(other, out, "--format", "bf16", status=3)
    assert contents(out) == finished


def test_two_processes(tmp_path, source):
    out = tmp_path / "out"
    out.mkdir()
    with open(out / ".convert.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        message = converted(source, out, "--format", "bf16", status=3)
        assert "is being written by another process" in message
        assert list(contents(out)) == [".convert.lock"]
    converted(source, out, "--format", "bf16")
    assert ".convert.lock" not in contents(out)
    both = [
        subprocess.Popen([COMMAND, "convert", source, tmp_path / "both", "--format", "bf16", *SMALL]) for _ in range(2)
    ]
    codes = sorted(process.wait(600) for process in both)
    assert codes in ([0, 0], [0, 3])  # one after the other, or one of them was told
    converted(source, tmp_path / "alone", "--format", "bf16", *SMALL)
    assert contents(tmp_path / "both") == contents(tmp_path / "alone")


@pytest.mark.parametrize("most", [100, 50_000, 150_000])
def test_a_full_disk(tmp_path, source, most):
    """As much as a limit on the size of files is like one: the write fails, is named, and the same command goes on."""
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    out = tmp_path / "out"
    command = [COMMAND, "convert", source, out, "--format", "bf16", *SMALL]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=limit)
    assert done.returncode == 3 and f"cannot be written at byte {most}" in done.stderr, done.stderr
    assert not (out / "config.json").exists() and not list(out.glob(".*"))
    converted(source, out, "--format", "bf16", *SMALL)
    converted(source, tmp_path / "alone", "--format", "bf16", *SMALL)
    assert contents(out) == contents(tmp_path / "alone")


def test_room_is_asked_for_first(tmp_path, source):
    out = tmp_path / "out"
    out.mkdir()
    script = 'mount -t tmpfs -o size=256k none "$0" && shift 0 && exec "$@"'
    command = ["unshare", "-rm", "sh", "-c", script, out, COMMAND, "convert", source, out, "--format", "bf16"]
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode:
        pytest.skip("no file system of our own here")
    done = subprocess.run(command, capture_output=True, text=True)
    if "mount" in done.stderr:
        pytest.skip("no file system of our own here")
    assert done.returncode == 3
    words = done.stderr.split()
    room, wanted = (int(words[words.index(before) + 1]) for before in ("for", "wanted"))
    assert "has room for" in done.stderr and room <= 256 * 1024 < wanted, done.stderr
