# SPDX-License-Identifier: Apache-2.0
"""The package around the operators: names, signatures, classes of refusals, threads, the command, interruption."""

import inspect
import os
import pathlib
import subprocess
import sys
import sysconfig
import threading

import numpy as np
import pytest

import dsakit

OPERATORS = [
    "add_rms_norm",
    "add_rms_norm_bias",
    "attention_update",
    "batch_matmul_transpose",
    "dynamic_block_quant",
    "dynamic_quant",
    "fused_infer_attention_score_v2",
    "gather_pa_kv_cache",
    "gather_pa_kv_cache_functional",
    "interleave_rope",
    "kv_quant_sparse_flash_attention",
    "kv_rmsnorm_rope_cache",
    "kv_rmsnorm_rope_cache_v2",
    "kv_rmsnorm_rope_cache_v2_functional",
    "lightning_indexer",
    "lightning_indexer_prolog_quant",
    "mla_indexer_prolog_quant",
    "mla_prolog_quant",
    "mla_prolog_v2",
    "mla_prolog_v3",
    "mla_prolog_v3_functional",
    "pack_kv_rows",
    "quant_lightning_indexer",
    "quant_matmul",
    "quantize",
    "rms_norm",
    "rotary_mul",
    "scatter_nd_update",
    "scatter_nd_update_",
    "scatter_pa_kv_cache",
    "scatter_pa_kv_cache_functional",
    "sparse_flash_attention",
    "sparse_flash_attention_quant",
    "store_kv_block",
    "store_kv_block_metadata",
    "swiglu",
    "transpose_batchmatmul",
    "unpack_kv_rows",
]
PROLOG_INPUTS = (
    "(token_x, weight_dq, weight_uq_qr, weight_uk, weight_dkv_kr, rmsnorm_gamma_cq, rmsnorm_gamma_ckv, "
    "rope_sin, rope_cos, "
)
PROLOG_V3 = (
    PROLOG_INPUTS + "kv_cache, kr_cache, *, cache_index=None, dequant_scale_x=None, dequant_scale_w_dq=None, "
    "dequant_scale_w_uq_qr=None, dequant_scale_w_dkv_kr=None, quant_scale_ckv=None, quant_scale_ckr=None, "
    "smooth_scales_cq=None, actual_seq_len=None, k_nope_clip_alpha=None, rmsnorm_epsilon_cq=1e-05, "
    "rmsnorm_epsilon_ckv=1e-05, cache_mode='PA_BSND', query_norm_flag=False, weight_quant_mode=0, "
    "kv_cache_quant_mode=0, query_quant_mode=0, ckvkr_repo_mode=0, quant_scale_repo_mode=0, tile_size=128, "
    "qc_qr_scale=1.0, kc_scale=1.0"
)
KV_CACHE = (
    "(kv, gamma, cos, sin, index, k_cache, ckv_cache, *, k_rope_scale=None, c_kv_scale=None, k_rope_offset=None, "
    "c_kv_offset=None, v=None, epsilon=1e-05, cache_mode='Norm', is_output_kv=False, "
)
GATHER = (
    "(key_cache, value_cache, block_tables, seq_lens, key, value, *, seq_offset=None, is_seq_lens_cumsum=False, level="
)
SCATTER_PA = (
    "(key, value, key_cache, value_cache, slot_mapping, *, compress_lens=None, compress_seq_offsets=None, seq_lens=None, "
    "cache_mode='PA_NZ', level="
)
SIGNATURES = {
    "add_rms_norm": "(x1, x2, gamma, epsilon=1e-06, *",
    "add_rms_norm_bias": "(x1, x2, gamma, beta=None, epsilon=1e-06, *",
    "attention_update": "(lse, local_out, update_type, *, level",
    "batch_matmul_transpose": "(tensor_a, tensor_b, tensor_c, format_mode=None, quant_mode=None, *, level=",
    "dynamic_block_quant": "(x, *, min_scale=0.0, round_mode='rint', dst_type=1, row_block_size=1, "
    "col_block_size=128, dst_type_max=0.0",
    "dynamic_quant": "(input, *, smooth_scales=None, group_index=None, dst_type=None, quant_mode='pertoken', "
    "dst_type_max=0.0",
    "fused_infer_attention_score_v2": "(query, key, value, *, query_rope=None, key_rope=None, pse_shift=None, "
    "atten_mask=None, actual_seq_qlen=None, actual_seq_kvlen=None, block_table=None",
    "gather_pa_kv_cache": GATHER,
    "gather_pa_kv_cache_functional": GATHER,
    "interleave_rope": "(x, cos, sin",
    "kv_quant_sparse_flash_attention": "(query, key, value, sparse_indices, scale_value, key_quant_mode, "
    "value_quant_mode, *, key_dequant_scale=None, value_dequant_scale=None, block_table=None, "
    "actual_seq_lengths_query=None, actual_seq_lengths_kv=None, sparse_block_size=1, layout_query='BSND', "
    "layout_kv='BSND', sparse_mode=3, pre_tokens=9223372036854775807, next_tokens=9223372036854775807, "
    "attention_mode=0, quant_scale_repo_mode=1, tile_size=128, rope_head_dim=64",
    "kv_rmsnorm_rope_cache": KV_CACHE + "level",
    "kv_rmsnorm_rope_cache_v2": KV_CACHE + "k_cache_dtype=None, ckv_cache_dtype=None, level",
    "kv_rmsnorm_rope_cache_v2_functional": KV_CACHE + "k_cache_dtype=None, ckv_cache_dtype=None, level",
    "lightning_indexer": "(query, key, weights, *, actual_seq_lengths_query=None, actual_seq_lengths_key=None, "
    "block_table=None, "
    "layout_query='BSND', layout_key='BSND', sparse_count=2048, sparse_mode=3, "
    "pre_tokens=9223372036854775807, next_tokens=9223372036854775807, return_value=False",
    "lightning_indexer_prolog_quant": "(x, q_norm, q_norm_scale, w_qb, w_qb_scale, wk, w_proj, ln_gamma_k, ln_beta_k, "
    "cos, sin, "
    "hadamard_q, hadamard_k, k_cache, k_scale_cache, k_cache_index, *more, "
    "layernorm_epsilon_k=1e-06, rope_layout='half', layout_query='TND', layout_key='PA_BSND'",
    "mla_prolog_quant": "(token_x, w_dq, w_uq_qr, dequant_scale, w_uk, w_dkv_kr, gamma_cq, gamma_ckv, "
    "cos, sin, cache_index, "
    "kv_cache, kr_cache, k_scale_cache=None, *more, q_norm_out=None",
    "mla_prolog_v2": PROLOG_INPUTS + "cache_index, kv_cache, kr_cache, *, dequant_scale_x=None, "
    "dequant_scale_w_dq=None, dequant_scale_w_uq_qr=None, dequant_scale_w_dkv_kr=None, quant_scale_ckv=None, "
    "quant_scale_ckr=None, smooth_scales_cq=None, rmsnorm_epsilon_cq=1e-05, rmsnorm_epsilon_ckv=1e-05, "
    "cache_mode='PA_BSND'",
    "mla_prolog_v3": PROLOG_V3,
    "mla_prolog_v3_functional": PROLOG_V3,
    "quant_lightning_indexer": "(query, key, weights, query_dequant_scale, key_dequant_scale, query_quant_mode=0, "
    "key_quant_mode=0, *, actual_seq_lengths_query=None",
    "quant_matmul": "(x1, x2, scale, *, offset=None, pertoken_scale=None, bias=None, output_dtype=None, x1_dtype=None, "
    "x2_dtype=None, pertoken_scale_dtype=None, scale_dtype=None, group_sizes=None, y_scale=None, level=",
    "quantize": "(input, scales, zero_points, dtype, axis=1, div_mode=True",
    "rms_norm": "(self, gamma, epsilon=1e-06, *",
    "rotary_mul": "(x, r1, r2, rotary_mode='half', rotate=None",
    "scatter_nd_update": "(self, indices, updates, *, level=",
    "scatter_nd_update_": "(self, indices, updates, *, level=",
    "scatter_pa_kv_cache": SCATTER_PA,
    "scatter_pa_kv_cache_functional": SCATTER_PA,
    "store_kv_block": "(key_in, key_cache_in, group_len, group_key_idx, group_key_cache_idx, block_size=0, *, level=",
    "transpose_batchmatmul": "(input, weight, *, bias=None, scale=None, perm_x1=(0, 1, 2), perm_x2=(0, 1, 2), "
    "perm_y=(1, 0, 2), batch_split_factor=1, level=",
    "store_kv_block_metadata": "(slot_mapping, group_len, group_key_idx, group_key_cache_idx, block_size=0, *, level=",
    "sparse_flash_attention": "(query, key, value, sparse_indices, scale_value, *, block_table=None, "
    "actual_seq_lengths_query=None, actual_seq_lengths_kv=None, query_rope=None, key_rope=None, sparse_block_size=1, "
    "layout_query='BSND', layout_kv='BSND', sparse_mode=3, pre_tokens=9223372036854775807, "
    "next_tokens=9223372036854775807, attention_mode=0, return_softmax_lse=False, sinks=None",
    "swiglu": "(self, dim=-1, *",
    "sparse_flash_attention_quant": "(query_nope, query_rope, key_nope_2d, key_rope_2d, k_nope_scales, topk_indices, "
    "block_table, kv_act_seqs, *more, b, s1, nq, n_kv=1, softmax_scale, topk, block_size",
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_have_a_readable_twin(name):
    fast, twin = getattr(dsakit, name), getattr(dsakit.reference, name)
    assert fast.__name__ == twin.__name__ == name and fast.__doc__
    assert set(inspect.signature(twin).parameters) - set(inspect.signature(fast).parameters) <= {"p_rounding"}
    assert "level" in inspect.signature(fast).parameters


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_are_the_documented_ones(name):
    parameters = inspect.signature(getattr(dsakit, name)).parameters.values()
    plain = inspect.Signature([p.replace(annotation=p.empty) for p in parameters])
    assert str(plain).startswith(SIGNATURES[name])


def test_unknown_keyword_is_pythons_own_error(indexer):
    for name in OPERATORS:
        with pytest.raises(TypeError, match="unexpected keyword argument 'no_such'") as caught:
            getattr(dsakit, name)(no_such=1)
        assert not isinstance(caught.value, dsakit.Error)


@pytest.mark.parametrize("name", OPERATORS)
def test_missing_required_tensor(name):
    first = next(iter(inspect.signature(getattr(dsakit, name)).parameters))
    for module in (dsakit, dsakit.reference):
        for given in ({}, {first: None}):
            with pytest.raises(ValueError, match="is missing") as caught:
                getattr(module, name)(**given)
            assert (caught.value.status, caught.value.operator, caught.value.parameter) == (
                "INVALID_ARGUMENT",
                name,
                first,
            )


ATTRIBUTES = [
    (dict(sparse_count=True), TypeError, "INVALID_DTYPE"),
    (dict(sparse_count=2.0), TypeError, "INVALID_DTYPE"),
    (dict(sparse_count="2"), TypeError, "INVALID_DTYPE"),
    (dict(sparse_count=2**63), TypeError, "INVALID_DTYPE"),
    (dict(sparse_count=None), ValueError, "INVALID_ARGUMENT"),
    (dict(layout_query=3), TypeError, "INVALID_DTYPE"),
    (dict(layout_query="\ud800"), ValueError, "INVALID_ARGUMENT"),
    (dict(level="lax"), ValueError, "INVALID_ARGUMENT"),
    (dict(query_dtype=1), NotImplementedError, "UNSUPPORTED"),
    (dict(key_dtype=1), NotImplementedError, "UNSUPPORTED"),
]


@pytest.mark.parametrize(
    "given,builtin,status", ATTRIBUTES, ids=[str(a[0]).encode("ascii", "replace").decode() for a in ATTRIBUTES]
)
def test_attributes_of_the_wrong_kind(indexer, given, builtin, status):
    with pytest.raises(builtin) as caught:
        dsakit.quant_lightning_indexer(**indexer | given)
    error = caught.value
    assert isinstance(error, dsakit.Error) and isinstance(error, RuntimeError)
    assert (error.status, error.operator, error.parameter, error.position) == (
        status,
        "quant_lightning_indexer",
        *given,
        "",
    )
    assert str(error).startswith(f"quant_lightning_indexer: {error.parameter} {error.got}, wanted {error.wanted}")


def test_numbers_of_numpy_are_numbers(indexer):
    wanted = dsakit.quant_lightning_indexer(**indexer)
    indexer |= dict(sparse_count=np.int16(5), sparse_mode=np.uint8(3))
    np.testing.assert_array_equal(dsakit.quant_lightning_indexer(**indexer), wanted)
    x = np.ones((2, 8), np.float32)
    for zero in (0, 0.0, np.float32(0), np.int64(0)):
        dsakit.dynamic_quant(x, dst_type_max=zero)
    for wrong in (False, "0", 0j, None):
        with pytest.raises(dsakit.Error):
            dsakit.dynamic_quant(x, dst_type_max=wrong)


def test_info_and_threads():
    info = dsakit.info()
    assert info["version"] == dsakit.__version__ and info["isa"] in info["isas"] and info["isas"][0] == "generic"
    before = dsakit.get_num_threads()
    try:
        for wish, got in ((3, 3), (0, 1), (-5, 1), (10**6, 1024)):
            dsakit.set_num_threads(wish)
            assert dsakit.get_num_threads() == dsakit.info()["threads"] == got
    finally:
        dsakit.set_num_threads(before)


def python(code, **environment):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | environment)


def test_import_brings_no_torch():
    done = python("import dsakit, sys; assert 'torch' not in sys.modules")
    assert done.returncode == 0 and done.stderr == ""


def test_import_brings_little_on_top_of_numpy():
    """Nothing heavy, and the reference only when it is asked for."""
    code = "import numpy, ml_dtypes, sys; before = set(sys.modules); import dsakit; "
    brought = python(code + "print(*sorted(set(sys.modules) - before))").stdout.split()
    assert len([name for name in brought if not name.startswith("dsakit")]) < 10, brought
    assert not any("reference" in name for name in brought)
    assert python("import dsakit; print(dsakit.reference.quantize.__name__)").stdout == "quantize\n"


def test_instruction_set_that_the_machine_lacks():
    code = "import dsakit\ntry: dsakit.info()\nexcept NotImplementedError as e: print(e.status, e.parameter)"
    assert python(code, DSAKIT_ISA="abacus").stdout == "UNSUPPORTED DSAKIT_ISA\n"
    for threads in ("0", "-1", "abc", "100000"):
        assert (
            1
            <= int(python("import dsakit; print(dsakit.get_num_threads())", DSAKIT_NUM_THREADS=threads).stdout)
            <= os.cpu_count()
        )


def test_command_of_the_wheel():
    program = pathlib.Path(sysconfig.get_path("scripts")) / "dsakit"
    done = subprocess.run([program, "--version"], capture_output=True, text=True)
    assert done.returncode == 0 and dsakit.__version__ in done.stdout


SLOW = """
import numpy as np, dsakit, os, signal, threading
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it, and so would we
rows, keys = 16384, 65536
q = np.ones((1, rows, 8, 32), np.int8)
arguments = dict(query=q, key=np.ones((1, keys, 1, 32), np.int8), weights=np.ones((1, rows, 8), np.float16),
                 query_dequant_scale=np.ones((1, rows, 8), np.float16),
                 key_dequant_scale=np.ones((1, keys, 1), np.float16), sparse_mode=0)
small = {k: v[:, :2] if k[:3] != "key" else v for k, v in arguments.items() if k != "sparse_mode"}
out = np.full((1, rows, 1, 8), -7, np.int32)

def interrupt_when_work_is_seen():
    while (out == -7).all():
        pass
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt_when_work_is_seen).start()
try:
    dsakit.quant_lightning_indexer(**arguments, sparse_count=8, sparse_indices=out)
except KeyboardInterrupt:
    done = (out[0, :, 0, 0] != -7).sum()
    dsakit.quant_lightning_indexer(**small)  # the context works on
    print(done / rows)
"""


@pytest.mark.parametrize("threads", ["1", "2"])
def test_keyboard_interrupt_ends_a_long_call(threads):
    """It is looked at ten times a second; a call of many seconds leaves nearly all of its rows alone."""
    done = python(SLOW, DSAKIT_NUM_THREADS=threads)
    assert done.returncode == 0 and 0 < float(done.stdout) < 0.9, done.stderr


def test_other_threads_run_during_a_call():
    q = np.ones((1, 256, 8, 32), np.int8)
    arguments = dict(
        query=q,
        key=np.ones((1, 65536, 1, 32), np.int8),
        weights=np.ones((1, 256, 8), np.float16),
        query_dequant_scale=np.ones((1, 256, 8), np.float16),
        key_dequant_scale=np.ones((1, 65536, 1), np.float16),
    )
    out = np.empty((1, 256, 1, 8), np.int32)

    def seen_at_work():
        """Whether this thread ran while the call had done some of its rows."""
        out[:] = -7
        call = lambda: dsakit.quant_lightning_indexer(**arguments, sparse_count=8, sparse_indices=out)
        worker = threading.Thread(target=call)
        worker.start()
        seen = False
        while worker.is_alive():
            seen |= 0 < (out[0, :, 0, 0] != -7).sum() < 256
        return seen

    assert any(seen_at_work() for _ in range(20))
