# SPDX-License-Identifier: Apache-2.0
"""npu_fused_infer_attention_score_v2: lists, modes of newer chips, and what strict has to take."""

import numpy as np
import pytest

import dsakit
from oracle import cases

BF16 = cases.BF16


def refused(parameter, status, call):
    with pytest.raises(dsakit.Error) as caught:
        call()
    assert (caught.value.parameter, caught.value.status) == (parameter, status), caught.value
    return str(caught.value)


@pytest.mark.parametrize("module", [dsakit, dsakit.reference], ids=["fast", "reference"])
@pytest.mark.parametrize("kind", [list, tuple])
def test_lists_of_tensors_are_refused_with_the_remedy(module, kind):
    x = np.ones((1, 2, 3, 16), BF16)
    call = module.npu_fused_infer_attention_score_v2
    for key, value, name in [(kind([x]), x, "key"), (x, kind([x, x]), "value"), (kind([x]), kind([x]), "key")]:
        message = refused(name, "UNSUPPORTED", lambda: call(x, key, value, num_query_heads=2, input_layout="BNSD"))
        assert "TND" in message and "block_table" in message and "v1" in message


@pytest.mark.parametrize("mode, words", [(6, "per token group"), (7, "fp8 per block"), (8, "per channel group")])
def test_quant_modes_of_newer_chips_are_reserved_by_name(mode, words):
    query, codes, scale = np.ones((1, 2, 1, 16), BF16), np.ones((1, 2, 8, 16), np.int8), np.ones((2, 16), np.float32)
    given = dict(num_query_heads=2, input_layout="BNSD", dequant_scale_key=scale, dequant_scale_value=scale)
    for name in ("key_quant_mode", "value_quant_mode"):
        call = lambda: dsakit.npu_fused_infer_attention_score_v2(query, codes, codes, **given, **{name: mode})  # noqa: E731
        message = refused(name, "UNSUPPORTED", call)
        assert words in message and "reserved" in message
    call = lambda: dsakit.npu_fused_infer_attention_score_v2(query, codes, codes, **given, key_quant_mode=9)  # noqa: E731
    refused("key_quant_mode", "INVALID_ARGUMENT", call)


@pytest.mark.parametrize("width", [128, 192])
@pytest.mark.parametrize("heads", [2, 4])
def test_strict_takes_heads_of_192_in_tnd(width, heads):
    rng = cases.generator(3)
    query, key = cases.uniform(rng, (5, 4, 192)), cases.uniform(rng, (9, heads, 192))
    given = dict(num_query_heads=4, num_key_value_heads=heads, softmax_scale=0.07, input_layout="TND", sparse_mode=3)
    given |= dict(actual_seq_qlen=[2, 5], actual_seq_kvlen=[4, 9], atten_mask=np.triu(np.ones((2048, 2048), np.bool_), 1))
    value = cases.uniform(rng, (9, heads, width))
    out, _ = dsakit.npu_fused_infer_attention_score_v2(query, key, value, **given, level="strict")
    assert out.shape == (5, 4, width)
    given |= dict(num_key_value_heads=1)
    wide = cases.uniform(rng, (5, 65, 192))
    call = lambda: dsakit.npu_fused_infer_attention_score_v2(  # noqa: E731
        wide, key[:, :1].copy(), value[:, :1].copy(), **given | dict(num_query_heads=65), level="strict"
    )
    refused("num_query_heads", "UNSUPPORTED", call)
