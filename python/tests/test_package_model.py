# SPDX-License-Identifier: Apache-2.0
"""dsakit.Model on the small trained model that the wheel carries."""

import copy
import json

import ml_dtypes
import numpy as np
import pytest

import dsakit

MODES = ("dense_bf16", "sparse_bf16", "sparse_w8a8", "sparse_w8a8_packed")


@pytest.fixture(scope="module")
def model(model_folder):
    return dsakit.Model(model_folder)


@pytest.fixture(scope="module")
def text(model_folder):
    return (model_folder / "heldout.txt").read_bytes()[:300]


def test_what_it_is(model, model_folder):
    assert model.config == json.loads((model_folder / "config.json").read_text())
    assert (
        model.modes == MODES
        and model.vocab_size == model.config["vocab_size"]
        and len(model.layers) == model.config["num_hidden_layers"]
    )
    assert model.hidden_size == model.config["hidden_size"] and model.index_topk == model.config["index_topk"]


@pytest.mark.parametrize("mode", MODES)
def test_logits_predict_the_text(model, text, mode):
    logits = model.logits(text, mode=mode)
    assert logits.shape == (len(text), model.vocab_size) and logits.dtype == np.float32
    x = logits[:-1].astype(np.float64)
    x -= np.log(np.exp(x).sum(-1, keepdims=True))
    bits = -x[np.arange(len(text) - 1), np.frombuffer(text, np.uint8)[1:]].mean() / np.log(2)
    assert bits < 2


def test_tokens_are_any_integers(model, text):
    wanted = model.logits(text)
    ids = np.frombuffer(text, np.uint8)
    for tokens in (list(text), tuple(text), ids, ids.astype(np.int64), ids.astype(np.int32)[::-1].copy()[::-1]):
        np.testing.assert_array_equal(model.logits(tokens), wanted)
    torch = pytest.importorskip("torch")
    logits = model.logits(torch.tensor(list(text)))
    assert isinstance(logits, torch.Tensor) and np.array_equal(logits.numpy(), wanted)


def test_no_tokens_and_more_than_the_model_was_made_for(model, text):
    assert model.logits([]).shape == model.logits(b"", mode="dense_bf16").shape == (0, model.vocab_size)
    limit = model.config["max_position_embeddings"]  # no wall: RoPE goes on, as it does in transformers
    assert np.isfinite(model.logits((text * (limit // len(text) + 1))[: limit + 1])).all()


def test_mode_none_is_the_most_economical(model, text):
    np.testing.assert_array_equal(model.logits(text), model.logits(text, mode=MODES[-1]))


def test_generate(model, text):
    greedy = model.generate(text, 12)
    assert len(greedy) == 12 and greedy == model.generate(list(text), 12, mode=MODES[-1], temperature=0)
    assert greedy[0] == int(model.logits(text)[-1].argmax())
    drawn = model.generate(text, 12, temperature=1.5, seed=1)
    assert (
        drawn == model.generate(text, 12, temperature=1.5, seed=1) != model.generate(text, 12, temperature=1.5, seed=2)
    )
    assert model.generate(text, 0) == []


@pytest.mark.parametrize("mode", MODES)
def test_layers_give_the_same_bits_whichever_way(model, mode):
    x = (np.random.default_rng(2).standard_normal((200, model.hidden_size))).astype(ml_dtypes.bfloat16)
    layer = model.layers[1]
    layer.reset(mode=mode, page_size=16)
    assert (layer.mode, layer.page_size, len(layer)) == (mode, 16, 0)
    whole = layer.prefill(x)
    assert whole.shape == x.shape and whole.dtype == x.dtype and len(layer) == 200
    layer.reset()
    np.testing.assert_array_equal(layer.prefill(x[:150]), whole[:150])
    twin = layer.copy()
    for step in range(150, 160):
        np.testing.assert_array_equal(layer.decode(x[step]), whole[step])
    np.testing.assert_array_equal(twin.prefill(x[150:]), whole[150:])
    assert len(layer) == 160 and len(copy.copy(twin)) == 200
    exact = layer.prefill(x[160:], out=np.zeros((40, model.hidden_size), np.float32))
    np.testing.assert_array_equal(exact.astype(ml_dtypes.bfloat16), whole[160:])


def test_layer_alone_and_its_selection(model, model_folder):
    layer = dsakit.Layer(model_folder, 0, mode="sparse_bf16")
    x = (np.random.default_rng(3).standard_normal((200, layer.hidden_size))).astype(ml_dtypes.bfloat16)
    selection = np.full((200, layer.index_topk), -7, np.int32)
    assert layer.has_indexer
    out = layer.prefill(x, selection=selection)
    assert sorted(selection[9, :10]) == list(range(10)) and len(set(selection[199])) == layer.index_topk
    shared = model.layers[0]
    shared.reset(mode="sparse_bf16")
    np.testing.assert_array_equal(shared.prefill(x), out)


@pytest.mark.parametrize(
    "call,builtin",
    [
        (lambda m: m.logits([1, 2], mode="fast"), ValueError),
        (lambda m: m.logits([1, 256]), ValueError),
        (lambda m: m.logits([1, -1]), ValueError),
        (lambda m: m.logits([1.0]), TypeError),
        (lambda m: m.logits([[1]]), TypeError),
        (lambda m: m.logits(np.zeros((1, 2), np.int32)), ValueError),
        (lambda m: m.logits("text"), TypeError),
        (lambda m: m.logits(None), ValueError),
        (lambda m: m.generate([], 3), ValueError),
        (lambda m: m.generate([1], -1), ValueError),
        (lambda m: m.generate([1], 1, temperature=-1), ValueError),
        (lambda m: m.layers[0].prefill(None), ValueError),
        (lambda m: m.layers[0].prefill(np.zeros((2, 3), ml_dtypes.bfloat16)), ValueError),
        (lambda m: m.layers[0].prefill(np.zeros((2, m.hidden_size), np.float32)), TypeError),
        (lambda m: m.layers[0].decode(np.zeros((2, m.hidden_size), ml_dtypes.bfloat16)), ValueError),
        (lambda m: m.layers[0].reset(mode="fast"), ValueError),
        (lambda m: dsakit.Model("/no/such/folder"), OSError),
    ],
)
def test_refusals(model, call, builtin):
    with pytest.raises(builtin) as caught:
        call(model)
    assert isinstance(caught.value, dsakit.Error)
