# SPDX-License-Identifier: Apache-2.0
"""The operators as engines call them: dsakit.ops.npu, .custom and ._C_ascend stand where torch.ops.npu, .custom and
._C_ascend do. What torch_npu itself has is at the top of the package, with npu_ in front of the name."""

import functools
import types

from . import operators as _operators


def _form(operator, without=(), results=lambda results: results):
    """`operator` without some of its keywords, and with what `results` leaves of its results."""

    @functools.wraps(operator)
    def function(*args, **kwargs):
        for name in without:
            if name in kwargs:
                raise TypeError(f"{operator.__name__}() got an unexpected keyword argument {name!r}")
        return results(operator(*args, **kwargs))

    return function


def _kv_quant_sparse_flash_attention():
    whole = _operators.make("kv_quant_sparse_flash_attention", ending=["return result"])

    def npu_kv_quant_sparse_flash_attention(
        query=None,
        key=None,
        value=None,
        sparse_indices=None,
        scale_value=None,
        *,
        key_quant_mode=1,
        value_quant_mode=1,
        **others,
    ):
        """kv_quant_sparse_flash_attention -> (attention_out, softmax_max, softmax_sum). The quant modes are keywords;
        their default is not legal, 2 is."""
        return whole(query, key, value, sparse_indices, scale_value, key_quant_mode, value_quant_mode, **others)

    return npu_kv_quant_sparse_flash_attention


def _namespaces():
    have = _operators.operators
    select, quantised = have["lightning_indexer"], have["quant_lightning_indexer"]
    custom = dict.fromkeys(
        ("npu_quant_lightning_indexer", "npu_lightning_indexer_quant"),
        _form(quantised, ("pre_tokens", "next_tokens", "query_dtype", "key_dtype")),
    )
    fork = {
        "npu_lightning_indexer": select,
        "npu_lightning_indexer_quant": custom["npu_lightning_indexer_quant"],
        "npu_sparse_flash_attention": _form(have["sparse_flash_attention"], ("sinks",)),
        "npu_kv_quant_sparse_flash_attention": _kv_quant_sparse_flash_attention(),
    }
    older = _form(select, ("pre_tokens", "next_tokens", "return_value"), lambda results: results[0])
    return {"lightning_indexer": older, **_operators.torch_npu}, custom, fork


npu, custom, _C_ascend = (types.SimpleNamespace(**names) for names in _namespaces())
