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
    # The quantised mode has no counterpart. What it must not do is compute something else: unrelated logits would be
    # sqrt(2) away. An untrained indexer's scores lie close together, so its int8 codes choose other positions, and
    # hardly any distance but that one says anything; a trained model tells a tenth.
    w8a8 = rms(np.asarray(model.logits(list(tokens), mode="sparse_w8a8")), exact)
    assert w8a8 <= (0.1 if folder == TINY else 0.5) * rms(exact, 0), w8a8


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


def write_checkpoint(folder, kind, seed, dtype=torch.bfloat16, **changes):
    config_class, model_class = {
        "v32": (transformers.DeepseekV32Config, transformers.DeepseekV32ForCausalLM),
        "glm": (transformers.GlmMoeDsaConfig, transformers.GlmMoeDsaForCausalLM),
    }[kind]
    torch.manual_seed(seed)
    model = model_class(config_class(**{**SIZES, **changes})).to(dtype)
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
        (
            "glm",  # weights_proj keeps its fp32; one mscale without the other; no power of two for the Hadamard matrix
            dict(
                dtype=torch.float32,
                rope_parameters={k: v for k, v in YARN.items() if k != "mscale"},
                index_n_heads=8,
                index_head_dim=24,
                index_topk_freq=2,
            ),
        ),
    ],
    ids=["v32-yarn-beyond-original", "glm-shared-indexers", "v32-odd-sizes", "glm-float32-yarn"],
)
def test_written_by_transformers(tmp_path, kind, changes):
    folder = write_checkpoint(tmp_path / kind, kind, 7, **changes)
    assert json.loads((folder / "config.json").read_text())["model_type"] in ("deepseek_v32", "glm_moe_dsa")
    check(folder, np.random.Generator(np.random.Philox(3)).integers(0, 256, 300).tolist())


def index_scores(layer, x, cos, sin, interleaved):
    """float64 index scores [T, T] from hidden states, and how far the bf16 query, key and tables may move them."""
    attention, index = layer.self_attn, layer.self_attn.indexer
    w = {name: p.detach().double().numpy() for name, p in attention.named_parameters()}
    c = x @ w["q_a_proj.weight"].T
    c /= np.sqrt((c * c).mean(-1, keepdims=True) + attention.q_a_layernorm.variance_epsilon)
    c *= w["q_a_layernorm.weight"]
    k = x @ w["indexer.wk.weight"].T
    k -= k.mean(-1, keepdims=True)
    k /= np.sqrt((k * k).mean(-1, keepdims=True) + 1e-6)
    k = k * w["indexer.k_norm.weight"] + w["indexer.k_norm.bias"]

    def rotated(v):  # [T, heads, index_head_dim]
        half = cos.shape[-1] // 2
        rope = v[..., : 2 * half]
        a, b = (rope[..., 0::2], rope[..., 1::2]) if interleaved else (rope[..., :half], rope[..., half:])
        cs, sn = cos[:, None, :half], sin[:, None, :half]
        return np.concatenate([a * cs - b * sn, b * cs + a * sn, v[..., 2 * half :]], -1)

    q = rotated((c @ w["indexer.wq_b.weight"].T).reshape(len(x), index.n_heads, -1))
    k = rotated(k[:, None])[:, 0]
    heads = x @ w["indexer.weights_proj.weight"].T
    scores = np.einsum("th,ths->ts", heads, np.maximum(np.einsum("thd,sd->ths", q, k), 0))
    # Half a unit in the last place is 2^-9 of a value; the errors of the elements of a dot are independent. Four
    # deviations of that size hold for the query, the key and the tables together.
    spread = np.sqrt(np.einsum("thd,sd->ths", q * q, k * k))
    return scores, 4 * 2.0**-9 * np.einsum("th,ths->ts", np.abs(heads), spread)


def classify(ours, theirs, scores, bound, topk):
    """Differences of two selections, row by row: (entries, tie, near, wrong)."""
    counts = np.zeros(4, int)
    for t in range(len(ours)):
        n = min(t + 1, topk)
        a, b = set(ours[t, :n].tolist()), set(theirs[t, :n].tolist())
        assert len(a) == n and min(a) >= 0 and max(a) <= t
        cut = np.argsort(-scores[t, : t + 1], kind="stable")[n - 1]
        counts[0] += n
        for s in a ^ b:
            off, reach = abs(scores[t, s] - scores[t, cut]), bound[t, s] + bound[t, cut]
            counts[1 if off == 0 else 2 if off <= reach else 3] += 1
    return counts


@pytest.mark.parametrize("kind", ["tiny", "v32", "glm"])
def test_selected_sets(tmp_path, kind):
    """The same hidden states through our layer, float64 and transformers' indexer: only positions at the cut differ."""
    yarn = dict(rope_parameters=YARN, max_position_embeddings=512) if kind == "v32" else {}
    folder = TINY if kind == "tiny" else write_checkpoint(tmp_path / kind, kind, 11, index_n_heads=8, **yarn)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    tokens = torch.tensor([list((TINY / "heldout.txt").read_bytes()[:400])])
    seen = {}
    for i, layer in enumerate(model.model.layers):
        layer.input_layernorm.register_forward_hook(lambda _, __, y, i=i: seen.__setitem__(i, y.to(torch.bfloat16)))
    with torch.no_grad():
        model(tokens, use_cache=False)
        positions = torch.arange(400)[None]
        tables = model.model.rotary_emb(seen[0].float(), positions)
        mask = torch.full((1, 400, 400), float("-inf")).triu(1)
        for i, layer in enumerate(model.model.layers):
            x, attention = seen[i].float(), layer.self_attn
            c_q = attention.q_a_layernorm(attention.q_a_proj(x))
            theirs = attention.indexer(x, c_q, tables, mask, positions)[0].numpy()
            for t in range(theirs.shape[1]):  # it lists positions that it cannot see behind those it can, or between
                theirs[t, : t + 1] = np.arange(t + 1)
            ours = np.full(theirs.shape, -1, np.int32)
            dsakit.Layer(str(folder), i, mode="sparse_bf16").prefill(seen[i][0], selection=ours)
            cos, sin = (table[0].double().numpy() for table in tables)
            scores, bound = index_scores(layer, x[0].double().numpy(), cos, sin, kind == "glm")
            hidden = np.where(np.tri(400, dtype=bool), scores, -np.inf)
            exact = np.argsort(-hidden, axis=1, kind="stable")[:, : ours.shape[1]]
            for name, other in (("float64", exact), ("transformers", theirs)):
                entries, tie, near, wrong = classify(ours, other, scores, bound, ours.shape[1])
                print(f"{kind} layer {i} against {name}: {entries} entries, {tie} tie, {near} near, {wrong} wrong")
                assert wrong == 0 and tie + near <= 0.01 * entries
