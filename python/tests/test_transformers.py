# SPDX-License-Identifier: Apache-2.0
"""Agreement with an independent implementation: Hugging Face transformers on the same checkpoints.

Rule: our bf16 modes are no further (rms over all logits) from transformers' float32 logits than 1.2 times its own
bfloat16 run is. Dense means that its index_topk covers the whole context.
"""

import json
import pathlib

import numpy as np
import pytest

import dsakit

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TINY = pathlib.Path(dsakit.__file__).parent / "models" / "tiny-dsa"


def logits_of(folder, tokens, dtype, topk=None):
    config = transformers.AutoConfig.from_pretrained(folder)
    if topk is not None:
        config.index_topk = topk
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, config=config, dtype=dtype, attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        out = model(torch.tensor([list(tokens)]), use_cache=False).logits[0]
    return out.float().numpy()


def rms(a, b):
    return float(np.sqrt(np.mean((a.astype(np.float64) - b) ** 2)))


def check(folder, tokens):
    model = dsakit.Model(str(folder))
    for mode, topk in (("dense_bf16", len(tokens)), ("sparse_bf16", None)):
        exact = logits_of(folder, tokens, torch.float32, topk)
        theirs = rms(logits_of(folder, tokens, torch.bfloat16, topk), exact)
        ours = rms(np.asarray(model.logits(list(tokens), mode=mode)), exact)
        print(
            f"{folder.name} {mode}: rms error {ours:.3e}, transformers bfloat16 {theirs:.3e}, logits rms {rms(exact, 0):.3f}"
        )
        assert ours <= 1.2 * theirs, (mode, ours, theirs)
    # The quantised mode has no counterpart; it must stay near the sparse one.
    w8a8 = rms(np.asarray(model.logits(list(tokens), mode="sparse_w8a8")), exact)
    assert w8a8 <= 0.25 * rms(exact, 0), w8a8


@pytest.mark.parametrize("start,length", [(0, 200), (5000, 1024)])
def test_tiny_dsa(start, length):
    text = (TINY / "heldout.txt").read_bytes()
    check(TINY, text[start : start + length])


SIZES = dict(
    vocab_size=320,
    hidden_size=192,
    intermediate_size=256,
    moe_intermediate_size=32,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=4,
    n_shared_experts=1,
    n_routed_experts=4,
    num_experts_per_tok=2,
    n_group=1,
    topk_group=1,
    q_lora_rank=96,
    kv_lora_rank=128,
    qk_nope_head_dim=32,
    qk_rope_head_dim=16,
    v_head_dim=32,
    index_topk=48,
    index_head_dim=64,
    index_n_heads=4,
    first_k_dense_replace=99,
    initializer_range=0.08,
    pad_token_id=None,
    bos_token_id=None,
    eos_token_id=None,
)
YARN = dict(
    rope_type="yarn",
    rope_theta=10000.0,
    factor=8.0,
    beta_fast=32,
    beta_slow=1,
    mscale=1.0,
    mscale_all_dim=1.0,
    original_max_position_embeddings=64,
)


def write_checkpoint(folder, kind, seed, **changes):
    config_class, model_class = {
        "v32": (transformers.DeepseekV32Config, transformers.DeepseekV32ForCausalLM),
        "glm": (transformers.GlmMoeDsaConfig, transformers.GlmMoeDsaForCausalLM),
    }[kind]
    torch.manual_seed(seed)
    model = model_class(config_class(**{**SIZES, **changes})).to(torch.bfloat16)
    with torch.no_grad():  # norms away from 1, and an indexer norm with a bias
        for name, p in model.named_parameters():
            if p.ndim == 1:
                p.add_(0.1 * torch.randn_like(p))
    model.save_pretrained(folder, max_shard_size="300KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    return folder


@pytest.mark.parametrize(
    "kind,changes",
    [
        ("v32", dict(rope_parameters=YARN, max_position_embeddings=512)),
        (
            "glm",
            dict(
                num_hidden_layers=5,
                index_n_heads=3,
                v_head_dim=48,
                rms_norm_eps=1e-5,
                indexer_types=["full", "full", "shared", "shared", "full"],
            ),
        ),
        (
            "v32",
            dict(
                hidden_size=130,
                num_attention_heads=3,
                num_key_value_heads=3,
                q_lora_rank=50,
                kv_lora_rank=72,
                qk_nope_head_dim=18,
                qk_rope_head_dim=12,
                v_head_dim=20,
                index_n_heads=5,
                index_head_dim=32,
                index_topk=37,
                vocab_size=257,
                intermediate_size=90,
                tie_word_embeddings=True,
            ),
        ),
    ],
    ids=["v32-yarn-beyond-original", "glm-shared-indexers", "v32-odd-sizes"],
)
def test_written_by_transformers(tmp_path, kind, changes):
    folder = write_checkpoint(tmp_path / kind, kind, 7, **changes)
    assert json.loads((folder / "config.json").read_text())["model_type"] in ("deepseek_v32", "glm_moe_dsa")
    check(folder, np.random.Generator(np.random.Philox(3)).integers(0, 256, 300).tolist())


def test_mixture_of_experts_is_refused_by_name(tmp_path):
    folder = write_checkpoint(tmp_path / "moe", "v32", 1, first_k_dense_replace=1)
    with pytest.raises(NotImplementedError, match="expert"):
        dsakit.Model(str(folder))
