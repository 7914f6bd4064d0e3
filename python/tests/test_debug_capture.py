# SPDX-License-Identifier: Apache-2.0
"""dsakit.capture and dsakit.mark."""

import json
import os
import subprocess
import sys
import warnings

import numpy as np
import pytest

import dsakit
from dsakit import debug


def cases_of(folder):
    return [debug.Case.load(p) for p in sorted(folder.glob("0*.safetensors"))]


def test_calls_of_every_face_are_recorded_and_computed_again(indexer, npu, tmp_path):
    torch = pytest.importorskip("torch")
    wanted = dsakit.quant_lightning_indexer(**indexer)
    with dsakit.capture(tmp_path) as recording:
        dsakit.mark(step=3, layer=1)
        np.testing.assert_array_equal(dsakit.quant_lightning_indexer(**indexer), wanted)
        tensors = {k: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for k, v in indexer.items()}
        npu.npu_quant_lightning_indexer(**tensors, query_quant_mode=0, key_quant_mode=0)
        with pytest.raises(dsakit.Error):
            dsakit.quant_lightning_indexer(**indexer | {"weights": indexer["weights"][:1]})
    assert (recording.seen, recording.written) == (3, 3)
    good, torch_case, refused = cases_of(tmp_path)
    for case in (good, torch_case):
        (same,) = case.compare(case.run())
        assert same.equal
    assert good.where == {"sequence": 1, "step": 3, "layer": 1, "rank": 0}
    assert "weights has shape" in refused.refusal and refused.run().refusal[1] == refused.refusal
    lines = [json.loads(line) for line in (tmp_path / "index.jsonl").read_text().splitlines()]
    assert [line["status"] for line in lines] == ["OK", "OK", "INVALID_SHAPE"]
    assert json.loads((tmp_path / "summary.json").read_text())["written"] == 3


def test_the_environment_records_a_whole_program(tmp_path):
    program = """
import numpy as np, dsakit
x = np.ones((2, 4), np.float32)
for _ in range(6): dsakit.rms_norm(x, x[0])
dsakit.swiglu(np.ones((2, 8), np.float32))
"""
    environment = os.environ | {"DSAKIT_CAPTURE": f"{tmp_path}/dump,operators=rms_norm+quantize,every=4,max_bytes=1MB"}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=120)
    cases = cases_of(tmp_path / "dump")
    assert [c.where["sequence"] for c in cases] == [1, 5]
    assert json.loads((tmp_path / "dump/summary.json").read_text())["skipped"] == {"every": 4, "operators": 1}


@pytest.mark.parametrize("text", ["dump,evry=2", "/proc/nowhere/dump", "dump,max_bytes=many"])
def test_a_wrong_environment_is_a_warning(text, tmp_path):
    program = """
import warnings, numpy as np, dsakit
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    dsakit.rms_norm(np.ones((2, 4), np.float32), np.ones(4, np.float32))
print(*(w.message for w in found))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | {"DSAKIT_CAPTURE": text}, cwd=tmp_path, check=True,
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert "DSAKIT_CAPTURE" in done.stdout and done.stderr == ""


def test_the_filter_of_an_empty_folder_is_named(tmp_path):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        with dsakit.capture(tmp_path, operators="npu_quantize"):
            dsakit.rms_norm(np.ones((2, 4), np.float32), np.ones(4, np.float32))
        dsakit.rms_norm(np.ones((2, 4), np.float32), np.ones(4, np.float32))
    assert any("nothing was recorded: 1 calls left out by operators" in str(w.message) for w in found)


def test_wrong_options_are_refused(tmp_path):
    for options in ({"operators": ["quantise"]}, {"every": 0}, {"keep": "newest"}, {"caches": "all"}, {"max_bytes": 0}):
        with pytest.raises(ValueError, match=next(iter(options))), dsakit.capture(tmp_path, **options):
            pass
    with pytest.raises(ValueError, match="taps.*nearest: 3.query_norm"), dsakit.capture(tmp_path, taps=["query_norm"]):
        pass
