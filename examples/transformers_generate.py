# SPDX-License-Identifier: Apache-2.0
"""transformers generates, dsakit computes the attention: the same tokens, told with the time of both.

    python examples/transformers_generate.py MODEL [--prompt TEXT] [--tokens 40] [--mode MODE] [--beams N]

MODEL is a checkpoint folder of DeepSeek-V3.2, GLM-5 or DeepSeek-V3 that transformers can load; without a tokenizer its
tokens are bytes, as in the small model of the wheel.
"""

import argparse
import pathlib
import time

import torch
import transformers

from dsakit import hf


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--prompt", default="And it came to pass, when the king heard the words of the ")
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--mode")
    parser.add_argument("--beams", type=int, default=1)
    args = parser.parse_args()

    model = transformers.AutoModelForCausalLM.from_pretrained(
        args.model, dtype="auto", attn_implementation="eager"
    ).eval()
    tokenizer = None
    if (args.model / "tokenizer.json").exists():
        tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)
    ids = torch.tensor([tokenizer(args.prompt).input_ids if tokenizer else list(args.prompt.encode())])

    def run(name):
        start = time.perf_counter()
        how = dict(max_new_tokens=args.tokens, num_beams=args.beams, do_sample=False, pad_token_id=0)
        said = model.generate(ids, attention_mask=torch.ones_like(ids), **how)[0, ids.shape[1] :].tolist()
        print(f"{name}: {time.perf_counter() - start:.2f} s")
        return said

    theirs = run("transformers")
    print(hf.accelerate(model, mode=args.mode))
    ours = run("dsakit")
    print(tokenizer.decode(ours) if tokenizer else bytes(ours).decode(errors="replace"))
    same = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), len(ours))
    print(f"{same} of {len(ours)} tokens as transformers said them")


if __name__ == "__main__":
    main()
