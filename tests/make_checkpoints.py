#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write small checkpoints in every layout that is read, and say what is in them.

    make_checkpoints.py OUT [SET ..]    write OUT/SET for these sets, or for all of them
    make_checkpoints.py --self-test     check the encodings and the mixture of experts below on known numbers

numpy alone, and a pure function of its arguments. As a module: `make(kind, form)` gives a Checkpoint, which can be
changed before `write(folder)` puts it into files; its `values` are the numbers that a reader owes, by name, whatever
the layout.

kind: v32, glm, v3, k2, the published families at toy size. form: a key of FORMS. A set is called KIND-FORM.

`route` and `moe` are the mixture of experts in plain numpy, the judge of the library's.
"""

import dataclasses
import json
import pathlib
import sys
import zlib

import numpy as np

BLOCK = 128  # rows and columns that share one fp8 scale
SHARD_BYTES = 200_000


# ---------------------------------------------------------------------------------------------- encodings


def to_bf16(x):
    """Codes (uint16) of float32 numbers, rounded to nearest even."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_bf16(codes):
    return (codes.astype(np.uint32) << 16).view(np.float32)


def bf16(x):
    """float32 numbers that bf16 has: x rounded once."""
    return from_bf16(to_bf16(x))


def from_e4m3(codes):
    """float32 of e4m3fn codes: 4 exponent bits with bias 7, 3 mantissa bits, 0x7f and 0xff NaN."""
    c = codes.astype(np.int32)
    exponent, mantissa = c >> 3 & 15, (c & 7).astype(np.float64)
    magnitude = np.where(exponent == 0, np.ldexp(mantissa, -9), np.ldexp(8 + mantissa, exponent - 10))
    magnitude[(c & 127) == 127] = np.nan
    return np.where(c & 128, -magnitude, magnitude).astype(np.float32)


def to_e4m3(x):
    """Codes (uint8) rounded to nearest even; what is larger than 448 becomes 448."""
    values = from_e4m3(np.arange(127)).astype(np.float64)
    middles = (values[1:] + values[:-1]) / 2
    magnitude = np.abs(np.asarray(x, np.float64))
    code = np.searchsorted(middles, magnitude, side="left")  # a tie goes to the smaller code
    tie = middles[np.minimum(code, 125)] == magnitude
    code += tie & (code % 2 == 1)  # .. unless that one is odd
    return (code + 128 * np.signbit(x)).astype(np.uint8)


def from_e8m0(codes):
    return np.ldexp(1.0, codes.astype(np.int32) - 127).astype(np.float32)


def to_e8m0(powers):
    return (np.log2(powers).astype(np.int32) + 127).astype(np.uint8)


DECODE = {
    "BF16": from_bf16,
    "F16": lambda a: a.astype(np.float32),
    "F32": lambda a: a,
    "F8_E4M3": from_e4m3,
    "F8_E8M0": from_e8m0,
}
CODES = {
    "BF16": np.uint16,
    "F16": np.float16,
    "F32": np.float32,
    "F8_E4M3": np.uint8,
    "F8_E8M0": np.uint8,
    "I8": np.int8,
    "I32": np.int32,
    "I64": np.int64,
}


@dataclasses.dataclass
class Stored:
    """A tensor as a file has it: the format's name of its type, and its codes."""

    dtype: str
    codes: np.ndarray

    def __post_init__(self):
        self.codes = np.ascontiguousarray(self.codes)
        assert self.codes.dtype == CODES[self.dtype], (self.codes.dtype, self.dtype)

    def values(self):
        return DECODE[self.dtype](self.codes)


def stored(dtype, values):
    """float32 values in a float type."""
    return Stored(dtype, to_bf16(values) if dtype == "BF16" else np.asarray(values, CODES[dtype]))


# ---------------------------------------------------------------------------------------------- files


def write_safetensors(path, tensors):
    """Tensors by name in one file, in order."""
    header, at = {}, 0
    for name, t in tensors.items():
        header[name] = {"dtype": t.dtype, "shape": t.codes.shape, "data_offsets": [at, at + t.codes.nbytes]}
        at += t.codes.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # data begin at a multiple of 8
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for t in tensors.values():
            file.write(t.codes.tobytes())


def shards_of(tensors, shard_bytes):
    """Names in order, cut where a shard would be larger than shard_bytes."""
    shards, size = [[]], 0
    for name, t in tensors.items():
        if shards[-1] and size + t.codes.nbytes > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += t.codes.nbytes
    return shards


@dataclasses.dataclass
class Checkpoint:
    config: dict
    tensors: dict  # name -> Stored, in the order of the files
    values: dict  # name -> float32, as a reader owes them: scales applied, one rounding to bf16; experts one by one
    description: dict | None = None  # quant_model_description.json

    def write(self, folder, shard_bytes=SHARD_BYTES):
        """The folder, with shards and their index; shard_bytes None: one file and no index."""
        folder = pathlib.Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        stem = "model" if self.description is None else "quant_model_weights"
        if shard_bytes is None:
            write_safetensors(folder / f"{stem}.safetensors", self.tensors)
        else:
            shards, weight_map = shards_of(self.tensors, shard_bytes), {}
            for number, names in enumerate(shards, 1):
                file = f"{stem}-{number:05}-of-{len(shards):05}.safetensors"
                write_safetensors(folder / file, {name: self.tensors[name] for name in names})
                weight_map |= dict.fromkeys(names, file)
            total = sum(t.codes.nbytes for t in self.tensors.values())
            index = {"metadata": {"total_size": total}, "weight_map": weight_map}
            write_json(folder / f"{stem}.safetensors.index.json", index)
        if self.description is not None:
            write_json(folder / "quant_model_description.json", self.description)
        write_json(folder / "config.json", self.config)
        return folder


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1) + "\n")


# ---------------------------------------------------------------------------------------------- models

SIZES = dict(
    vocab_size=256,  # a token is a byte
    hidden_size=160,
    intermediate_size=200,
    moe_intermediate_size=48,
    num_hidden_layers=3,
    num_attention_heads=3,
    num_key_value_heads=3,
    q_lora_rank=72,
    kv_lora_rank=80,
    qk_nope_head_dim=24,
    qk_rope_head_dim=16,
    v_head_dim=20,
    n_routed_experts=8,
    num_experts_per_tok=3,
    n_shared_experts=1,
    n_group=4,
    topk_group=2,
    routed_scaling_factor=2.5,
    norm_topk_prob=True,
    scoring_func="sigmoid",
    topk_method="noaux_tc",
    first_k_dense_replace=1,
    moe_layer_freq=1,
    num_nextn_predict_layers=0,
    hidden_act="silu",
    rms_norm_eps=1e-6,
    rope_theta=10000.0,
    rope_scaling=None,
    max_position_embeddings=2048,
    tie_word_embeddings=False,
    attention_bias=False,
    torch_dtype="bfloat16",
)
INDEXER = dict(index_n_heads=4, index_head_dim=32, index_topk=24)
YARN = dict(
    type="yarn",
    factor=8,
    beta_fast=32,
    beta_slow=1,
    mscale=1.0,
    mscale_all_dim=1.0,
    original_max_position_embeddings=256,
)
KINDS = {
    "v32": dict(
        model_type="deepseek_v32", architectures=["DeepseekV32ForCausalLM"], rope_scaling=YARN, head_dim=64, **INDEXER
    ),
    "glm": dict(
        model_type="glm_moe_dsa",
        architectures=["GlmMoeDsaForCausalLM"],
        moe_intermediate_size=136,
        n_group=1,
        topk_group=1,
        mlp_layer_types=["dense", "sparse", "sparse"],
        first_k_dense_replace=None,
        head_dim=192,
        **INDEXER,
    ),
    "v3": dict(
        model_type="deepseek_v3",
        architectures=["DeepseekV3ForCausalLM"],
        moe_intermediate_size=136,
        rope_scaling=YARN,
    ),
    "k2": dict(
        model_type="kimi_k2",
        architectures=["DeepseekV3ForCausalLM"],
        n_group=1,
        topk_group=1,
        routed_scaling_factor=2.827,
    ),
}


def config_of(kind, **changes):
    """config.json of a kind; a change to None leaves the key out."""
    config = {**SIZES, **KINDS[kind], **changes}
    return {key: value for key, value in config.items() if value is not None}


def is_sparse(config, layer):
    if "n_routed_experts" not in config or not config["n_routed_experts"]:
        return False
    if layer >= config["num_hidden_layers"]:  # MTP
        return True
    if "mlp_layer_types" in config:
        return config["mlp_layer_types"][layer] == "sparse"
    return layer >= config["first_k_dense_replace"] and layer % config["moe_layer_freq"] == 0


def mlp_shapes(prefix, width, hidden):
    return {
        f"{prefix}.gate_proj.weight": (width, hidden),
        f"{prefix}.up_proj.weight": (width, hidden),
        f"{prefix}.down_proj.weight": (hidden, width),
    }


def layer_shapes(config, layer):
    """Name -> shape of a layer, experts ordered by projection: their three matrices lie in different shards."""
    c, p = config, f"model.layers.{layer}."
    he, n, cq, ckv = c["hidden_size"], c["num_attention_heads"], c["q_lora_rank"], c["kv_lora_rank"]
    d, dr, dv = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
    shapes = {
        f"{p}input_layernorm.weight": (he,),
        f"{p}self_attn.q_a_proj.weight": (cq, he),
        f"{p}self_attn.q_a_layernorm.weight": (cq,),
        f"{p}self_attn.q_b_proj.weight": (n * (d + dr), cq),
        f"{p}self_attn.kv_a_proj_with_mqa.weight": (ckv + dr, he),
        f"{p}self_attn.kv_a_layernorm.weight": (ckv,),
        f"{p}self_attn.kv_b_proj.weight": (n * (d + dv), ckv),
        f"{p}self_attn.o_proj.weight": (he, n * dv),
    }
    if "index_topk" in c:
        heads, width = c["index_n_heads"], c["index_head_dim"]
        shapes |= {
            f"{p}self_attn.indexer.wq_b.weight": (heads * width, cq),
            f"{p}self_attn.indexer.wk.weight": (width, he),
            f"{p}self_attn.indexer.k_norm.weight": (width,),
            f"{p}self_attn.indexer.k_norm.bias": (width,),
            f"{p}self_attn.indexer.weights_proj.weight": (heads, he),
        }
    shapes[f"{p}post_attention_layernorm.weight"] = (he,)
    if not is_sparse(c, layer):
        return shapes | mlp_shapes(f"{p}mlp", c["intermediate_size"], he)
    experts, width = c["n_routed_experts"], c["moe_intermediate_size"]
    shapes |= {f"{p}mlp.gate.weight": (experts, he), f"{p}mlp.gate.e_score_correction_bias": (experts,)}
    one = [list(mlp_shapes(f"{p}mlp.experts.{e}", width, he).items()) for e in range(experts)]
    shapes |= {name: shape for projection in zip(*one) for name, shape in projection}
    if c.get("n_shared_experts"):
        shapes |= mlp_shapes(f"{p}mlp.shared_experts", width * c["n_shared_experts"], he)
    return shapes


def shapes_of(config):
    """Name -> shape of every tensor, in the order of a published index."""
    he, vocab = config["hidden_size"], config["vocab_size"]
    shapes = {"model.embed_tokens.weight": (vocab, he)}
    for layer in range(config["num_hidden_layers"]):
        shapes |= layer_shapes(config, layer)
    shapes["model.norm.weight"] = (he,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocab, he)
    for layer in range(config["num_hidden_layers"], config["num_hidden_layers"] + config["num_nextn_predict_layers"]):
        p = f"model.layers.{layer}."
        shapes |= layer_shapes(config, layer) | {
            f"{p}embed_tokens.weight": (vocab, he),
            f"{p}enorm.weight": (he,),
            f"{p}hnorm.weight": (he,),
            f"{p}eh_proj.weight": (he, 2 * he),
            f"{p}shared_head.norm.weight": (he,),
            f"{p}shared_head.head.weight": (vocab, he),
        }
    return shapes


FLOAT_MATRICES = ("embed_tokens", "lm_head", "weights_proj", "mlp.gate", "eh_proj", "shared_head.head")


def is_linear(name, shape):
    """Whether a layout may quantise it."""
    return len(shape) == 2 and not any(name.endswith(f"{other}.weight") for other in FLOAT_MATRICES)


def drawn(name, shape, seed):
    """float32 values of a tensor: they depend on its name, so that other tensors may come and go."""
    normal = np.random.default_rng([seed, zlib.crc32(name.encode())]).standard_normal(shape)
    if name.endswith("norm.weight"):
        normal = 1 + 0.1 * normal
    elif len(shape) == 1:  # biases
        normal *= 0.1
    elif "embed_tokens" not in name:
        normal *= (2 if name.endswith("mlp.gate.weight") else 1) / np.sqrt(shape[1])
    return normal.astype(np.float32)


def float_dtype(name):
    """The type that published files have for what is not quantised."""
    return "F32" if name.endswith("e_score_correction_bias") or "k_norm" in name else "BF16"


# ---------------------------------------------------------------------------------------------- layouts


def per_weight(scales, shape):
    """One scale per block, spread over the weights."""
    return scales.repeat(BLOCK, 0).repeat(BLOCK, 1)[: shape[0], : shape[1]]


def fp8_scales(weight, kind, rng):
    """A scale per block, at least its largest weight / 448, as `kind` has it."""
    rows, cols = (-(-n // BLOCK) for n in weight.shape)
    padded = np.zeros((rows * BLOCK, cols * BLOCK), np.float32)
    padded[: weight.shape[0], : weight.shape[1]] = np.abs(weight)
    least = padded.reshape(rows, BLOCK, cols, BLOCK).max((1, 3)) / 448
    scales = (least * rng.uniform(1, 1.5, least.shape)).astype(np.float32)
    if kind in ("power", "e8m0"):
        scales = np.exp2(np.ceil(np.log2(scales))).astype(np.float32)
    if kind == "e8m0":
        return Stored("F8_E8M0", to_e8m0(scales))
    return stored("BF16" if kind == "bf16" else "F32", scales)


def fp8_parts(name, weight, kind, seed):
    scales = fp8_scales(weight, kind, np.random.default_rng([seed, zlib.crc32(name.encode()), 1]))
    spread = per_weight(scales.values(), weight.shape)
    codes = Stored("F8_E4M3", to_e4m3(weight / spread))
    return {name: codes, f"{name}_scale_inv": scales}, bf16(codes.values() * spread)


def int8_codes(weight, scale_dtype="F32"):
    """Codes [n, k] and scales [n, 1] of a bf16 weight, the scale as its type has it."""
    scales = stored(scale_dtype, np.abs(weight).max(1, keepdims=True) / np.float32(127))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.nan_to_num(np.rint(weight / scales.values()), posinf=0, neginf=0)
    return Stored("I8", np.clip(ratio, -127, 127).astype(np.int8)), scales


def widened(codes, scales):
    """The numbers of int8 weights where no int8 product takes them."""
    return bf16(codes.astype(np.float32) * scales)


def dynamic_parts(name, weight):
    codes, scales = int8_codes(weight)
    module = name.removesuffix(".weight")
    offset = stored("F32", np.zeros(scales.codes.shape))
    parts = {name: codes, f"{module}.weight_scale": scales, f"{module}.weight_offset": offset}
    return parts, widened(codes.codes, scales.values())


def static_parts(name, weight, bits_in_int64=False):
    """msModelSlim's W8A8 with a scale and an offset of the activations in the file."""
    codes, scales = int8_codes(weight)
    module = name.removesuffix(".weight")
    input_scale, input_offset = np.float32(0.03125 * 1.3), 3
    deq_scale = (scales.values()[:, 0] * input_scale).astype(np.float32)
    bias = -input_offset * codes.codes.astype(np.int32).sum(1, dtype=np.int32)
    parts = {
        name: codes,
        f"{module}.input_scale": stored("F32", [input_scale]),
        f"{module}.input_offset": stored("F32", [input_offset]),
        f"{module}.quant_bias": Stored("I32", bias),
        f"{module}.deq_scale": (
            Stored("I64", deq_scale.view(np.uint32).astype(np.int64)) if bits_in_int64 else Stored("F32", deq_scale)
        ),
    }
    return parts, widened(codes.codes, (deq_scale / input_scale)[:, None])


def compressed_parts(name, weight):
    codes, scales = int8_codes(weight, "BF16" if "mlp" in name else "F32")
    if "q_b_proj" in name:
        scales = Stored(scales.dtype, scales.codes[:, 0])  # [n] is as good as [n, 1]
    value = widened(codes.codes, scales.values().reshape(-1, 1))
    return {name: codes, f"{name}_scale": scales}, value


def assemble(config, seed, linear):
    """A checkpoint whose linear weights `linear(name, bf16 weight)` stores, or leaves in bf16 by None."""
    tensors, values = {}, {}
    for name, shape in shapes_of(config).items():
        value = drawn(name, shape, seed)
        parts = linear(name, bf16(value)) if is_linear(name, shape) else None
        if parts is None:
            tensors[name] = stored(float_dtype(name), value)
            values[name] = tensors[name].values()
        else:
            tensors |= parts[0]
            values[name] = parts[1]
    return Checkpoint(config, tensors, values)


def float_form(config, seed):
    return assemble(config, seed, lambda name, weight: None)


def fp8_form(scales):
    def form(config, seed):
        quantization = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
        quantization["weight_block_size"] = [BLOCK, BLOCK]
        if scales == "e8m0":
            quantization["scale_fmt"] = "ue8m0"
        config = {**config, "quantization_config": quantization}
        return assemble(config, seed, lambda name, weight: fp8_parts(name, weight, scales, seed))

    return form


def as_float(checkpoint):
    """The same numbers in bf16."""
    config = {key: value for key, value in checkpoint.config.items() if key != "quantization_config"}
    tensors = {name: stored(float_dtype(name), value) for name, value in checkpoint.values.items()}
    return Checkpoint(config, tensors, checkpoint.values)


def as_fused(checkpoint):
    """A float checkpoint with the experts of a layer in two tensors."""
    tensors = {}
    for name, t in checkpoint.tensors.items():
        prefix, found, rest = name.partition(".experts.")
        if not found:
            tensors[name] = t
            continue
        expert, projection = rest.split(".")[:2]
        if expert != "0" or projection == "up_proj":
            continue
        each = range(checkpoint.config["n_routed_experts"])
        together = ["gate_proj", "up_proj"] if projection == "gate_proj" else ["down_proj"]
        parts = [[checkpoint.tensors[f"{prefix}.experts.{e}.{one}.weight"].codes for one in together] for e in each]
        fused = "gate_up_proj" if projection == "gate_proj" else "down_proj"
        tensors[f"{prefix}.experts.{fused}"] = Stored(t.dtype, np.stack([np.concatenate(part) for part in parts]))
    return Checkpoint(checkpoint.config, tensors, checkpoint.values)


STATIC = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj")
DYNAMIC = {
    "dynamic": ("mlp", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "wq_b"),
    "mixed": ("mlp", "q_b_proj", "kv_b_proj", "o_proj"),
    "static": ("mlp",),
    "static-int64": ("mlp",),
}


def modelslim_form(recipe):
    def linear(name, weight):
        parts = name.split(".")
        if any(part in parts for part in DYNAMIC[recipe]):
            return dynamic_parts(name, weight)
        if recipe.startswith("static") and parts[-2] in STATIC:
            return static_parts(name, weight, bits_in_int64=recipe == "static-int64")
        return None

    def form(config, seed):
        made = assemble(config, seed, linear)
        modules = {name.rpartition(".")[0]: "FLOAT" for name in made.tensors}
        for name in made.tensors:
            module, _, last = name.rpartition(".")
            if last in ("weight_scale", "deq_scale"):
                modules[module] = "W8A8_DYNAMIC" if last == "weight_scale" else "W8A8"
        kinds = {name: modules[name.rpartition(".")[0]] for name in made.tensors}
        whole = "W8A8" if "W8A8" in kinds.values() else "W8A8_DYNAMIC"
        made.description = {"model_quant_type": whole, "version": "1.0.0", "group_size": 0, **kinds}
        return made

    return form


def compressed_form(config, seed):
    made = assemble(
        config,
        seed,
        lambda name, weight: (
            compressed_parts(name, weight)
            if any(part in name.split(".") for part in ("mlp", "q_b_proj", "wq_b", "o_proj"))
            else None
        ),
    )
    eight_bits = {"num_bits": 8, "type": "int", "symmetric": True}
    made.config = {
        **config,
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "format": "int-quantized",
            "config_groups": {
                "group_0": {
                    "targets": ["Linear"],
                    "weights": {**eight_bits, "strategy": "channel", "dynamic": False},
                    "input_activations": {**eight_bits, "strategy": "token", "dynamic": True},
                }
            },
            "ignore": ["lm_head", "re:.*self_attn.(q_a_proj|kv_a_proj_with_mqa|kv_b_proj|indexer.wk).*"],
        },
    }
    return made


FORMS = {
    "float": float_form,
    "fused": lambda config, seed: as_fused(float_form(config, seed)),
    "fp8": fp8_form("arbitrary"),
    "fp8-power": fp8_form("power"),
    "fp8-bf16": fp8_form("bf16"),
    "fp8-e8m0": fp8_form("e8m0"),
    "dynamic": modelslim_form("dynamic"),
    "mixed": modelslim_form("mixed"),
    "static": modelslim_form("static"),
    "static-int64": modelslim_form("static-int64"),
    "compressed": compressed_form,
    "mtp": lambda config, seed: fp8_form("arbitrary")({**config, "num_nextn_predict_layers": 1}, seed),
    # The numbers of fp8, written in other layouts.
    "fp8-as-float": lambda config, seed: as_float(fp8_form("arbitrary")(config, seed)),
    "fp8-as-fused": lambda config, seed: as_fused(as_float(fp8_form("arbitrary")(config, seed))),
}
SETS = {f"{kind}-{form}": (kind, form) for kind in KINDS for form in FORMS}


def make(kind, form, seed=1, **changes):
    """A checkpoint; `changes` go into config.json before the weights are drawn."""
    return FORMS[form](config_of(kind, **changes), seed)


# ---------------------------------------------------------------------------------------------- mixture of experts


def best(values, count):
    """Places of the `count` largest: value descending, then place ascending, NaN last."""
    return np.argsort(-values, kind="stable")[:count]


def route(logits, bias, config):
    """Experts [T, k] in ascending order and their weights (float32), of router logits (float32) [T, E]."""
    c, chosen, weights = config, [], []
    groups = c["n_group"]
    with np.errstate(over="ignore"):
        scores = (1 / (1 + np.exp(-np.asarray(logits, np.float64)))).astype(np.float32)
    for s in scores:
        choice = s + np.asarray(bias, np.float32)
        if groups > 1:
            members = choice.reshape(groups, -1)
            sums = np.array([m[first] + m[second] for m in members for first, second in [best(m, 2)]], np.float32)
            kept = np.isin(np.arange(groups), best(sums, c["topk_group"]))
            choice = np.where(kept.repeat(members.shape[1]), choice, np.float32(-np.inf))
        experts = np.sort(best(choice, c["num_experts_per_tok"]))
        w = s[experts]
        if c["norm_topk_prob"]:
            total = np.float32(0)
            for value in w:
                total = total + value
            w = w / (total + np.float32(1e-20))
        chosen.append(experts)
        weights.append(w * np.float32(c["routed_scaling_factor"]))
    return np.array(chosen), np.array(weights, np.float32)


def silu(x):
    return x / (1 + np.exp(-x))


def gated_mlp(x, gate, up, down):
    """down(bf16(silu(gate xb) * (up xb))), xb = bf16(x), sums in float64."""
    xb = bf16(x).astype(np.float64)
    return bf16(silu(xb @ gate.T.astype(np.float64)) * (xb @ up.T.astype(np.float64))) @ down.T.astype(np.float64)


def row_codes(x):
    """int8 codes and scales of rows, one float32 rounding per operation."""
    x = np.asarray(x, np.float32)
    largest = np.abs(x).max(1, keepdims=True)
    with np.errstate(divide="ignore", over="ignore"):
        factor = np.float32(127) / largest
    zero = ~np.isfinite(factor)
    factor = np.where(zero, np.float32(0), factor)
    return np.rint(x * factor).astype(np.int64), np.where(zero, np.float32(0), largest / np.float32(127))


def int8_product(x, codes, scales):
    rows, row_scales = row_codes(x)
    factors = row_scales * np.asarray(scales, np.float32).reshape(1, -1)
    return ((rows @ codes.astype(np.int64).T) * factors.astype(np.float64)).astype(np.float32)


def gated_mlp_int8(x, gate, up, down):
    """The same of int8 weights (codes, scales), with codes of the rows."""
    product = silu(int8_product(x, *gate)) * int8_product(x, *up)
    return int8_product(product, *down).astype(np.float64)


def moe(x, weights_of, gate, bias, config, mlp=gated_mlp):
    """y [T, He] in float64 for x [T, He], the normed residual. weights_of(expert or "shared"): gate, up and down."""
    logits = (np.asarray(x, np.float64) @ gate.T.astype(np.float64)).astype(np.float32)
    chosen, weights = route(logits, bias, config)
    y = np.zeros(x.shape)
    for e in range(config["n_routed_experts"]):
        tokens, places = np.nonzero(chosen == e)
        if len(tokens):
            y[tokens] += weights[tokens, places, None].astype(np.float64) * mlp(x[tokens], *weights_of(e))
    return y + mlp(x, *weights_of("shared")) if config.get("n_shared_experts") else y


def moe_of(checkpoint, layer, x):
    """moe of a sparse layer of a checkpoint, its weights as `values` has them."""
    p, v = f"model.layers.{layer}.mlp.", checkpoint.values

    def weights_of(expert):
        module = "shared_experts" if expert == "shared" else f"experts.{expert}"
        return [v[f"{p}{module}.{one}_proj.weight"] for one in ("gate", "up", "down")]

    return moe(x, weights_of, v[f"{p}gate.weight"], v[f"{p}gate.e_score_correction_bias"], checkpoint.config)


# ---------------------------------------------------------------------------------------------- self test


def test_encodings():
    every = np.arange(256, dtype=np.uint8)
    numbers = every[(every & 127) != 127]
    assert np.array_equal(to_e4m3(from_e4m3(numbers)), numbers)
    assert from_e4m3(np.array([0x7E, 0x01, 0x08, 0xB8])).tolist() == [448, 2.0**-9, 2.0**-6, -1]
    assert to_e4m3([1.0625, 1.1875, 1.0626, -(2.0**-10), 3 * 2.0**-10, 1e9]).tolist() == [56, 58, 57, 128, 2, 126]
    ties = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0xBF807FFF], np.uint32).view(np.float32)
    assert to_bf16(ties).tolist() == [0x3F80, 0x3F82, 0x3F81, 0xBF80]
    assert from_e8m0(to_e8m0(np.float32([1, 0.25, 2.0**-126]))).tolist() == [1, 0.25, 2.0**-126]


def test_micro_example():
    """8 experts in 4 groups, worked out by hand."""
    config = dict(n_routed_experts=8, n_group=4, topk_group=2, num_experts_per_tok=4, n_shared_experts=1)
    config |= dict(routed_scaling_factor=2.5, norm_topk_prob=True)
    logits = np.float32([[2, -1, 0.5, 0.5, -2, 1, 3, -3]])
    bias = np.float32([0, -0.5, 0.25, 0.25, 0, -0.3, -0.5, 0])
    experts, weights = route(logits, bias, config)
    assert experts.tolist() == [[0, 1, 2, 3]]
    assert np.allclose(weights, [[0.9195440, 0.2807724, 0.6498418, 0.6498418]], rtol=0, atol=1e-7)
    y = moe(
        np.ones((1, 1)),
        lambda e: (e,),
        logits.T,
        bias,
        config,
        lambda x, e: np.array([[10.0 if e == "shared" else e + 1]]),
    )
    assert abs(y.item() - 16.02998) < 1e-5


def test_ties():
    """What is equal goes by place; NaN is last, behind -inf."""
    config = dict(n_group=4, topk_group=2, num_experts_per_tok=3, norm_topk_prob=False, routed_scaling_factor=1.0)
    equal, none = np.zeros((1, 8), np.float32), np.zeros(8, np.float32)
    assert route(equal, none, config)[0].tolist() == [[0, 1, 2]]
    assert route(equal, none, {**config, "n_group": 1, "num_experts_per_tok": 8})[0].tolist() == [list(range(8))]
    lost = np.array([[np.nan, 0, 0, 0, 0, 0, 0, 0]], np.float32)
    assert route(lost, none, config)[0].tolist() == [[2, 3, 4]]
    assert best(np.float32([np.nan, -np.inf, 1, np.nan]), 4).tolist() == [2, 1, 0, 3]


def self_test():
    for test in (test_encodings, test_micro_example, test_ties):
        test()


def main(arguments):
    if arguments == ["--self-test"]:
        return self_test()
    unknown = [name for name in arguments[1:] if name not in SETS]
    if not arguments or arguments[0].startswith("-") or unknown:
        sys.exit(f"{__doc__}\nsets: {' '.join(SETS)}")
    for name in arguments[1:] or SETS:
        made = make(*SETS[name])
        folder = made.write(pathlib.Path(arguments[0]) / name)
        print(f"{folder}: {len(made.tensors)} tensors, {sum(t.codes.nbytes for t in made.tensors.values())} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
