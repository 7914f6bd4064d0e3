#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tokens per second beside Hugging Face transformers, same machine, same run, by turns: the small trained model,
prefill of a context, and a decode step behind it, which is taken back. Without torch and transformers ours alone.

    .venv/bin/python scripts/compare_transformers.py [CONTEXT] [--threads N]
"""

import argparse
import functools
import pathlib

import dsakit
import timing

FOLDER = pathlib.Path(dsakit.__file__).parent / "models" / "tiny-dsa"
MODES = ("dense_bf16", "sparse_bf16", "sparse_w8a8", "sparse_w8a8_packed")
THEIRS = [(dtype, attention) for dtype in ("float32", "bfloat16") for attention in ("eager", "sdpa")]


def ours(mode, tokens):
    """Calls of a prefill and of a step, and what takes the step back."""
    model = loaded()
    session = model.session(mode)
    session.prefill(tokens)
    step = functools.partial(session.step, tokens[-1])
    return lambda: model.session(mode).prefill(tokens), step, functools.partial(session.crop, 1)


@functools.cache
def loaded():
    return dsakit.Model(FOLDER)


def theirs(dtype, attention, tokens):
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        FOLDER, dtype=getattr(torch, dtype), attn_implementation=attention
    ).eval()
    ids = torch.tensor([tokens])

    @torch.no_grad()
    def prefill():
        return model(ids, use_cache=True)

    cache = prefill().past_key_values

    @torch.no_grad()
    def step():
        return model(ids[:, -1:], past_key_values=cache, use_cache=True)

    return prefill, step, functools.partial(cache.crop, -1)


def measure(context, seconds=2.0, rounds=3):
    """name -> tokens per second, or why there are none."""
    tokens = list((FOLDER / "heldout.txt").read_bytes()[:context])
    calls, report = {}, {}
    for dtype, attention in THEIRS:
        name = f"transformers {dtype} {attention}"
        report[name] = {}
        try:
            calls[name] = theirs(dtype, attention, tokens)
        except Exception as error:  # absent, or an implementation this release does not offer for the model
            report[name] = {"absent": f"{type(error).__name__}: {error}".splitlines()[0][:100]}
    for mode in MODES:
        calls[f"dsakit {mode}"] = ours(mode, tokens)
    prefill = timing.alternate({name: call[0] for name, call in calls.items()}, seconds, rounds)
    step = timing.alternate(
        {name: call[1] for name, call in calls.items()},
        seconds,
        rounds,
        {name: call[2] for name, call in calls.items()},
    )
    for name in calls:
        report[name] = {"prefill": context / prefill[name], "decode": 1 / step[name]}
    return report


def best_of_theirs(report, what):
    """Tokens per second of their fastest; None if there is none."""
    return max(
        (row[what] for name, row in report.items() if name.startswith("transformers") and what in row), default=None
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("context", nargs="?", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=dsakit.get_num_threads())
    args = parser.parse_args()
    machine = timing.machine([args.threads])
    timing.set_threads(args.threads)
    report = measure(args.context)
    print(timing.heading(timing.finished(machine)))
    print(f"{'':34}{'prefill':>12}{'decode':>12}   tokens per second at {args.context} tokens of context")
    best = best_of_theirs(report, "decode")
    for name, row in report.items():
        if "absent" in row:
            print(f"{name:34}  absent: {row['absent']}")
            continue
        ratio = f"   {row['decode'] / best:.1f} x the best transformers" if best and name.startswith("dsakit") else ""
        print(f"{name:34}{row['prefill']:12.0f}{row['decode']:12.1f}{ratio}")


if __name__ == "__main__":
    main()
