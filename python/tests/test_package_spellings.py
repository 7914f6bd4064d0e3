# SPDX-License-Identifier: Apache-2.0
"""The calling forms of torch_npu, the recipes and vllm-ascend; reserved keywords; tolerances that warn."""

import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

import dsakit

BF16 = ml_dtypes.bfloat16
TORCH_NPU = (
    "add_rms_norm add_rms_norm_bias attention_update rms_norm swiglu "
    "kv_rmsnorm_rope_cache kv_rmsnorm_rope_cache_v2 kv_rmsnorm_rope_cache_v2_functional "
    "dynamic_block_quant dynamic_quant fused_infer_attention_score_v2 gather_pa_kv_cache "
    "gather_pa_kv_cache_functional interleave_rope kv_quant_sparse_flash_attention "
    "lightning_indexer mla_prolog_v2 mla_prolog_v3 mla_prolog_v3_functional quant_lightning_indexer quantize "
    "rotary_mul scatter_nd_update scatter_nd_update_ scatter_pa_kv_cache scatter_pa_kv_cache_functional "
    "quant_matmul sparse_flash_attention transpose_batchmatmul"
).split()


def refused(builtin, parameter, call):
    with pytest.raises(builtin) as caught:
        call()
    assert isinstance(caught.value, dsakit.Error) and caught.value.parameter == parameter, caught.value
    return caught.value


@pytest.fixture
def select():
    """Arguments of a small lightning_indexer call."""
    rng = np.random.default_rng(7)
    return dict(
        query=rng.random((2, 3, 4, 16)).astype(BF16),
        key=rng.random((2, 9, 1, 16)).astype(BF16),
        weights=rng.random((2, 3, 4)).astype(BF16),
        sparse_count=5,
    )


@pytest.fixture
def packed():
    """Arguments of a small kv_quant_sparse_flash_attention call, without the quant modes."""
    rng = np.random.default_rng(3)
    rows = dsakit.pack_kv_rows(
        rng.integers(-99, 99, (1, 9, 1, 32), np.int8),
        rng.random((1, 9, 1, 4)).astype(BF16),
        rng.random((1, 9, 1, 2)).astype(np.float32),
    )
    return dict(
        query=rng.random((1, 2, 3, 36)).astype(BF16),
        key=rows,
        value=rows,
        sparse_indices=np.array([[[[0, 3, -1]], [[8, 2, 5]]]], np.int32),
        scale_value=0.5,
        sparse_mode=0,
        attention_mode=2,
        tile_size=16,
        rope_head_dim=4,
    )


def test_every_name_of_torch_npu():
    for name in TORCH_NPU:
        spelled = getattr(dsakit, "npu_" + name)
        assert getattr(dsakit.ops.npu, "npu_" + name) is spelled and spelled.__name__ == "npu_" + name
        assert callable(getattr(dsakit.reference, "npu_" + name))


def test_indexer_forms(select):
    wanted = dsakit.lightning_indexer(**select)[0]
    for function in (dsakit.npu_lightning_indexer, dsakit.ops._C_ascend.npu_lightning_indexer):
        np.testing.assert_array_equal(function(**select)[0], wanted)
    older = dsakit.ops.npu.lightning_indexer
    np.testing.assert_array_equal(older(**select), wanted)
    for name in ("pre_tokens", "next_tokens", "return_value"):
        with pytest.raises(TypeError, match=name):
            older(**select, **{name: 2**63 - 1})


def test_quantised_indexer_forms(indexer):
    wanted = dsakit.quant_lightning_indexer(**indexer)
    five = [indexer[n] for n in ("query", "key", "weights", "query_dequant_scale", "key_dequant_scale")]
    for function in (
        dsakit.npu_quant_lightning_indexer,
        dsakit.npu_lightning_indexer_quant,
        dsakit.ops.custom.npu_quant_lightning_indexer,
        dsakit.ops.custom.npu_lightning_indexer_quant,
        dsakit.ops._C_ascend.npu_lightning_indexer_quant,
    ):
        np.testing.assert_array_equal(function(**indexer), wanted)
        np.testing.assert_array_equal(function(*five, sparse_count=5, query_quant_mode=0, key_quant_mode=0), wanted)
        refused(ValueError, "query_quant_mode", lambda: function(**indexer, query_quant_mode=2))
    np.testing.assert_array_equal(dsakit.npu_quant_lightning_indexer(*five, 0, 0, sparse_count=5), wanted)
    with pytest.raises(TypeError, match="pre_tokens"):
        dsakit.ops.custom.npu_quant_lightning_indexer(**indexer, pre_tokens=1)


def test_strict_wants_the_quant_modes_in_the_spelling_of_torch_npu():
    rng = np.random.default_rng(7)
    strict = dict(
        query=rng.integers(-128, 128, (1, 1, 64, 128), np.int8),
        key=rng.integers(-128, 128, (1, 9, 1, 128), np.int8),
        weights=rng.random((1, 1, 64)).astype(np.float16),
        query_dequant_scale=rng.random((1, 1, 64)).astype(np.float16),
        key_dequant_scale=rng.random((1, 9, 1)).astype(np.float16),
        level="strict",
    )
    wanted = dsakit.quant_lightning_indexer(**strict)
    spelled = dsakit.npu_quant_lightning_indexer
    np.testing.assert_array_equal(spelled(**strict, query_quant_mode=0, key_quant_mode=0), wanted)
    np.testing.assert_array_equal(spelled(**strict | dict(level="portable")), wanted)
    assert refused(ValueError, "query_quant_mode", lambda: spelled(**strict)).status == "INVALID_ARGUMENT"
    refused(ValueError, "key_quant_mode", lambda: spelled(**strict, query_quant_mode=0))
    np.testing.assert_array_equal(dsakit.npu_lightning_indexer_quant(**strict), wanted)


def test_packed_attention_returns_one_or_three(packed):
    modes = dict(key_quant_mode=2, value_quant_mode=2)
    out, largest, total = dsakit.kv_quant_sparse_flash_attention(**packed, **modes, return_softmax_lse=True)
    for function in (dsakit.kv_quant_sparse_flash_attention, dsakit.npu_kv_quant_sparse_flash_attention):
        alone = function(**packed, **modes)
        assert isinstance(alone, np.ndarray) and alone.tobytes() == out.tobytes()
    fork = dsakit.ops._C_ascend.npu_kv_quant_sparse_flash_attention
    for lse in (True, False):
        three = fork(**packed, **modes, return_softmax_lse=lse)
        assert len(three) == 3 and three[0].tobytes() == out.tobytes()
        assert three[1].shape == (largest.shape if lse else (0,)) and three[2].dtype == total.dtype == np.float32
    refused(ValueError, "key_quant_mode", lambda: fork(**packed))  # its own default
    refused(ValueError, "value_quant_mode", lambda: fork(**packed, key_quant_mode=2))
    attend = dsakit.kv_quant_sparse_flash_attention
    for name in ("key_dtype", "value_dtype"):
        refused(NotImplementedError, name, lambda: attend(**packed, **modes, **{name: 1}))
    for missing in modes:
        given = {name: 2 for name in modes if name != missing}
        refused(ValueError, missing, lambda: attend(**packed, **given))


def test_fork_of_sparse_attention_has_no_sinks(packed):
    codes, rope, scales = dsakit.unpack_kv_rows(packed["key"], rope_head_dim=4, tile_size=16)
    latent = (codes.astype(np.float32) * np.repeat(scales, 16, axis=-1)).astype(BF16)
    query = packed["query"]
    given = dict(query=query[..., :32].copy(), query_rope=query[..., 32:].copy(), key=latent, value=latent, key_rope=rope)
    given |= {n: packed[n] for n in ("sparse_indices", "scale_value", "sparse_mode", "attention_mode")}
    fork = dsakit.ops._C_ascend.npu_sparse_flash_attention
    given["return_softmax_lse"] = True
    for a, b in zip(fork(**given), dsakit.sparse_flash_attention(**given)):
        assert a.tobytes() == b.tobytes()
    with pytest.raises(TypeError, match="sinks"):
        fork(**given, sinks=np.zeros(3, np.float32))
    refused(ValueError, "scale_value", lambda: dsakit.sparse_flash_attention(**given | dict(scale_value=None)))


PROLOG_DTYPES = ["token_x_dtype", "weight_dq_dtype", "weight_uq_qr_dtype", "weight_dkv_kr_dtype", "kv_cache_dtype"]


@pytest.mark.parametrize("name", ["mla_prolog_v3", "mla_prolog_v3_functional"])
def test_keywords_of_the_prolog_that_must_be_none(name):
    function = getattr(dsakit, name)
    for reserved in PROLOG_DTYPES:
        assert refused(NotImplementedError, reserved, lambda: function(**{reserved: 291})).operator == name
        refused(ValueError, "token_x", lambda: function(**{reserved: None}))
    refused(ValueError, "token_x", lambda: function(k_pe_clip_alpha=None))
    refused(ValueError, "k_pe_clip_alpha", lambda: function(k_pe_clip_alpha=1.0))
    refused(ValueError, "k_pe_clip_alpha", lambda: function(k_pe_clip_alpha=None, level="strict"))


def test_fused_attention():
    x = np.ones((1, 2, 3, 16), np.float32)
    for module in (dsakit, dsakit.reference):
        attend = module.fused_infer_attention_score_v2
        given = dict(num_query_heads=2, input_layout="BNSD")
        out, lse = attend(x, x, x, **given)
        assert out.shape == x.shape and lse.dtype == np.float32 and lse.tolist() == [0.0]
        assert attend(x, x, x, **given, return_softmax_lse=True)[1].shape == (1, 2, 3, 1)
        names = "query key value query_rope key_rope key_shared_prefix value_shared_prefix dequant_scale_query "
        names += "dequant_scale_key dequant_scale_value dequant_scale_key_rope out"
        for reserved in [n + "_dtype" for n in names.split()] + ["quant_scale_p"]:
            assert attend(x, x, x, **given, **{reserved: None})[0].tobytes() == out.tobytes()
            refused(NotImplementedError, reserved, lambda: attend(x, x, x, **given, **{reserved: 1}))


def test_quantisation_that_is_reserved():
    x = np.ones((2, 128), BF16)
    for function in (dsakit.dynamic_mx_quant, dsakit.npu_dynamic_mx_quant, dsakit.reference.dynamic_mx_quant):
        assert refused(NotImplementedError, "dst_type", lambda: function(x)).operator == function.__name__
    torch = pytest.importorskip("torch")
    for one in (1, np.int64(1), "int8", "qint8", np.int8, np.dtype(np.int8), torch.int8, torch.qint8):
        assert dsakit.dynamic_block_quant(x, dst_type=one)[0].dtype == np.int8
    for other in (2, 291, torch.float8_e4m3fn, "hifloat8", np.uint8):
        refused(NotImplementedError, "dst_type", lambda: dsakit.dynamic_block_quant(x, dst_type=other))
    for wrong, builtin in (("eight", ValueError), (None, ValueError), (True, TypeError)):
        refused(builtin, "dst_type", lambda: dsakit.dynamic_block_quant(x, dst_type=wrong))


WARNS = """
import sys, warnings
sys.path.insert(0, {tests!r})
import numpy as np
from oracle.mla_prolog_v3_cases import mla_prolog_v3, SMALL
import dsakit
given, caches = mla_prolog_v3(5, 4, lengths=(3,), **SMALL)
given |= dict(quant_scale_ckv=np.ones((1, SMALL["latent"]), np.float32))
for expected in (1, 0):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dsakit.mla_prolog_v3(**given, **caches)
    assert len(caught) == expected, [str(w.message) for w in caught]
    for w in caught:
        assert "quant_scale_ckv" in str(w.message) and w.category is UserWarning and w.filename == "<string>", w
"""


def test_tolerances_warn_once_in_a_process():
    tests = str(__import__("pathlib").Path(__file__).parent)
    done = subprocess.run([sys.executable, "-c", WARNS.format(tests=tests)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_empty_kv_rows():
    rows = dsakit.empty_kv_rows(3, 16, 1)
    assert rows.shape == (3, 16, 1, 656) and rows.dtype == np.int8 and not rows.any()
    assert dsakit.empty_kv_rows(7, kv_lora_rank=32, rope_head_dim=4, tile_size=16).shape == (7, 48)
    assert dsakit.empty_kv_rows(0, 16, 1, like=rows).shape == (0, 16, 1, 656)
    torch = pytest.importorskip("torch")
    tensor = dsakit.empty_kv_rows(3, 16, 1, like=torch.zeros(1))
    assert isinstance(tensor, torch.Tensor) and tensor.shape == (3, 16, 1, 656) and tensor.dtype == torch.int8
    codes = torch.ones((3, 16, 1, 512), dtype=torch.int8)
    rope, scales = torch.ones((48, 64), dtype=torch.bfloat16), torch.ones((3, 16, 4))
    assert dsakit.pack_kv_rows(codes, rope, scales, rows=tensor) is tensor
    for a, b in zip(dsakit.unpack_kv_rows(tensor, rope_dtype=torch.bfloat16), (codes, rope, scales)):
        assert torch.equal(a.reshape(b.shape), b)
    for given, parameter in (
        (dict(kv_lora_rank=0), "kv_lora_rank"),
        (dict(tile_size=100), "tile_size"),
        (dict(rope_head_dim=-1), "rope_head_dim"),
        (dict(tile_size=1.5), "tile_size"),
    ):
        refused(ValueError, parameter, lambda: dsakit.empty_kv_rows(3, **given))
    refused(ValueError, "axes[1]", lambda: dsakit.empty_kv_rows(3, -1))
    refused(TypeError, "like", lambda: dsakit.empty_kv_rows(3, like=[1]))
