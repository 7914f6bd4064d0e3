# SPDX-License-Identifier: Apache-2.0
"""dsakit layer: figures of one attention layer, where its rows come from, what it refuses."""

import json
import pathlib
import sys

import numpy as np
import pytest
from test_command import dsakit_command

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tests"))
import make_checkpoints as made

ALL = ["dense_bf16", "sparse_bf16", "sparse_w8a8", "sparse_w8a8_packed"]
IDS = np.random.default_rng(5).integers(0, 256, 90)


def layer(*args):
    return json.loads(dsakit_command("layer", *args, "--json"))


def figures(*args):
    """What does not depend on the clock."""
    modes = layer(*args)["modes"]
    return {name: {k: v for k, v in mode.items() if k != "seconds"} for name, mode in modes.items()}


def no_op(checkpoint, number):
    """Layer `number` adds nothing to the residual."""
    for name, t in checkpoint.tensors.items():
        if f"layers.{number}." in name and ("o_proj" in name or "down_proj" in name):
            t.codes[:] = 0
    return checkpoint


@pytest.mark.parametrize("kind,number", [("v32", 1), ("glm", 2)])
def test_modes_of_a_layer_with_an_indexer(tmp_path, kind, number):
    report = layer(made.make(kind, "float").write(tmp_path), number, "--synthetic", 100)
    assert report["tokens"] == 100 and report["indexer"] and report["index_topk"] == 24
    modes = report["modes"]
    assert list(modes) == ALL
    assert modes["dense_bf16"]["float64"]["rms"] < 0.01 and "recall" not in modes["dense_bf16"]
    assert modes["dense_bf16"]["sparse_bf16"]["rms"] > 0.1  # it attends to more
    # Scores that are closer than bf16 can tell change places at the cut: one position of a row, if at all.
    assert modes["sparse_bf16"]["recall"]["mean"] > 0.995 and modes["sparse_bf16"]["recall"]["worst"] > 0.95
    assert modes["sparse_bf16"]["float64"]["rms"] < 0.1 and "sparse_bf16" not in modes["sparse_bf16"]
    for name in ("sparse_w8a8", "sparse_w8a8_packed"):
        mode = modes[name]
        assert 0.97 < mode["recall"]["mean"] < 1 and 24 <= mode["recall"]["worst_row"] < 100
        assert 0.01 < mode["float64"]["rms"] < 0.3 and 0.01 < mode["sparse_bf16"]["rms"] < 0.3
        assert 0.4 < mode["equal_latent_codes"] < 0.9
        assert mode["equal_index_codes"] == 1  # wk is bf16 in both
    for mode in modes.values():
        assert mode["float64"]["largest"] > mode["float64"]["rms"] > 0
        assert mode["seconds"] > 0 and mode["bytes_read"] > 0 and mode["weight_bytes"] > 0
    assert modes["sparse_w8a8"]["cache_bytes"] < modes["sparse_bf16"]["cache_bytes"]


def test_nobody_chooses_among_few(tmp_path):
    modes = layer(made.make("v32", "float").write(tmp_path), 0, "--synthetic", 24)["modes"]
    assert not any("recall" in mode for mode in modes.values())
    assert modes["sparse_bf16"]["float64"]["rms"] < 0.01 and modes["sparse_w8a8_packed"]["float64"]["rms"] < 0.05
    assert modes["dense_bf16"]["sparse_bf16"] == {"rms": 0, "largest": 0}
    text = dsakit_command("layer", tmp_path, 0, "--synthetic", 24).decode().splitlines()
    assert text[0].startswith("attention of layer 0, 24 tokens, index top 24")
    assert [line.split()[0] for line in text[4:8]] == ALL and "100.00 %" in text[6] and " - " in text[6]


def test_dense_attention_alone(tmp_path):
    modes = layer(made.make("v3", "fp8").write(tmp_path), 1, "--synthetic", 60)["modes"]
    assert list(modes) == ["dense_bf16"] and modes["dense_bf16"]["float64"]["rms"] < 0.01
    assert not {"sparse_bf16", "recall", "equal_latent_codes"} & modes["dense_bf16"].keys()
    message = dsakit_command("layer", tmp_path, 1, "--synthetic", 60, "--mode", "sparse_bf16", status=2)
    assert "mode is sparse_bf16, wanted dense_bf16" in message


def test_a_slice_is_enough_and_has_the_same_figures(tmp_path):
    folder = made.make("v32", "fp8").write(tmp_path / "whole")
    dsakit_command("convert", folder, tmp_path / "part", "--format", "bf16", "--layers", "1", "--attention-only")
    args = ("--synthetic", 70, "--seed", 3)
    whole, part = figures(folder, 1, *args), figures(tmp_path / "part", 1, *args)
    for mode in ALL:
        assert whole[mode]["float64"] == part[mode]["float64"] and whole[mode].get("recall") == part[mode].get("recall")
        assert whole[mode]["weight_bytes"] < part[mode]["weight_bytes"]
    assert figures(folder, 1, *args, "--weights", "bf16") == part
    assert figures(folder, 1, "--synthetic", 70, "--seed", 4) != whole

    np.save(tmp_path / "ids.npy", IDS)
    message = dsakit_command("layer", tmp_path / "part", 1, "--tokens", tmp_path / "ids.npy", status=3)
    assert "model.embed_tokens.weight is missing" in message


def test_missing_mlps_are_named(tmp_path):
    checkpoint = made.make("v32", "float")
    del checkpoint.tensors["model.layers.0.mlp.up_proj.weight"]
    folder = checkpoint.write(tmp_path)
    np.save(tmp_path / "ids.npy", IDS)
    message = dsakit_command("layer", folder, 1, "--tokens", tmp_path / "ids.npy", status=3)
    assert "model.layers.0.mlp.up_proj.weight is missing" in message
    figures(folder, 0, "--tokens", tmp_path / "ids.npy")  # nothing below


def test_one_mode_has_the_figures_it_has_among_others(tmp_path):
    folder = made.make("v32", "dynamic").write(tmp_path)
    every = figures(folder, 0, "--synthetic", 50)["sparse_w8a8"]
    alone = figures(folder, 0, "--synthetic", 50, "--mode", "sparse_w8a8")
    assert list(alone) == ["sparse_w8a8"]
    assert alone["sparse_w8a8"] == {k: v for k, v in every.items() if not k.startswith("equal")}


def test_hidden_and_tokens_are_the_same_rows(tmp_path):
    checkpoint = no_op(made.make("v32", "float"), 0)
    folder = checkpoint.write(tmp_path / "model")
    rows = checkpoint.values["model.embed_tokens.weight"][IDS]
    np.save(tmp_path / "ids.npy", IDS)
    np.save(tmp_path / "rows.npy", rows)
    made.write_safetensors(tmp_path / "rows.safetensors", {"hidden": made.stored("BF16", rows)})
    for number in (0, 1):  # layer 0 hands its residual on as it is
        wanted = figures(folder, number, "--hidden", tmp_path / "rows.npy")
        assert figures(folder, number, "--hidden", tmp_path / "rows.safetensors") == wanted
        assert figures(folder, number, "--tokens", tmp_path / "ids.npy") == wanted
    changed = made.make("v32", "float").write(tmp_path / "changed")  # layer 0 adds to it
    assert figures(changed, 0, "--tokens", tmp_path / "ids.npy") != figures(
        changed, 1, "--tokens", tmp_path / "ids.npy"
    )
    assert figures(changed, 1, "--tokens", tmp_path / "ids.npy") != wanted


def test_options_of_the_layers_below(tmp_path):
    """Bits depend on --mlp alone; what needs memory for experts says so."""
    folder = made.make("v32", "fp8").write(tmp_path / "model")
    np.save(tmp_path / "ids.npy", IDS)
    args = (folder, 2, "--tokens", tmp_path / "ids.npy")
    wanted = figures(*args)
    assert figures(*args, "--expert-memory", "200KB", "--pass", 7) == wanted
    assert figures(*args, "--mlp", "as_stored") == wanted == figures(*args, "--mlp", "bf16")
    int8 = figures(*args, "--mlp", "int8")
    for mode in ALL:
        assert int8[mode]["float64"] != wanted[mode]["float64"]
        assert int8[mode]["weight_bytes"] == wanted[mode]["weight_bytes"]
    assert "expert" in dsakit_command("layer", *args, "--expert-memory", "5KB", status=4)
    assert "mlp is fp4, wanted as_stored, bf16 or int8" in dsakit_command("layer", *args, "--mlp", "fp4", status=2)
    for option, value, name in (
        ("--mlp", "bf16", "mlp"),
        ("--expert-memory", 9, "expert_memory"),
        ("--pass", 9, "pass"),
    ):
        message = dsakit_command("layer", folder, 2, "--synthetic", 5, option, value, status=2)
        assert f"{name} is given, wanted --tokens FILE beside it" in message
    # The first layer has none below.
    assert figures(folder, 0, *args[2:], "--mlp", "int8") == figures(folder, 0, *args[2:])


def test_a_layer_that_shares_a_selection(tmp_path):
    checkpoint = made.make("glm", "float", indexer_types=["full", "full", "shared"])
    for name in [name for name in checkpoint.tensors if "layers.2.self_attn.indexer" in name]:
        del checkpoint.tensors[name]
    folder = checkpoint.write(tmp_path)
    message = dsakit_command("layer", folder, 2, "--synthetic", 50, status=2)
    assert "N is 2, a layer without an indexer, wanted --tokens FILE" in message
    np.save(tmp_path / "ids.npy", IDS)
    report = layer(folder, 2, "--tokens", tmp_path / "ids.npy")
    assert not report["indexer"] and not any("recall" in mode for mode in report["modes"].values())
    # All attend to the positions that layer 1 has chosen: no error but that of arithmetic.
    assert report["modes"]["sparse_bf16"]["float64"]["rms"] < 0.01
    assert 0.005 < report["modes"]["sparse_w8a8"]["float64"]["rms"] < 0.05
    assert "equal_index_codes" not in report["modes"]["sparse_w8a8"]


def test_refusals(tmp_path):
    folder = made.make("v32", "static").write(tmp_path)
    some = ("--synthetic", 5, "--static", "dequantise")
    assert "N is 3, wanted 0..2" in dsakit_command("layer", folder, 3, *some, status=2)
    assert "N: is '-1'" in dsakit_command("layer", folder, "--", -1, status=2)
    assert "input is missing, wanted one of --hidden" in dsakit_command("layer", folder, 0, status=2)
    message = dsakit_command("layer", folder, 0, "--tokens", "x", *some, status=2)
    assert "input is given more than once" in message
    assert "mode is fast" in dsakit_command("layer", folder, 0, *some, "--mode", "fast", status=2)
    message = dsakit_command("layer", folder, 0, "--synthetic", 5, status=2)
    assert "W8A8 with static activations" in message
    assert "weights is fp4" in dsakit_command("layer", folder, 0, *some, "--weights", "fp4", status=2)
    assert layer(folder, 0, *some)["tokens"] == 5

    rows = np.zeros((4, 160), np.float32)
    path = tmp_path / "rows.npy"

    def refused(array, status):
        np.save(path, array)
        return dsakit_command("layer", folder, 0, "--hidden", path, "--static", "dequantise", status=status)

    assert "wanted little-endian float32" in refused(rows.astype(np.float64), 3)
    assert "wanted little-endian float32" in refused(np.asfortranarray(rows), 3)
    assert "wanted shape [T, 160]" in refused(rows[:, :159], 3)
    assert "has no rows" in refused(rows[:0], 3)
    rows[2, 7] = np.nan
    assert "rows.npy[2][7] is nan, wanted a finite number" in refused(rows, 2)
    made.write_safetensors(path, {"hidden": made.stored("F32", rows[:, :80])})
    message = dsakit_command("layer", folder, 0, "--hidden", path, "--static", "dequantise", status=3)
    assert "hidden is F32 [4, 80], wanted BF16, F16 or F32 [T, 160]" in message
