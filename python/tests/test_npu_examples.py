# SPDX-License-Identifier: Apache-2.0
"""torch_npu on examples of the documents, to the last bit, and on what engines pass beyond the operators' own pages."""

import pytest

torch = pytest.importorskip("torch", minversion="2.13")

import dsakit  # noqa: E402
import dsakit.npu  # noqa: E402
from oracle.npu_calls import inputs, results_of  # noqa: E402

# ---- the examples of the documents


def floats(*values):
    return torch.tensor(values, dtype=torch.float32)


def bf16(*values):
    return torch.tensor(values).to(torch.bfloat16)


def int8(*values):
    return torch.tensor(values, dtype=torch.int8)


def test_add_rms_norm(npu):
    """y is rounded once more than in rms_norm; x is the sum, rounded."""
    zero, gamma = bf16(0, 0, 0, 0), bf16(1.5, 0.75, 1.25, 3)
    y, rstd, x = npu.npu_add_rms_norm(bf16(1.25, 0.5, 0, -1), zero, gamma)
    assert rstd.view(torch.int32).item() == 0x3F98A618
    assert y.tolist() == [2.234375, 0.44921875, 0, -3.59375]
    assert npu.npu_rms_norm(x, gamma)[0].tolist() == [2.234375, 0.447265625, 0, -3.578125]
    sums = npu.npu_add_rms_norm(bf16(1, -2, 2, 4), bf16(0.005859375, 0, 0, 0), gamma)[2]
    assert sums.tolist() == [1.0078125, -2, 2, 4]


def test_quant_matmul(npu):
    x1, x2 = int8([1, 2], [-3, 4]), int8([5, -6], [7, 8])
    how = dict(output_dtype=torch.bfloat16)
    y = npu.npu_quant_matmul(x1, x2, floats(0.5, 0.25), pertoken_scale=floats(0.1, 0.2), **how)
    assert y.tolist() == [[0.94921875, 0.25], [1.296875, 2.5]]
    y = npu.npu_quant_matmul(x1, x2, floats(0.1, 0.2), bias=torch.tensor([1, -1]).int(), **how)
    assert y.tolist() == [[2, 1.796875], [1.3984375, 9.8125]]


def test_swiglu_and_transpose_batchmatmul(npu):
    assert npu.npu_swiglu(bf16(1, 2, 3, 4)).tolist() == [2.1875, 7.03125]
    y = npu.npu_transpose_batchmatmul(bf16([[2]], [[3]]), bf16([[5]], [[7]]))
    assert y.tolist() == [[[10], [21]]]


def test_kv_rmsnorm_rope_cache(npu):
    kv = bf16(1, -2, 2, 4, 1, 2, 3, 4).view(1, 1, 1, 8)
    cos, sin = bf16(0.5, 0.25, 1, 2).view(1, 1, 1, 4), bf16(1, 0.5, 0.125, 0.75).view(1, 1, 1, 4)
    rope, latent = (torch.zeros(2, 2, 1, 4, dtype=torch.bfloat16) for _ in range(2))
    npu.npu_kv_rmsnorm_rope_cache(kv, bf16(1, 0.5, 1, 2), cos, sin, torch.tensor([3]), rope, latent, cache_mode="PA")
    assert (latent[1, 1, 0].view(torch.int16).int() & 0xFFFF).tolist() == [0x3ECD, 0xBECD, 0x3F4D, 0x404D]
    assert rope[1, 1, 0].tolist() == [-1.5, -1.25, 2.125, 10.25]
    assert not latent.flatten()[:-4].any() and not rope.flatten()[:-4].any()


def test_rotations_and_codes(npu):
    cos, sin = floats(0.5, 0.25, 1, 2).view(1, 1, 1, 4), floats(1, 0.5, 0.125, 0.75).view(1, 1, 1, 4)
    x = floats(1, 2, 3, 4).view(1, 1, 1, 4)
    assert npu.npu_rotary_mul(x, cos, sin).flatten().tolist() == [-2.5, -1.5, 3.125, 9.5]
    assert npu.npu_rotary_mul(x, cos, sin, "interleave").flatten().tolist() == [-1.5, 1, 2.5, 10.25]
    y = npu.npu_interleave_rope(*(v.to(torch.bfloat16) for v in (x, cos, sin)))
    assert y.flatten().tolist() == [-1.5, -1.25, 2.125, 10.25]
    y, scale = npu.npu_dynamic_quant(bf16([0.8125, -0.40625, 0.10009765625, 0.796875, 0]))
    assert y.tolist() == [[127, -64, 16, 125, 0]] and scale.view(torch.int32).item() == 0x3BD1A347
    codes = floats(1, -1, 2, -2, 7, -8, 0, 3)
    assert npu.npu_quantize(codes, floats(1), None, torch.quint4x2, -1, False).item() == 0x3087E2F1
    assert npu.npu_quantize(floats(0.25), floats(0.1), None, torch.qint8, 0).item() == 2


def test_attention_update(npu):
    out, lse = npu.npu_attention_update([floats(1), floats(2)], [floats([10]), floats([20])], 1)
    assert lse.item() == pytest.approx(2.3132617, rel=1e-7) and out.item() == pytest.approx(17.310586, rel=1e-7)


def test_a_weak_reference_keeps_the_memory(npu):
    tensor = torch.ones(3)
    alias = npu._C._weak_ref_tensor(tensor)
    address = tensor.data_ptr()
    del tensor
    assert alias.data_ptr() == address and alias.tolist() == [1, 1, 1]


# ---- what differs from the pages of the operators


def test_rows_are_what_follows_the_first_axis(npu):
    rows = dict(key_in=-1 - torch.arange(12.0).view(6, 1, 2), key_cache_in=torch.zeros(12, 1, 2))
    groups = dict(group_len=[2, 1, 0], group_key_idx=[0, 5, 0], group_key_cache_idx=[2, 9, 0])
    args = rows | {n: torch.tensor(v).int() for n, v in groups.items()} | dict(block_size=4)
    flat = args | {n: args[n].flatten(1) for n in ("key_in", "key_cache_in")}
    torch.ops._C_ascend.store_kv_block(**args)
    torch.ops._C_ascend.store_kv_block(**flat)
    assert flat["key_cache_in"][9].tolist() == [-11, -12] and torch.equal(flat["key_cache_in"], args["key_cache_in"][:, 0])


def test_batch_matmul_transpose_fills_either_shape(npu):
    args = inputs("batch matmul transpose")
    flat = args | dict(tensor_c=args["tensor_c"].flatten(1).clone())
    for given in (args, flat):
        assert torch.ops._C_ascend.batch_matmul_transpose(**given) is None
    assert torch.equal(flat["tensor_c"], args["tensor_c"].flatten(1)) and args["tensor_c"].ne(7).any()


def test_transposed_weights(npu):
    x, weight = bf16([[1, 2]], [[3, 4]]), bf16([[5, 6]], [[7, 8]])  # [b, m, k] and [b, n, k]
    for perm in ([0, 2, 1], (0, 2, 1)):
        assert npu.npu_transpose_batchmatmul(x, weight, perm_x2=perm).tolist() == [[[17], [53]]]
    assert npu.npu_transpose_batchmatmul(x, weight.transpose(1, 2).contiguous(), perm_x2=None).tolist() == [[[17], [53]]]
    with dsakit.npu.level("strict"), pytest.raises(dsakit.Error, match="perm_x2 .*strict"):
        npu.npu_transpose_batchmatmul(x, weight, perm_x2=[0, 2, 1])


def test_updates_come_as_lists_tuples_and_unbound_tensors(npu):
    lse, out = torch.rand(3, 5), torch.rand(3, 5, 8)
    want = npu.npu_attention_update(list(lse), list(out), 1)
    for made in (tuple, lambda t: t.unbind(0)):
        assert all(map(torch.equal, npu.npu_attention_update(made(lse), made(out), 1), want))


def test_values_may_be_the_codes_alone(npu):
    args = inputs("kvsfa")
    want = torch.ops._C_ascend.npu_kv_quant_sparse_flash_attention(**args)[0]
    alone = args | dict(value=args["key"][..., :16].clone())
    assert torch.equal(torch.ops._C_ascend.npu_kv_quant_sparse_flash_attention(**alone)[0], want)
    alone["value"].add_(1)
    with pytest.raises(dsakit.Error, match="npu_kv_quant_sparse_flash_attention: value"):
        torch.ops._C_ascend.npu_kv_quant_sparse_flash_attention(**alone)


def test_views_of_caches_are_scattered_into(npu):
    cache = torch.zeros(2, 3, 1, 4)
    view = cache.view(-1, 4)
    assert npu.npu_scatter_nd_update_(view, torch.tensor([[4], [-1]]), torch.ones(2, 4)) is view
    assert cache[1, 1, 0].tolist() == [1, 1, 1, 1] and cache.sum() == 4
    npu.npu_scatter_nd_update_(cache, torch.tensor([[0]]), torch.full((1, 3, 1, 4), 2.0))
    assert cache[0].eq(2).all()


def test_modes_are_said_in_strict(npu):
    args = inputs("qli")
    torch.ops.npu.npu_quant_lightning_indexer(**args)
    with dsakit.npu.level("strict"), pytest.raises(dsakit.Error, match="query_quant_mode is missing"):
        torch.ops.npu.npu_quant_lightning_indexer(**args)


@pytest.mark.parametrize("given, results", [({}, 1), (dict(return_value=False), 2), (dict(cmp_ratio=1), 1)])
def test_recipes_indexer(npu, given, results):
    got = results_of(torch.ops.custom.npu_quant_lightning_indexer(**inputs("qli"), **given))
    assert len(got) == results and torch.equal(got[0], dsakit.quant_lightning_indexer(**inputs("qli")))
    assert all(r.shape == (0,) and r.dtype == torch.float32 for r in got[1:])
    for refused in (dict(metadata=torch.zeros(1)), dict(cmp_ratio=4), dict(return_value=True)):
        with pytest.raises(NotImplementedError, match=next(iter(refused))):
            torch.ops.custom.npu_quant_lightning_indexer(**inputs("qli"), **refused)


def test_strided_slices_in_strict(npu):
    """Of a split projection, as engines pass them."""
    bf = lambda *shape: torch.rand(shape).to(torch.bfloat16)
    projected, cos, sin = bf(2, 3, 1, 192), bf(2, 1, 1, 64), bf(2, 1, 1, 64)
    slots, gamma = torch.tensor([3, 0]), bf(512)
    calls = {
        "npu_rotary_mul": lambda f, x: f(x, cos, sin),
        "npu_interleave_rope": lambda f, x: f(x, cos, sin),
    }
    with dsakit.npu.level("strict"):
        for name, call in calls.items():
            part = projected[..., 128:]
            assert torch.equal(call(getattr(npu, name), part), call(getattr(npu, name), part.contiguous())), name
        kv, caches = bf(2, 1, 1, 600)[..., 24:], []
        for rows in (kv, kv.contiguous()):
            rope, latent = (torch.zeros(2, 16, 1, n, dtype=torch.bfloat16) for n in (64, 512))
            npu.npu_kv_rmsnorm_rope_cache(rows, gamma, cos, sin, slots, rope, latent, cache_mode="PA")
            caches.append((rope, latent))
        assert all(map(torch.equal, *caches)) and caches[0][1].any()
