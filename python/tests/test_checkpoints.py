# SPDX-License-Identifier: Apache-2.0
"""Whole models from checkpoints in every published layout: the same numbers give the same bits however they are stored
and wherever experts lie, transformers agrees, and what is broken is named."""

import json
import pathlib
import re
import sys
import warnings

import numpy as np
import pytest

import dsakit

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tests"))
import make_checkpoints as made

TOKENS = np.random.default_rng(5).integers(0, 256, 70).tolist()
QUIET = {"static": {"static": "dequantise"}, "static-int64": {"static": "dequantise"}}


def model_of(folder, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return dsakit.Model(folder, **options)


def logits(folder, mode, tokens=TOKENS, **options):
    return np.asarray(model_of(folder, **options).logits(tokens, mode=mode))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The folder of a set, written once."""
    root, done = tmp_path_factory.mktemp("checkpoints"), {}

    def folder(kind, form, **changes):
        key = (kind, form, *sorted(changes.items()))
        if key not in done:
            done[key] = made.make(kind, form, **changes).write(root / str(len(done)))
        return done[key]

    return folder


# ---- the same numbers, the same bits


@pytest.mark.parametrize("kind", made.KINDS)
@pytest.mark.parametrize("form", made.FORMS)
def test_every_layout_runs_and_agrees_with_its_numbers(written, tmp_path, kind, form):
    """The reader's numbers, written as bf16, give the logits; int8 MLPs quantise activations besides."""
    exact = made.as_float(made.make(kind, form)) if form not in ("float", "fused") else made.make(kind, form)
    exact.write(tmp_path)
    for mode in model_of(tmp_path).modes[:2]:
        wanted = logits(tmp_path, mode)
        got = logits(written(kind, form), mode, mlp="bf16", **QUIET.get(form, {}))
        assert np.array_equal(got, wanted), mode
        assert np.isfinite(wanted).all() and wanted.std() > 0.1


@pytest.mark.parametrize("kind", ["v32", "glm"])
def test_codes_kept_as_one_byte_have_the_bits_of_two(written, kind):
    one, two = model_of(written(kind, "fp8")), model_of(written(kind, "fp8"), weights="bf16")
    for mode in one.modes:
        assert np.array_equal(one.logits(TOKENS, mode=mode), two.logits(TOKENS, mode=mode)), mode
    assert one.weight_bytes < 0.7 * two.weight_bytes
    fused = written(kind, "fp8-as-fused")
    for mode in one.modes:
        assert np.array_equal(one.logits(TOKENS, mode=mode), logits(fused, mode)), mode


@pytest.mark.parametrize("form", ["dynamic", "compressed"])
def test_int8_stays_int8_unless_it_is_widened(written, form):
    """And made from floats it is what the file of codes has, where the file was made by the same rule."""
    folder = written("v32", form)
    stored, widened = logits(folder, "sparse_bf16"), logits(folder, "sparse_bf16", mlp="bf16")
    difference = np.sqrt(np.mean((stored - widened) ** 2))
    assert 0 < difference < 0.5 * widened.std(), "another expert here and there; unrelated ones would be sqrt(2) away"
    assert np.array_equal(stored, logits(folder, "sparse_bf16", mlp="as_stored"))
    assert np.array_equal(stored, logits(folder, "sparse_bf16", mlp="int8")), "all MLPs are int8 already"


@pytest.mark.parametrize("form", ["fp8", "fused", "dynamic"])
def test_bits_do_not_depend_on_where_experts_lie(written, form):
    folder = written("v32", form)
    resident = model_of(folder)
    assert resident.expert_costs["held"] == resident.expert_costs["all"] == 16
    k, each = resident.config["num_experts_per_tok"], resident.expert_costs["expert_bytes"]
    for mode in ("sparse_bf16", "sparse_w8a8"):
        wanted = np.asarray(resident.logits(TOKENS, mode=mode))
        continued = resident.generate(TOKENS[:9], 12, mode=mode)
        for slots in (k + 1, 2 * k, 15):
            for pass_tokens in (1, 7, 4096):
                model = model_of(folder, expert_memory=slots * each, pass_tokens=pass_tokens)
                assert model.expert_costs["held"] == slots
                assert np.array_equal(model.logits(TOKENS, mode=mode), wanted), (mode, slots, pass_tokens)
                assert model.generate(TOKENS[:9], 12, mode=mode) == continued
                assert 0 < model.expert_costs["read"] <= model.expert_costs["asked"]


def test_a_pass_reads_an_expert_once_per_layer(written):
    folder = written("v32", "fp8")
    each = model_of(folder).expert_costs["expert_bytes"]
    model = model_of(folder, expert_memory=4 * each)
    session = model.session("sparse_bf16")
    session.prefill(TOKENS)
    costs = model.expert_costs
    assert costs["read"] == costs["asked"] <= 16, "each of 8 experts of 2 layers, once"
    by_token = model_of(folder, expert_memory=4 * each, pass_tokens=1)
    by_token.session("sparse_bf16").prefill(TOKENS)
    assert by_token.expert_costs["asked"] == 2 * len(TOKENS) * model.config["num_experts_per_tok"]


def test_memory_of_experts_is_what_was_asked_for(written):
    folder = written("v32", "fp8")
    each = model_of(folder).expert_costs["expert_bytes"]
    model = model_of(folder, expert_memory=5 * each + each // 2)
    assert model.expert_costs["held"] == 5
    everything = model_of(folder)
    assert everything.weight_bytes - model.weight_bytes == 11 * each
    least = model.config["num_experts_per_tok"] + 1
    with pytest.raises(MemoryError, match=f"expert memory is {each} bytes, wanted at least {least * each}"):
        model_of(folder, expert_memory=each)


def test_the_limit_of_memory_counts_experts(written, monkeypatch):
    folder = written("v32", "fp8")
    model = model_of(folder)
    monkeypatch.setenv("DSAKIT_MEM_LIMIT", str(model.weight_bytes // 2))
    with pytest.raises(MemoryError, match="DSAKIT_MEM_LIMIT|expert memory"):
        model_of(folder)


def test_sessions_of_a_batch_have_the_bits_of_each(written):
    folder = written("glm", "fp8")
    each = model_of(folder).expert_costs["expert_bytes"]
    for options in ({}, {"expert_memory": 4 * each}):
        model = model_of(folder, **options)
        sessions = [model.session("sparse_bf16") for _ in range(3)]
        alone = [model.session("sparse_bf16") for _ in range(3)]
        for i, (a, b) in enumerate(zip(sessions, alone)):
            a.prefill(TOKENS[i : i + 20 + i])
            b.prefill(TOKENS[i : i + 20 + i])
        for step in range(4):
            together = np.asarray(dsakit.step(sessions, [step, 40 + step, 80 + step]))
            for i, session in enumerate(alone):
                assert np.array_equal(together[i], session.step(40 * i + step))


def test_layers_behind_the_last_are_noted(written):
    with pytest.warns(UserWarning, match="num_nextn_predict_layers.*not loaded"):
        model = dsakit.Model(written("v32", "mtp"))
    assert np.array_equal(model.logits(TOKENS, mode="dense_bf16"), logits(written("v32", "fp8"), "dense_bf16"))


# ---- transformers


def transformers_logits(folder, dtype, tokens):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()
    with torch.no_grad():
        return model(torch.tensor([tokens]), use_cache=False).logits[0].float().numpy()


def rms(a, b):
    return float(np.sqrt(np.mean((a.astype(np.float64) - b) ** 2)))


@pytest.mark.parametrize("kind", ["v32", "glm", "v3"])
def test_transformers_agrees_on_models_that_it_saved(written, tmp_path, kind):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    folder = written(kind, "float", rms_norm_eps=1e-6)
    saved = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    saved.save_pretrained(tmp_path, max_shard_size="300KB")
    mode = "dense_bf16" if kind == "v3" else "sparse_bf16"
    exact = transformers_logits(tmp_path, torch.float32, TOKENS)
    theirs = rms(transformers_logits(tmp_path, torch.bfloat16, TOKENS), exact)
    ours = rms(logits(tmp_path, mode), exact)
    print(f"{kind} {mode}: rms error {ours:.3e}, transformers bfloat16 {theirs:.3e}, logits rms {rms(exact, 0):.3f}")
    assert ours <= 1.5 * theirs
    assert np.array_equal(logits(tmp_path, mode), logits(folder, mode))


# ---- what is broken


def broken(tmp_path, kind, form, change, **options):
    """The refusal of a set after `change(checkpoint)`, without its operation."""
    checkpoint = made.make(kind, form)
    change(checkpoint)
    checkpoint.write(tmp_path)
    with pytest.raises(Exception) as caught:
        model_of(tmp_path, **options)
    assert isinstance(caught.value, dsakit.Error), caught.value
    return caught.value


EXPERT = "model.layers.1.mlp.experts.3.down_proj.weight"


def without(name):
    return lambda c: c.tensors.pop(name)


def with_config(**changes):
    return lambda c: c.config.update(changes)


def reshaped(name):
    def change(c):
        c.tensors[name] = made.Stored(c.tensors[name].dtype, c.tensors[name].codes.reshape(-1, 1))

    return change


def code(name, at, value):
    def change(c):
        c.tensors[name].codes[at] = value

    return change


def renamed(old, new):
    def change(c):
        c.tensors[new] = c.tensors.pop(old)

    return change


@pytest.mark.parametrize(
    "form,change,status,sentence",
    [
        ("float", with_config(n_group=3), "INVALID_CONFIG", r"config.json: n_group is 3, wanted a divisor of 8 \(n_routed_experts\)"),
        ("float", with_config(num_experts_per_tok=5), "INVALID_CONFIG", "num_experts_per_tok is 5, wanted an integer in 1..4"),
        ("float", with_config(topk_group=5), "INVALID_CONFIG", "topk_group is 5, wanted an integer in 1..4"),
        ("float", with_config(scoring_func="softmax"), "UNSUPPORTED", 'scoring_func is "softmax", wanted sigmoid'),
        ("float", without(EXPERT), "MISSING_TENSOR", rf"{EXPERT} is missing, wanted a tensor of shape \[160, \d+\]"),
        ("float", without("model.layers.1.mlp.gate.e_score_correction_bias"), "MISSING_TENSOR", "e_score_correction_bias"),
        ("float", renamed(EXPERT, EXPERT.replace(".3.", ".8.")), "INVALID_SHAPE", r"safetensors: \S+experts.8.down_proj.weight is of an expert that is not there, wanted 0..7"),
        ("float", renamed(EXPERT, EXPERT.replace("down_proj", "mul_scale")), "UNSUPPORTED", "mul_scale.weight is not used by any rule"),
        ("fp8", without(EXPERT + "_scale_inv"), "MISSING_TENSOR", "down_proj.weight_scale_inv is missing, wanted beside the FP8 weight"),
        ("fp8", reshaped(EXPERT.replace("down", "up") + "_scale_inv"), "INVALID_SHAPE", r"up_proj.weight_scale_inv has shape \[2, 1\], wanted \[1, 2\] \(blocks of 128 x 128\)"),
        ("fp8", code(EXPERT, (130, 7), 0x7F), "INVALID_FILE", r"experts.3.down_proj.weight\[130\]\[7\] is NaN"),
        ("static", lambda c: None, "UNSUPPORTED", r'is W8A8 with static activations, wanted W8A8_DYNAMIC or FLOAT \(static="dequantise" reads its weights\)'),
        ("dynamic", lambda c: c.description.update({EXPERT: "W4A8_DYNAMIC"}), "UNSUPPORTED", f"{EXPERT} is W4A8_DYNAMIC, wanted FLOAT or W8A8_DYNAMIC"),
        ("dynamic", lambda c: setattr(c, "description", None), "CONFLICT", r"is stored as I8, wanted a description of its scales \(quantization_config\)"),
        ("compressed", lambda c: c.config["quantization_config"].update(format="pack-quantized"), "UNSUPPORTED", 'format is "pack-quantized", wanted "int-quantized"'),
        ("compressed", without(EXPERT + "_scale"), "MISSING_TENSOR", "down_proj.weight_scale is missing"),
    ],
)  # fmt: skip
def test_what_is_broken_is_named(tmp_path, form, change, status, sentence):
    error = broken(tmp_path, "v32", form, change)
    assert error.status == status
    assert str(error).startswith("load: ")
    assert re.search(sentence, str(error)), str(error)


def test_a_nan_in_an_expert_on_disk_leaves_the_session_as_it_was(tmp_path):
    checkpoint = made.make("v32", "fp8")
    whole = checkpoint.write(tmp_path / "whole")
    for expert in range(8):
        checkpoint.tensors[EXPERT.replace(".3.", f".{expert}.")].codes[3, 5] = 0xFF
    folder = checkpoint.write(tmp_path / "broken")
    each = model_of(whole).expert_costs["expert_bytes"]
    model = model_of(folder, expert_memory=5 * each)
    session = model.session("sparse_bf16")
    for _ in range(2):
        with pytest.raises(ValueError, match=r"experts.\d.down_proj.weight\[3\]\[5\] is NaN"):
            session.prefill(TOKENS)
        assert len(session) == 0


def test_truncated_and_duplicate_tensors(tmp_path):
    folder = made.make("v32", "fp8").write(tmp_path / "cut")
    shard = sorted(folder.glob("*.safetensors"))[2]
    shard.write_bytes(shard.read_bytes()[:-3])
    with pytest.raises(dsakit.Error, match="TRUNCATED"):
        model_of(folder)
    folder = made.make("v32", "fp8").write(tmp_path / "twice")
    shards = sorted(folder.glob("*.safetensors"))
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    name = next(n for n, s in index["weight_map"].items() if s == shards[0].name)
    index["weight_map"][name] = shards[1].name
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(dsakit.Error, match=name.replace(".", r"\.")):
        model_of(folder)


@pytest.mark.parametrize(
    "option,value,wanted",
    [("mlp", "int4", "as_stored, bf16 or int8"), ("weights", "fp8", "as_stored or bf16"), ("static", "x", "refuse or dequantise"),
     ("pass_tokens", 0, "at least 1 token"), ("expert_memory", -1, "at least 0 bytes")],
)  # fmt: skip
def test_options_are_checked(written, option, value, wanted):
    with pytest.raises(ValueError, match=wanted):
        model_of(written("v32", "float"), **{option: value})
