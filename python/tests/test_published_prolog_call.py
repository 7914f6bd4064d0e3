# SPDX-License-Identifier: Apache-2.0
"""npu_mla_prolog_v3 as it is widely copied: the corrected call of the page runs, and each mistake is refused with its remedy."""

import pathlib
import re

import ml_dtypes
import numpy as np
import pytest

import dsakit

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "operators" / "mla_prolog.md"
BF16 = ml_dtypes.bfloat16


def page_call():
    code = re.search(r"corrected\n.*?```python\n(.*?)```", PAGE.read_text(), re.S)[1]
    names = {}
    exec(compile(code, str(PAGE), "exec"), names)
    return names


def test_the_call_of_the_page_runs():
    names = page_call()
    assert names["query"].dtype == BF16 and names["query"].shape == (3, 2, 128)
    assert names["kv_cache"].reshape(64, -1)[[0, 1, 17]].any(axis=1).all()


def call(**change):
    """The same call with one thing as it is copied."""
    t, he, hcq, n, d, hckv, dr = 3, 64, 48, 2, 16, 512, 64
    scales = lambda width: np.full((1, width), 0.01, np.float32)  # noqa: E731
    given = dict(
        token_x=np.ones((t, he), np.int8),
        weight_dq=np.ones((he, hcq), np.int8),
        weight_uq_qr=np.ones((hcq, n * (d + dr)), np.int8),
        weight_uk=np.ones((n, d, hckv), BF16),
        weight_dkv_kr=np.ones((he, hckv + dr), np.int8),
        rmsnorm_gamma_cq=np.ones(hcq, BF16),
        rmsnorm_gamma_ckv=np.ones(hckv, BF16),
        rope_sin=np.ones((t, dr), BF16),
        rope_cos=np.ones((t, dr), BF16),
        kv_cache=dsakit.empty_kv_rows(4, 16, 1),
        kr_cache=np.zeros(0, BF16),
        cache_index=np.arange(t),
        dequant_scale_x=np.ones((t, 1), np.float32),
        dequant_scale_w_dq=scales(hcq),
        dequant_scale_w_uq_qr=scales(n * (d + dr)),
        dequant_scale_w_dkv_kr=scales(hckv + dr),
        cache_mode="PA_BSND",
        query_norm_flag=True,
        weight_quant_mode=2,
        kv_cache_quant_mode=3,
        query_quant_mode=0,
        ckvkr_repo_mode=1,
        quant_scale_repo_mode=1,
        tile_size=128,
        k_pe_clip_alpha=None,
    )
    return dsakit.npu_mla_prolog_v3(**given | change)


def refused(parameter, *remedies, **change):
    with pytest.raises(dsakit.Error) as caught:
        call(**change)
    assert caught.value.parameter == parameter, caught.value
    for remedy in remedies:
        assert remedy in str(caught.value), caught.value


def test_query_norm_is_int8_with_its_scale():
    _, _, _, query_norm, scale = call()
    assert query_norm.dtype == np.int8 and scale.shape == (3, 1) and scale.dtype == np.float32


@pytest.mark.parametrize("name", ["rmsnorm_gamma_cq", "rmsnorm_gamma_ckv", "rope_sin", "rope_cos"])
def test_what_the_copied_call_leaves_out_is_named(name):
    refused(name, "is missing", **{name: None})


def test_a_bf16_cache_names_the_packed_rows():
    refused("kv_cache", "656 bytes", "pack_kv_rows", "empty_kv_rows", kv_cache=np.zeros((2, 1, 16, 576), BF16))


def test_a_cache_with_heads_first_names_the_order_of_axes():
    cache = np.zeros((2, 1, 16, 656), np.int8)
    refused("kv_cache", "[block_num, block_size, 1, 656]", "transpose(1, 2)", kv_cache=cache)
    call(kv_cache=np.ascontiguousarray(cache.transpose(0, 2, 1, 3)))


def test_bf16_tokens_name_dynamic_quant():
    refused("token_x", "npu_dynamic_quant", token_x=np.ones((3, 64), BF16))


def test_a_scale_of_the_latent_is_ignored_with_a_warning():
    plain = call()
    with_scale = call(quant_scale_ckv=np.ones((1, 512), np.float32))
    assert all(a.tobytes() == b.tobytes() for a, b in zip(plain, with_scale, strict=True))
