# SPDX-License-Identifier: Apache-2.0
"""dsakit.debug: cases as objects."""

import numpy as np
import pytest

import dsakit
from dsakit import debug


@pytest.fixture
def case(indexer):
    """What `indexer` calls, with its result."""
    case = debug.Case("torch_npu.npu_quant_lightning_indexer", {"sparse_count": indexer["sparse_count"]})
    for name, value in indexer.items():
        if isinstance(value, np.ndarray):
            case["in." + name] = value
    case["out.0"] = dsakit.npu_quant_lightning_indexer(**indexer)
    return case


def test_a_case_is_saved_loaded_and_computed_again(case, tmp_path):
    case.save(tmp_path / "a.safetensors")
    loaded = debug.Case.load(tmp_path / "a.safetensors")
    assert loaded.operator == "quant_lightning_indexer" and loaded.attributes == {"sparse_count": 5}
    for reference in (False, True):
        run = loaded.run(reference)
        assert run.refusal is None and run.seconds > 0
        np.testing.assert_array_equal(run.results["out.sparse_indices"], case["out.0"])
        (same,) = loaded.compare(run)
        assert same.equal and same.elements == case["out.0"].size and same.parameter == "sparse_indices"
    loaded.save(tmp_path / "b.safetensors")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


def test_an_edit_changes_the_copy_alone(case):
    edited = case.copy()
    key = edited["in.key"]
    key[0, 3] = -key[0, 3]
    edited["in.key"] = key
    edited.attributes["sparse_count"] = 4
    assert case.attributes["sparse_count"] == 5 and not np.array_equal(case["in.key"], key)
    del edited.attributes["sparse_count"]
    with pytest.raises(KeyError):
        del edited.attributes["sparse_count"]
    run = edited.run()
    assert run.results["out.sparse_indices"].shape[-1] == 2048  # the default
    (apart,) = case.compare(run)
    assert not apart.equal and "shape" in apart.mismatch


def test_differences_have_their_place(case):
    case["ref.sparse_indices"] = case["out.0"]
    moved = case["out.0"]
    moved[1, 2, 0, 3] = 8 - moved[1, 2, 0, 3]
    case["out.0"] = moved
    (apart,) = case.compare(case.run())
    assert apart.different == 1 and apart.first == (1, 2, 0, 3)
    (beside,) = case.compare(case, "out", "ref")
    assert beside.different == 1
    (judged,) = case.judge("dsakit", case.run())
    assert not judged.equal and judged.figures["departing"] == 1


def test_refusals_are_answers(case):
    case["in.weights"] = case["in.weights"][:, :, :3]
    status, sentence = case.run().refusal
    assert status == "INVALID_SHAPE" and "weights has shape [2, 3, 3]" in sentence
    case["in.wieghts"] = case["in.weights"]
    with pytest.raises(dsakit.Error, match="CASE_NAME"):
        case.save("never-written.safetensors")
    with pytest.raises(ValueError, match="CASE_CALL"):
        debug.Case("torch_npu.npu_quantise").check()


def test_views_and_layouts(case):
    case["float.key"] = np.repeat(case["in.key"], 2, axis=1)
    shape = case["in.key"].shape
    del case["in.key"]
    case.set_layout("in.key", of="float.key", shape=list(shape), stride=[18 * 16, 32, 16, 1], offset=0)
    np.testing.assert_array_equal(case["in.key"], case["float.key"][:, ::2])
    (same,) = case.compare(case.run())
    assert same.equal
    assert case.layout("in.key")["of"] == "float.key" and case.find("in", "key") == "in.key"


def test_every_function_of_the_package_is_a_spelling():
    spelled = debug.spellings()
    for name in dsakit.operators.__all__:
        if "mx_quant" not in name:  # computed in Python
            assert "dsakit." + name in spelled, name
    assert set(spelled.values()) == set(dsakit._core.describe())


@pytest.mark.parametrize("rule", sorted(debug.rules()))
def test_every_rule_lets_equal_results_pass_and_a_wrong_one_fail(rule, rng=np.random.default_rng(3)):
    case = debug.Case("torch_npu.npu_rms_norm")
    rows = rng.standard_normal((64, 128)).astype(np.float32)
    rows[:, :4] *= 1e-5  # ascend-small looks at small elements alone
    case["in.self"] = rows
    case["in.gamma"] = np.ones(128, np.float32)
    run = case.run()
    y = run.results["out.y"]
    case["out.y"] = y
    case["ref.y"] = y * np.float32(1 + 1e-6)
    (good,) = case.judge(rule, run)
    assert good.equal, good.sentence
    wrong = y.copy()
    wrong[y < 0.5] *= -1
    wrong[3] = 0
    case["out.y"] = wrong
    (bad,) = case.judge(rule, run)
    assert not bad.equal, bad.sentence
