# SPDX-License-Identifier: Apache-2.0
"""tests/make_checkpoints.py itself: what it writes is read by others, and its mixture of experts is theirs."""

import json
import pathlib
import sys

import numpy as np
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tests"))
import make_checkpoints as made

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors")

TORCH = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I8": torch.int8,
    "I32": torch.int32,
    "I64": torch.int64,
}


@pytest.mark.parametrize("test", ["test_encodings", "test_micro_example", "test_ties"])
def test_its_own(test):
    getattr(made, test)()


@pytest.mark.parametrize("name", made.SETS)
def test_safetensors_opens_every_file_and_decodes_the_same_numbers(tmp_path, name):
    checkpoint = made.make(*made.SETS[name])
    checkpoint.write(tmp_path)
    (index,) = tmp_path.glob("*.safetensors.index.json")
    weight_map = json.loads(index.read_text())["weight_map"]
    assert weight_map.keys() == checkpoint.tensors.keys()
    shards = sorted(tmp_path.glob("*.safetensors"))
    assert len(shards) > 3 and {path.name for path in shards} == set(weight_map.values())
    for path in shards:
        with safetensors.safe_open(path, "pt") as file:
            for key in file.keys():
                assert weight_map[key] == path.name
                got, wanted = file.get_tensor(key), checkpoint.tensors[key]
                assert got.dtype == TORCH[wanted.dtype] and tuple(got.shape) == wanted.codes.shape
                assert np.array_equal(got.view(torch.uint8).numpy().ravel(), wanted.codes.view(np.uint8).ravel())
                if wanted.dtype in made.DECODE:
                    assert np.array_equal(got.float().numpy(), wanted.values()), key


@pytest.mark.parametrize("kind", made.KINDS)
def test_layouts_of_the_same_numbers(kind):
    """float, fused and fp8 say the same; int8 says nearly the same as float."""
    exact = made.make(kind, "fp8").values
    for form in ("fp8-as-float", "fp8-as-fused"):
        other = made.make(kind, form).values
        assert exact.keys() == other.keys() and all(np.array_equal(exact[k], other[k]) for k in exact)
    floats = made.make(kind, "float").values
    for form in ("fp8-power", "fp8-bf16", "fp8-e8m0", "dynamic", "mixed", "static", "static-int64", "compressed"):
        values = made.make(kind, form).values
        assert values.keys() == floats.keys()
        changed = 0
        for name, value in values.items():
            worst = np.abs(value - floats[name]).max() / np.abs(floats[name]).max()
            # e4m3 keeps 4 bits of every weight, int8 half of a 127th of the largest of a row; and bf16 rounds once more.
            assert worst <= (2.0**-4 if form.startswith("fp8") else 0.5 / 127) + 2.0**-8, (name, worst)
            changed += worst > 0
        assert changed >= 9, form


def test_fp8_codes_are_torchs():
    x = np.random.default_rng(1).standard_normal(100_000).astype(np.float32) * 2
    x[:1000] = made.from_e4m3(np.arange(1000) % 126) + made.from_e4m3(np.arange(1000) % 126 + 1)
    x[:1000] /= 2  # ties
    theirs = torch.from_numpy(x).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    assert np.array_equal(made.to_e4m3(x), theirs)


def loaded(checkpoint, folder):
    """transformers' model in float32; it has no kimi_k2 of its own, whose code is that of DeepSeek-V3."""
    config = dict(checkpoint.config)
    if config["model_type"] == "kimi_k2":
        checkpoint.config = {**config, "model_type": "deepseek_v3"}
    checkpoint.write(folder)
    checkpoint.config = config
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"], report
    return model.eval()


@pytest.mark.parametrize("form", ["float", "fused", "fp8-as-float"])
@pytest.mark.parametrize("kind", made.KINDS)
def test_transformers_loads_it_and_its_experts_agree(tmp_path, kind, form):
    checkpoint = made.make(kind, form)
    model = loaded(checkpoint, tmp_path)
    inputs = {}
    for i, layer in enumerate(model.model.layers):
        layer.mlp.register_forward_pre_hook(lambda _, x, i=i: inputs.__setitem__(i, x[0][0].detach()))
    with torch.no_grad():
        assert model(torch.arange(200)[None] % 256, use_cache=False).logits.isfinite().all()
        for i, x in inputs.items():
            if not made.is_sparse(checkpoint.config, i):
                continue
            mlp, p = model.model.layers[i].mlp, f"model.layers.{i}.mlp.gate."
            logits, weights, experts = mlp.gate(x)
            bias = checkpoint.values[f"{p}e_score_correction_bias"]
            chosen, ours = made.route(logits.numpy(), bias, checkpoint.config)
            order = experts.numpy().argsort(1)
            assert np.array_equal(chosen, np.take_along_axis(experts.numpy(), order, 1))
            assert np.allclose(ours, np.take_along_axis(weights.numpy(), order, 1), rtol=1e-6, atol=0)
            assert len(np.unique(chosen)) == 8, "a router that leaves experts out tests less"

            y = made.moe_of(checkpoint, i, x.numpy())
            theirs = mlp(x[None])[0].numpy()
            # Ours rounds the input and the products of gate and up to bf16, half a unit of 2^-8 each.
            assert np.sqrt(np.mean((y - theirs) ** 2)) <= 2.0**-8 * np.sqrt(np.mean(theirs**2))
    assert len(inputs) == 3


def test_changes_reach_the_files(tmp_path):
    """No shared experts, two of them, one group, all experts, one file."""
    for changes in (
        dict(n_shared_experts=0),
        dict(n_shared_experts=2),
        dict(n_group=1, topk_group=1, num_experts_per_tok=8, norm_topk_prob=False),
        dict(moe_intermediate_size=136, num_hidden_layers=2),
    ):
        checkpoint = made.make("v32", "float", **changes)
        y = made.moe_of(checkpoint, 1, np.random.default_rng(3).standard_normal((5, 160)).astype(np.float32))
        assert np.isfinite(y).all() and np.abs(y).max() > 0.1
        shared = [name for name in checkpoint.tensors if "layers.1.mlp.shared_experts" in name]
        assert len(shared) == (0 if changes.get("n_shared_experts") == 0 else 3)
    checkpoint.write(tmp_path, shard_bytes=None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


def test_int8_experts_are_near_float_ones():
    rng = np.random.default_rng(5)
    x = rng.standard_normal((20, 160)).astype(np.float32)
    weights = [made.bf16(rng.standard_normal(shape) / 13) for shape in ((48, 160), (48, 160), (160, 48))]
    codes = [(c.codes, s.values()) for c, s in map(made.int8_codes, weights)]
    exact, ours = made.gated_mlp(x, *weights), made.gated_mlp_int8(x, *codes)
    assert 0 < np.sqrt(np.mean((exact - ours) ** 2)) < 0.02 * np.sqrt(np.mean(exact**2))
