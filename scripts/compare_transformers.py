# SPDX-License-Identifier: Apache-2.0
"""Tokens per second beside Hugging Face transformers, same machine, same run: the small trained model, decode steps
behind a context, and prefill of that context. Needs dsakit, torch and transformers (what ./check installs).

    .venv/bin/python scripts/compare_transformers.py [CONTEXT]
"""
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import transformers

import dsakit

CONTEXT = int(sys.argv[1]) if len(sys.argv) > 1 else 2048
STEPS, ROUNDS = 32, 3
FOLDER = pathlib.Path(dsakit.__file__).parent / "models" / "tiny-dsa"
TOKENS = list((FOLDER / "heldout.txt").read_bytes()[:CONTEXT])


def seconds(f):
    start = time.perf_counter()
    f()
    return time.perf_counter() - start


def ours(mode):
    """The command times the prompt and the steps behind it where they happen."""
    command = pathlib.Path(dsakit.__file__).parent / "bin" / "dsakit"
    with tempfile.NamedTemporaryFile() as text:
        text.write(bytes(TOKENS))
        text.flush()
        call = [command, "run", FOLDER, "--text", text.name, "--mode", mode, "--generate", str(1 + STEPS), "--json"]
        runs = [json.loads(subprocess.check_output(call))["modes"][mode] for _ in range(ROUNDS)]
    prefill, decode = (statistics.median(run[key] for run in runs) for key in ("prefill_seconds", "decode_seconds"))
    return CONTEXT / prefill, STEPS / decode


@torch.no_grad()
def theirs(dtype, implementation):
    model = transformers.AutoModelForCausalLM.from_pretrained(FOLDER, dtype=dtype, attn_implementation=implementation).eval()
    ids = torch.tensor([TOKENS])
    prefill, decode = [], []
    for _ in range(ROUNDS):
        cache = None

        def run():
            nonlocal cache
            cache = model(ids, use_cache=True).past_key_values

        prefill.append(seconds(run))
        token = ids[:, -1:]
        decode.append(seconds(lambda: [model(token, past_key_values=cache, use_cache=True) for _ in range(STEPS)]))
    return CONTEXT / statistics.median(prefill), STEPS / statistics.median(decode)


print(f"{dsakit.info()['threads']} threads, {dsakit.info()['isa']}; transformers {transformers.__version__}, torch {torch.__version__}")
print(f"{'':42}{'prefill':>14}{'decode':>14}   tokens per second at {CONTEXT} tokens of context")
best = 0
for dtype in (torch.float32, torch.bfloat16):
    for implementation in ("eager", "sdpa"):
        try:
            prefill, decode = theirs(dtype, implementation)
        except Exception as error:  # an implementation this release does not offer for the model
            print(f"transformers {implementation}: {type(error).__name__}")
            continue
        best = max(best, decode)
        print(f"{'transformers ' + str(dtype).removeprefix('torch.') + ' ' + implementation:42}{prefill:14.0f}{decode:14.1f}")
for mode in ("dense_bf16", "sparse_bf16", "sparse_w8a8", "sparse_w8a8_packed"):
    prefill, decode = ours(mode)
    print(f"{'dsakit ' + mode:42}{prefill:14.0f}{decode:14.1f}   {decode / best:.1f} x the best transformers")
