# SPDX-License-Identifier: Apache-2.0
"""Sequences that run through a model: Model.session, dsakit.step, and what they refuse."""

import copy

import numpy as np
import pytest

import dsakit

MODES = ("dense_bf16", "sparse_bf16", "sparse_w8a8", "sparse_w8a8_packed")


@pytest.fixture(scope="module")
def model(model_folder):
    return dsakit.Model(model_folder)


@pytest.fixture(scope="module")
def text(model_folder):
    return (model_folder / "heldout.txt").read_bytes()[:200]


@pytest.mark.parametrize("mode", MODES)
def test_the_bits_of_logits_whichever_way(model, text, mode):
    wanted = model.logits(text, mode=mode)
    session = model.session(mode, page_size=16)
    assert session.mode == mode and len(session) == 0
    np.testing.assert_array_equal(session.prefill(text[:150]), wanted[149])
    fork, other = session.fork(), copy.copy(session)
    for i in range(150, 155):
        logits = session.step(text[i])
        assert logits.shape == (model.vocab_size,) and logits.dtype == np.float32
        np.testing.assert_array_equal(logits, wanted[i])
    np.testing.assert_array_equal(fork.prefill(text[150:]), wanted[-1])
    other.step(text[0])
    other.crop(1)
    np.testing.assert_array_equal(other.step(text[150]), wanted[150])
    assert (len(session), len(fork), len(other)) == (155, len(text), 151)


@pytest.mark.parametrize("mode", MODES)
def test_a_batch_steps_as_each_alone(model, text, mode):
    first = model.session(mode)
    first.prefill(text[:140])
    batch = [first, first.fork(), model.session(mode, page_size=16)]
    alone = [session.fork() for session in batch]
    for i in range(3):
        tokens = [text[i], text[150 + i], text[100 - i]]
        logits = dsakit.step(batch, tokens)
        assert logits.shape == (3, model.vocab_size)
        for row, session, token in zip(logits, alone, tokens, strict=True):
            np.testing.assert_array_equal(row, session.step(token))
    assert [len(session) for session in batch] == [143, 143, 3]


def test_forks_share_what_both_have_said(model, text):
    session = model.session("sparse_w8a8", page_size=16)
    session.prefill(text)
    alone = session.cache_bytes
    forks = [session.fork() for _ in range(20)]
    assert session.cache_bytes == alone
    dsakit.step(forks, [7] * 20)  # a page of its own for each
    pages = -(-len(text) // 16)
    assert alone < session.cache_bytes <= alone * (pages + 20) * 1.25 / pages


def test_generate_tells_each_token_as_it_comes(model, text):
    seen = []
    assert model.generate(text, 5, each=seen.append) == seen and len(seen) == 5

    def enough(token):
        seen.append(token)
        if len(seen) == 7:
            raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        model.generate(text, 5, each=enough)
    assert len(seen) == 7


@pytest.mark.parametrize(
    "call,parameter",
    [
        (lambda s, o: s[0].prefill([]), "tokens"),
        (lambda s, o: s[0].prefill([1, 256]), "tokens"),
        (lambda s, o: s[0].step(-1), "tokens"),
        (lambda s, o: s[0].crop(5), "count"),
        (lambda s, o: s[0].crop(-1), "count"),
        (lambda s, o: dsakit.step([], []), "sessions"),
        (lambda s, o: dsakit.step(s, [1]), "tokens"),
        (lambda s, o: dsakit.step(s, [1, 256]), "tokens"),
        (lambda s, o: dsakit.step([s[0], s[0]], [1, 2]), "sessions"),
        (lambda s, o: dsakit.step([s[0], "session"], [1, 2]), "sessions"),
        (lambda s, o: dsakit.step([s[0], o.session("dense_bf16")], [1, 2]), "sessions"),
        (lambda s, o: dsakit.step([s[0], o.session(s[0].mode)], [1, 2]), "sessions"),
    ],
)
def test_refusals_change_nothing(model, model_folder, call, parameter):
    sessions = [model.session("sparse_bf16"), model.session("sparse_bf16")]
    for session in sessions:
        session.prefill(b"said")
    with pytest.raises(dsakit.Error) as caught:
        call(sessions, dsakit.Model(model_folder))
    assert caught.value.parameter == parameter and isinstance(caught.value, ValueError)
    assert [len(session) for session in sessions] == [4, 4]
    wanted = model.logits(b"saids", mode="sparse_bf16")[-1]
    np.testing.assert_array_equal(dsakit.step(sessions, b"ss"), [wanted, wanted])
