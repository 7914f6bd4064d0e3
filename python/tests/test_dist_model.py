# SPDX-License-Identifier: Apache-2.0
"""A model that ranks share: threads of this process, and processes of torch.distributed."""

import json
import os
import pathlib
import subprocess
import sys

import dsakit
import dsakit.dist
import numpy as np
import pytest
from test_command import dsakit_command

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tests"))

import make_checkpoints as made

HANG = 300  # seconds
PROGRAM = pathlib.Path(__file__).with_name("dist_model_ranks.py")
SCRIPT = pathlib.Path(__file__).parents[2] / "scripts" / "random_grids.py"


@pytest.fixture(scope="module")
def text(model_folder):
    return (model_folder / "heldout.txt").read_bytes()[:170]


@pytest.mark.parametrize("ranks, parallel", [(2, "kv=2"), (3, "heads=3"), (4, "kv=2,heads=2"), (4, "heads=2,query=2")])
def test_logits_of_ranks_are_those_of_one_process(model_folder, text, ranks, parallel):
    wanted = dsakit.Model(model_folder).logits(text, mode="sparse_w8a8")
    seen = {}

    def run(group):
        model = dsakit.Model(model_folder, group=group, parallel=parallel)
        session = model.session("sparse_w8a8")
        seen[group.rank()] = [session.prefill(text[:160]), *(session.step(token) for token in text[160:])]
        assert session.traffic["layer_output"][0] > 0

    dsakit.dist.threads(ranks, run, timeout=HANG)
    assert sorted(seen) == list(range(ranks))
    for logits in seen.values():
        np.testing.assert_array_equal(np.stack(logits), wanted[159:])


def test_a_session_goes_on_with_other_ranks(model_folder, text, tmp_path):
    wanted = dsakit.Model(model_folder).logits(text, mode="sparse_w8a8")[-1]

    def save(group):
        session = dsakit.Model(model_folder, group=group, parallel="kv=3").session("sparse_w8a8")
        session.prefill(text[:-1])
        session.save(tmp_path)

    def go_on(model):
        session = model.load_session(tmp_path)
        assert len(session) == len(text) - 1
        np.testing.assert_array_equal(session.step(text[-1]), wanted)

    dsakit.dist.threads(3, save, timeout=HANG)
    go_on(dsakit.Model(model_folder))
    dsakit.dist.threads(2, lambda group: go_on(dsakit.Model(model_folder, group=group, parallel="kv=2")), timeout=HANG)


def test_what_differs_is_refused_on_all_ranks(model_folder):
    said = {}

    def run(group):
        with pytest.raises(ValueError) as refusal:
            dsakit.Model(model_folder, group=group, parallel="kv=2", merge="one" if group.rank() else "two")
        said[group.rank()] = str(refusal.value)

    dsakit.dist.threads(2, run, timeout=HANG)
    assert said[0] == said[1] == "parallel: merge is two on rank 0 and one on rank 1, wanted the same on all ranks"


def test_no_layers_of_a_shared_model(model_folder):
    def run(group):
        with pytest.raises(NotImplementedError, match="of a model that ranks share"):
            _ = dsakit.Model(model_folder, group=group, parallel="heads=2").layers

    dsakit.dist.threads(2, run, timeout=HANG)


@pytest.mark.parametrize("ranks, parallel", [(2, "kv=2"), (4, "kv=2,heads=2")])
def test_processes_of_torch_distributed(model_folder, text, tmp_path, ranks, parallel):
    pytest.importorskip("torch")
    processes = [
        subprocess.Popen(
            [sys.executable, PROGRAM, model_folder, parallel, tmp_path],
            env=os.environ
            | {"GLOO_SOCKET_IFNAME": "lo", "DSAKIT_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
            | {"RANK": str(rank), "WORLD_SIZE": str(ranks)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        for process in processes:
            out = process.communicate(timeout=HANG)[0]
            assert process.returncode == 0, out
    finally:
        for process in processes:
            process.kill()
    wanted = dsakit.Model(model_folder).logits(text, mode="sparse_w8a8")
    traffic = {}

    def run(group):
        session = dsakit.Model(model_folder, group=group, parallel=parallel).session("sparse_w8a8")
        session.prefill(text[:160])
        for token in text[160:]:
            session.step(token)
        traffic[group.rank()] = {name: list(count) for name, count in session.traffic.items()}

    dsakit.dist.threads(ranks, run, timeout=HANG)
    for rank in range(ranks):
        np.testing.assert_array_equal(np.load(tmp_path / f"{rank}.npy"), wanted[159:])
        assert json.loads((tmp_path / f"{rank}.json").read_text()) == traffic[rank]  # as much on every carrier


def test_exchanges_under_computation(model_folder, text, tmp_path):
    """Of the order of beginnings and ends, and how often an exchange was moved on before it was waited for."""

    def run(group):
        options = dict(group=group, parallel="kv=2,query=2", merge="two", trace=tmp_path / "trace")
        session = dsakit.Model(model_folder, **options).session("sparse_w8a8")
        session.prefill(text[:160])
        session.step(text[160])

    dsakit.dist.threads(4, run, timeout=HANG)
    for rank in range(4):
        lines = [json.loads(line) for line in (tmp_path / f"trace.{rank}").read_text().splitlines()]
        polled = {line["exchange"] for line in lines if line["polls"] > 0}
        assert {"cache_rows", "samples"} <= polled <= {"cache_rows", "samples", "candidates"}  # the last if samples were early
        events = sorted(event for line in lines for event in (line["begin"], line["end"]))
        assert events == list(range(1, len(events) + 1))
        ends = {line["begin"]: line for line in lines}
        for line in lines:
            if line["exchange"] == "cache_rows":  # travels while index queries are exchanged
                inside = ends[line["begin"] + 1]
                assert inside["exchange"] == "index_queries" and inside["end"] < line["end"]
            else:
                assert line["end"] == line["begin"] + 1 or line["exchange"] == "index_queries"
        assert {line["rank"] for line in lines} == {rank}


def test_a_trace_is_of_ranks(model_folder, tmp_path):
    with pytest.raises(ValueError, match="model: trace is given, wanted absent .without a group nothing travels"):
        dsakit.Model(model_folder, trace=tmp_path / "trace")


def test_grids_and_faults_by_chance(model_folder):
    ended = subprocess.run(
        [sys.executable, SCRIPT, model_folder, "--count", "24"], capture_output=True, text=True, timeout=HANG
    )
    assert ended.returncode == 0 and "; 0 wrong, seeds 1 to 24" in ended.stdout, ended.stdout + ended.stderr


SHAPES = dict(  # wide enough that what every rank holds (norms, scales, the last panels) is little of it
    hidden_size=1024,
    intermediate_size=1024,
    first_k_dense_replace=2,
    num_hidden_layers=2,
    num_attention_heads=16,
    num_key_value_heads=16,
    q_lora_rank=256,
    kv_lora_rank=256,
    qk_nope_head_dim=64,
    qk_rope_head_dim=64,
    v_head_dim=64,
    index_n_heads=32,
    index_head_dim=128,
    index_topk=64,
    rope_scaling=None,
)


def bytes_read():
    """Of this process so far, by read() and pread()."""
    return int(pathlib.Path("/proc/self/io").read_text().split()[1])


@pytest.mark.parametrize("form", ["float", "dynamic", "fp8"])
def test_ranks_hold_and_read_what_plan_says(form, tmp_path):
    """And compute what one does: parts of weights that are 8-bit floats begin between two scales here."""
    made.make("v32", form, **SHAPES).write(tmp_path)
    size = sum(file.stat().st_size for file in tmp_path.iterdir())
    for mode in ("dense_bf16", "sparse_bf16", "sparse_w8a8", "sparse_w8a8_packed"):
        wanted = None
        for ranks, parallel in ((1, "kv=1"), (2, "heads=2"), (4, "kv=2,heads=2")):
            words = ("plan", tmp_path, "--ranks", ranks, "--context", 512, "--mode", mode, "--json")
            grids = json.loads(dsakit_command(*words))["parallel"]["grids"]
            planned = next(g for g in grids if g["query"] == 1 and g["parallel"] in (parallel, ""))
            held = {}

            def run(group, parallel=parallel, held=held, mode=mode):
                model = dsakit.Model(tmp_path, group=group, parallel=parallel)
                session = model.session(mode)
                logits = session.prefill(bytes(range(256)) * 2)
                held[group.rank()] = (model.weight_bytes, session.cache_bytes, logits)

            before = bytes_read()
            dsakit.dist.threads(ranks, run, timeout=HANG)
            weights, cache = (max(kind) for kind in list(zip(*held.values(), strict=True))[:2])
            assert cache == planned["cache_bytes"]
            assert 0.995 < weights / planned["weight_bytes"] < 1.06
            assert bytes_read() - before < 1.09 * size  # of all ranks together
            wanted = held[0][2] if ranks == 1 else wanted
            if mode != "dense_bf16" or "kv" not in parallel:  # that merges partial results
                assert all((logits == wanted).all() for _, _, logits in held.values())
