# SPDX-License-Identifier: Apache-2.0
"""examples/npu_decode.py, a layer as it is written for an NPU: bit for bit the package's functions on numpy arrays, at any
number of threads and both levels; the layer of a checkpoint; compiled."""

import importlib.util
import json
import pathlib
import shutil
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

torch = pytest.importorskip("torch", minversion="2.13")

import dsakit  # noqa: E402
import dsakit.npu  # noqa: E402
from oracle.harness import assert_same, to_torch  # noqa: E402
from test_layer_by_operators import TINY, per_channel, rope_table  # noqa: E402

SCRIPT = pathlib.Path(__file__).parents[2] / "examples" / "npu_decode.py"


@pytest.fixture(scope="module")
def example():
    """The example as a module, while the face is in place."""
    dsakit.npu.install()
    spec = importlib.util.spec_from_file_location("npu_decode", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    dsakit.npu.uninstall()


@pytest.fixture(scope="module")
def layer_weights(example):
    sizes = {"V3.2": example.V32, "GLM-5": example.GLM5}
    OnNumpy.reordered.clear()  # of weights that were made before: a worker may come back to this file
    return {name: (s, example.weights(s, torch.Generator().manual_seed(1))) for name, s in sizes.items()}


class OnNumpy:
    """The operators as the package's functions on numpy arrays. Weights in FRACTAL_NZ really lie in that order there."""

    reordered: dict[int, object] = {}  # by address, of the weights of layer_weights

    def __init__(self, level):
        self.level = level

    def array(self, value):
        if not isinstance(value, torch.Tensor):
            return value
        nz = dsakit.npu.formats.get_npu_format(value) == 29
        key = value.data_ptr()
        if value.dtype == torch.bfloat16:
            value = value.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        else:
            value = value.numpy()
        if nz and key not in self.reordered:
            self.reordered[key] = dsakit.npu_format_cast(value, 29)
        return self.reordered[key] if nz else value if self.level == "portable" else np.ascontiguousarray(value)

    def __getattr__(self, name):
        def call(*args, **kwargs):
            arguments = {k: self.array(v) for k, v in kwargs.items()}
            results = getattr(dsakit, name)(*map(self.array, args), **arguments, level=self.level)
            return tuple(map(tensor, results)) if isinstance(results, tuple) else tensor(results)

        return call


def tensor(value):
    """Of the same memory."""
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(value.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(value)


# new tokens and cached ones of each sequence; how many positions are selected; whether the last token is not stored
BATCHES = {
    "1 token": ([(1, 300)], 128, False),
    "4 tokens, one not stored": ([(4, 299)], 128, True),
    "13 tokens, one not stored": ([(13, 250)], 128, True),
    "13 tokens from nothing": ([(13, 0)], 2048, False),
    "1 token and 3 drafts each": ([(4, 300), (4, 37), (4, 0)], 128, False),
    "2048 of 4096 keys": ([(1, 4095)], 2048, False),
}
PROLOGS = ("prolog", "prolog_by_parts")
KINDS = ("C8", "C16", "mixed")
LAYERS = [(model, kind, level) for model in ("V3.2", "GLM-5") for kind in KINDS for level in ("portable", "strict")]
REFUSED = [("GLM-5", "C8", "strict"), ("GLM-5", "mixed", "strict")]  # 32 index heads in int8


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("prolog", PROLOGS)
@pytest.mark.parametrize("model, kind, level", [layer for layer in LAYERS if layer not in REFUSED])
def test_bits_of_the_package(example, layer_weights, model, level, kind, prolog, batch):
    s, w = layer_weights[model]
    sequences, topk, skip = BATCHES[batch]
    generator = torch.Generator().manual_seed(2)
    step = example.batch(s, sequences, generator, skip)
    first = example.caches(s, kind, int(step.block_table.max()) + 2, generator)
    numpy = OnNumpy(level)

    def run(operators, threads):
        cache = {n: t.clone() for n, t in first.items()}
        before = dsakit.get_num_threads()
        dsakit.set_num_threads(threads)
        try:
            with dsakit.npu.level(level):
                results = example.decode(operators, s, w, cache, kind, step, topk, getattr(example, prolog))
        finally:
            dsakit.set_num_threads(before)
        return dict(zip(("selection", "attention", "output"), results)) | cache

    want = run(numpy, 1)
    for threads in (1, 8):
        got = run(example.torch_npu, threads)
        for name in want:
            assert torch.equal(got[name], want[name]), (threads, name)
    assert numpy.reordered.keys() >= {w["weight_uq_qr"].data_ptr(), w["wq_b"].data_ptr()}
    assert want["attention"].isfinite().all() and want["attention"].ne(0).any()
    stored = step.slots[step.slots >= 0]
    changed = (want["kv"] != first["kv"]).flatten(2).any(-1).flatten().nonzero().flatten()
    assert changed.tolist() == sorted(stored.tolist())


@pytest.mark.parametrize("model, kind, level", REFUSED)
def test_strict_refuses_32_index_heads_in_int8(example, layer_weights, model, kind, level):
    s, w = layer_weights[model]
    generator = torch.Generator().manual_seed(2)
    step, cache = example.batch(s, [(1, 0)], generator), example.caches(s, kind, 1, generator)
    with dsakit.npu.level(level), pytest.raises(NotImplementedError, match="npu_quant_lightning_indexer: .*32.*strict"):
        example.decode(example.torch_npu, s, w, cache, kind, step)


def test_command(example):
    command = [sys.executable, "-m", "dsakit.npu", "--strict", SCRIPT, "--heads", "1", "--cached", "200", "--prefill"]
    done = subprocess.run(command, capture_output=True, text=True)
    said = "4 tokens over 200 positions, 1 heads, C8: 2048 selected, output [4, 7168]"
    assert done.returncode == 0 and done.stdout.startswith(said), done.stdout + done.stderr


# ---- beside the layer of a checkpoint

ROWS = 300


class Checkpoint:
    """Layer 1 of the small model, once by dsakit.Layer and once as the example has it."""

    def __init__(self, example, folder):
        from safetensors.torch import load_file

        config = json.loads((folder / "config.json").read_text())
        self.topk = config["index_topk"]
        names = "hidden_size q_lora_rank num_attention_heads qk_nope_head_dim v_head_dim index_n_heads"
        how = dict(epsilon=1e-6, index_rotary="half", latent=config["kv_lora_rank"])
        self.s = s = example.Sizes(*(config[n] for n in names.split()), scale=128**-0.5, **how)
        prefix = "model.layers.1.self_attn."
        t = {k.removeprefix(prefix): v for k, v in load_file(folder / "model.safetensors").items() if k.startswith(prefix)}
        across = lambda name: t[name + ".weight"].T.contiguous()
        kv_b = t["kv_b_proj.weight"].view(s.heads, s.nope + s.value, s.latent)
        self.w = dict(
            weight_uk=kv_b[:, : s.nope].contiguous(),
            rmsnorm_gamma_cq=t["q_a_layernorm.weight"],
            rmsnorm_gamma_ckv=t["kv_a_layernorm.weight"],
            wk_weights=torch.cat([across("indexer.wk"), across("indexer.weights_proj")], 1),
            ln_gamma=t["indexer.k_norm.weight"].float(),
            ln_beta=t["indexer.k_norm.bias"].float(),
            w_uv=kv_b[:, s.nope :].transpose(1, 2).contiguous(),
            w_o=across("o_proj"),
            hadamard=example.hadamard(s.index_width),
        )
        int8 = dict(weight_dq="q_a_proj", weight_uq_qr="q_b_proj", weight_dkv_kr="kv_a_proj_with_mqa", wq_b="indexer.wq_b")
        for name, stored in int8.items():
            codes, scale = map(torch.from_numpy, per_channel(tensor_to_numpy(across(stored))))
            self.w[name] = example.torch_npu.npu_format_cast(codes, 29)
            self.w["wq_b_scale" if name == "wq_b" else "dequant_scale_w_" + name.removeprefix("weight_")] = scale.view(1, -1)
        self.w["wq_b_scale"] = self.w["wq_b_scale"][0]
        x = np.random.Generator(np.random.Philox(5)).normal(size=(ROWS, s.hidden)).astype(ml_dtypes.bfloat16)
        step = example.batch(s, [(ROWS, 0)], torch.Generator().manual_seed(3))
        self.batch = step._replace(x=tensor(x), cos=tensor(rope_table(ROWS)[0]), sin=tensor(rope_table(ROWS)[1]))
        pages = self.batch.block_table.numel()
        self.cache = {
            "kv": torch.zeros(pages, 128, 1, s.latent + 2 * s.rope + 4 * (s.latent // 128), dtype=torch.int8),
            "kr": torch.empty(0, dtype=torch.bfloat16),
            "index": torch.zeros(pages, 128, 1, s.index_width, dtype=torch.int8),
            "index_scale": torch.zeros(pages, 128, 1, 1, dtype=torch.float16),
        }
        layer = dsakit.Layer(str(folder), 1, mode="sparse_w8a8_packed")
        out, self.selection = np.empty((ROWS, s.hidden), np.float32), np.full((ROWS, self.topk), -1, np.int32)
        layer.prefill(x, out=out, selection=self.selection)
        self.out = torch.from_numpy(out)


def tensor_to_numpy(value):
    return value.view(torch.int16).numpy().view(ml_dtypes.bfloat16)


def test_step_2_has_the_bits_of_the_layer(example, tmp_path):
    """A layer whose last two matrices only choose: head h gives the h-th quarter of the latent space. So its output shows the
    bits of attention, and with its own selection nothing is between them and step 2."""
    from safetensors.torch import load_file, save_file

    shutil.copy(pathlib.Path(TINY, "config.json"), tmp_path)
    file = load_file(TINY / "model.safetensors")
    prefix = "model.layers.1.self_attn."
    file[prefix + "o_proj.weight"] = torch.eye(256, dtype=torch.bfloat16)
    file[prefix + "kv_b_proj.weight"].view(4, 128, 256)[:, 64:] = torch.eye(256, dtype=torch.bfloat16).view(4, 64, 256)
    save_file(file, tmp_path / "model.safetensors")
    c = Checkpoint(example, tmp_path)
    query, query_rope, *_ = example.prolog(example.torch_npu, c.s, c.w, c.cache, "C8", c.batch)
    selection = torch.from_numpy(c.selection)[:, None]
    attended = example.attend(example.torch_npu, c.s, c.cache, "C8", c.batch, query, query_rope, selection)
    chosen = torch.stack([attended[:, h, h * 64 : (h + 1) * 64] for h in range(4)], 1)
    assert_same(chosen.reshape(ROWS, 256).float().numpy(), c.out.numpy())


class Recorded:
    """The operators, and what was given to the last call of each."""

    def __init__(self, operators):
        self.operators, self.calls = operators, {}

    def __getattr__(self, name):
        def call(*args, **kwargs):
            self.calls[name] = args
            return getattr(self.operators, name)(*args, **kwargs)

        return call


def scores(call, table, rows):
    """Of an index query of one sequence with every key, in float64."""
    query, key, weights, query_scale, key_scale = (v.double() for v in call)
    positions = torch.arange(rows)
    slots = table[0, positions // 128].long() * 128 + positions % 128
    keys = key.flatten(0, 1)[slots, 0] * key_scale.flatten()[slots, None]
    dots = torch.einsum("thd,sd->ths", query * query_scale[..., None], keys).relu()
    return torch.einsum("ths,th->ts", dots, weights)


def judge_selections(a, b, s, first=0):
    """Indices in only one of two selections lie at the cut: within the bound for bf16 results of the prolog, 2^-6 of the
    row's largest score. Row i sees the first `first` + i + 1 keys. Answers in which rows the sets are equal."""
    equal = []
    for i in range(len(a)):
        sets = [set(v[i][v[i] >= 0].tolist()) for v in (a, b)]
        visible = s[i, : first + i + 1]
        assert len(sets[0]) == len(sets[1]) == min(a.shape[1], len(visible))
        cut, most = visible.topk(len(sets[0])).values[-1], visible.abs().max()
        assert all(abs(visible[j] - cut) <= most * 2**-6 for j in sets[0] ^ sets[1]), i
        equal.append(sets[0] == sets[1])
    return torch.tensor(equal)


OUTPUT_ERROR = 3e-3  # bf16 between the last two products: 1.7e-3


def relative_error(got, want):
    return ((got.double() - want.double()).square().mean() / want.double().square().mean()).sqrt()


def test_selection_and_output_beside_the_layer(example):
    """The index path rounds to bf16 before LayerNorm here, and not there."""
    c = Checkpoint(example, TINY)
    recorded = Recorded(example.torch_npu)
    indices, _, out = example.decode(recorded, c.s, c.w, c.cache, "C8", c.batch, c.topk)
    s = scores(recorded.calls["npu_quant_lightning_indexer"], c.batch.block_table, ROWS)
    equal = judge_selections(indices[:, 0], torch.from_numpy(c.selection), s)
    assert equal[: c.topk].all() and equal.float().mean() > 0.5
    assert relative_error(out[equal], c.out[equal]) < OUTPUT_ERROR


# ---- compiled


COMPILED = [("aot_eager", prolog, kind) for prolog in PROLOGS for kind in KINDS]
COMPILED += [("inductor", "prolog", "C8"), ("inductor", "prolog_by_parts", "mixed")]


@pytest.mark.parametrize("backend, prolog, kind", COMPILED)
def test_compiled(example, backend, prolog, kind):
    """aot_eager: the same bits. inductor may keep in fp32 what is rounded to bf16 between two operators of torch."""
    sizes = dict(hidden=256, q_rank=64, heads=2, nope=32, value=32, index_heads=4, latent=256)
    s, generator = example.V32._replace(**sizes), torch.Generator().manual_seed(4)
    w, step = example.weights(s, generator), example.batch(s, [(8, 300)], generator, skip=True)
    first = example.caches(s, kind, step.block_table.numel(), generator)
    recorded = Recorded(example.torch_npu)

    def run(function, operators):
        cache = {n: t.clone() for n, t in first.items()}
        results = function(operators, s, w, cache, kind, step, 128, getattr(example, prolog))
        return dict(zip(("selection", "attention", "output"), results)) | cache

    want = run(example.decode, recorded)
    torch._dynamo.reset()
    got = run(torch.compile(example.decode, backend=backend, fullgraph=True), example.torch_npu)
    assert torch.equal(got["kv"], want["kv"]) and torch.equal(got["kr"], want["kr"])
    if backend == "aot_eager":
        for name in want:
            assert torch.equal(got[name], want[name]), name
        return
    by_score = scores(recorded.calls["npu_quant_lightning_indexer"], step.block_table, 308)
    equal = judge_selections(got["selection"][:, 0], want["selection"][:, 0], by_score, 300)
    assert equal.any() and relative_error(got["output"][equal], want["output"][equal]) < OUTPUT_ERROR
