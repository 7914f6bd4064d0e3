# SPDX-License-Identifier: Apache-2.0
"""Includes point downwards only, and intrinsics stay in src/kernels. Usage: layering.py SOURCE_DIR"""
import pathlib
import re
import sys

# Folder -> folders of src whose headers it may include besides its own. Everybody may include <dsakit/...>.
MAY = {
    "include": set(),
    "src/core": set(),  # knows no operator and no CPU
    "src/kernels": set(),  # knows pointers, strides and counts; core is a stranger
    "src/run": {"core", "kernels"},
    "src/io": {"core"},
    "src/ops": {"run", "core", "kernels"},
    "src/parallel": {"run", "core"},
    "src/shards": {"parallel", "ops", "run", "core", "kernels"},  # operators whose caches lie on several ranks
    "src/layer": {"shards", "parallel", "ops", "io", "run", "core", "kernels"},
    "src/checkpoint": {"layer", "parallel", "ops", "io", "run", "core", "kernels"},
    "src/debug": {"ops", "io", "run", "core"},  # calls as files: everything that knows operators by their descriptions
    "src/capi": {"ops", "io", "core"},
    "src/cuda": {"ops", "run", "core"},
    "src/dist": set(),
    "python": set(),
    "tools": set(),
    "tests": set(),
    "examples": set(),
}
# test*.cc and bench*.cc lie beside what they look at, and see all of the house.
PROBES_MAY = {"core", "kernels", "run", "io", "ops", "parallel", "shards", "debug", "layer", "checkpoint", "capi"}
# src/bench.hpp: what src/ops/*/bench.cc hand to tools/bench.cc.
MAY["src"] = {"core", "ops"}

# Private headers that somebody outside needs all the same. One that nobody includes any more is an error.
EXCEPTIONS = {
    ("tools", "bench.hpp"): "the cases to time, which lie beside the operators",
    ("tools", "ops/ops.inc"): "the list of operators",
    ("tools", "kernels/roof.hpp"): "the limits of this machine, with which `dsakit bench` compares",
    ("tools", "io/durable.hpp"): "a signal that ends the command leaves no partial file",
    ("tools", "run/numa.hpp"): "`dsakit info`, ranks bound to too few cores",
    ("tools", "run/cores.hpp"): "ranks bound to too few cores",
    ("tools", "kernels/unused.hpp"): "what this machine could do besides",
    ("tools", "core/environment.hpp"): "`dsakit info`: what became of a variable",
    ("tools", "core/text.hpp"): "words of the command line, fit for a message",
    ("tools", "core/nearest.hpp"): "what a misspelled name may have meant",
    ("tools", "core/text.hpp"): "words of a command line in a refusal",
    ("tools", "core/random.hpp"): "data that is the same on every machine, for `dsakit demo`",
    ("tools", "layer/layer.hpp"): "a layer of synthetic weights, for `dsakit demo`; the rows entering one, for `dsakit layer`",
    ("tools", "layer/compare.hpp"): "`dsakit layer`",
    ("tools", "io/checkpoint.hpp"): "`dsakit layer`",
    ("tools", "io/file.hpp"): "a text, read without hanging on a FIFO",
    ("tools", "checkpoint/plan.hpp"): "`dsakit plan`",
    ("tools", "checkpoint/ranks.hpp"): "`dsakit plan --ranks`",
    ("tools", "parallel/grid.hpp"): "how several processes share a model, in a user's words",
    ("tools", "checkpoint/convert.hpp"): "`dsakit convert`",
    ("tools", "io/memory.hpp"): "what a rank of `dsakit run` may take",
    ("tools", "io/tokens.hpp"): "`dsakit run --tokens`, `dsakit layer`",
    ("tools", "io/describe.hpp"): "`dsakit inspect`",
    ("tools", "ops/describe_text.hpp"): "`dsakit describe`",
    ("tools", "core/check.hpp"): "`dsakit check`: positions as refusals have them",
    ("tools", "debug/compare.hpp"): "`dsakit replay`, `dsakit check`",
    ("tools", "debug/scores.hpp"): "`dsakit check --rule cann-li`",
    ("tools", "debug/verbose.hpp"): "`dsakit verbose`, `dsakit replay`: the columns of a line",
    ("tools", "debug/explain.hpp"): "`dsakit explain`",
    ("tools", "debug/golden.hpp"): "`dsakit golden`, `dsakit replay` of lines",
    ("tools", "debug/apart.hpp"): "`dsakit diff`",
    ("tools", "debug/steps.hpp"): "`dsakit diff`, `dsakit replay`: the first step that departs",
    ("tools", "ops/taps.hpp"): "`dsakit describe`",
    ("tools", "debug/rule.hpp"): "`dsakit check`, and `dsakit replay` where bits differ",
    ("python", "debug/watch.hpp"): "calls that are refused while their results are allocated, for those who record them",
    ("python", "debug/check_layout.hpp"): "dsakit.debug: tensors of a case behind their views",
    ("python", "debug/compare.hpp"): "dsakit.debug",
    ("python", "debug/golden.hpp"): "dsakit.debug.golden",
    ("python", "debug/index_scores.hpp"): "dsakit.debug: pictures of what an indexer's keys are worth",
    ("python", "debug/rule.hpp"): "dsakit.debug",
    ("python", "debug/scores.hpp"): "dsakit.debug: the rule that needs them",
    ("python", "debug/spelling.hpp"): "dsakit.debug: the names that a case may call",
    ("python", "ops/ops.inc"): "the list of operators",
    ("python", "ops/describe.hpp"): "the description of each, of which its functions are made",
    ("python", "core/check.hpp"): "refusals of arrays, in the words of the operators' own",
    ("python", "core/level.hpp"): "`level`, in the words of every other way of calling",
    ("python", "core/text.hpp"): "words of a caller, fit for a message",
    ("python", "core/dlpack.hpp"): "element types as DLPack numbers them",
    ("python", "io/safetensors.hpp"): "dsakit.load_safetensors",
    ("python", "layer/layer.hpp"): "dsakit.hf: a layer of another configuration, caches that share pages",
    ("python", "layer/tensor_source.hpp"): "dsakit.hf: weights in memory",
    ("python", "layer/tensor_experts.hpp"): "dsakit.hf: experts of weights in memory",
    ("python", "ops/lightning_indexer_prolog_quant/problem.hpp"): "its door alone, before a cache is copied",
    ("python", "ops/mla_indexer_prolog_quant/problem.hpp"): "its door alone, before a cache is copied",
    ("python", "ops/pypto/pypto.hpp"): "what programs of dsakit.pypto are made of",
    ("tests", "core/random.hpp"): "data",
    ("tests", "core/dlpack.hpp"): "fuzzing: element types of C's tensors",
    ("tests", "io/checkpoint.hpp"): "fuzzing: the reader",
    ("tests", "io/describe.hpp"): "fuzzing: the reader",
    ("tests", "io/json.hpp"): "fuzzing: the work that reading takes",
    ("tests", "io/safetensors.hpp"): "fuzzing: the reader",
    ("tests", "io/tokens.hpp"): "fuzzing: the reader",
    ("tests", "debug/bind.hpp"): "fuzzing: a call that is made up, as arguments",
    ("tests", "debug/execute.hpp"): "fuzzing: case files; a case that is refused memory",
    ("tests", "debug/golden_plan.hpp"): "fuzzing: the sizes of a call before it is made up",
    ("tests", "ops/describe_text.hpp"): "fuzzing: operators by their names",
    ("tests", "checkpoint/convert.hpp"): "a conversion that is refused memory",
}

root = pathlib.Path(sys.argv[1])
bad, used, count = [], set(), 0


def folder_of(path):
    """src/ops, src (what lies directly in it), or python, tools, ... without what lies deeper."""
    parts = path.relative_to(root).parts
    return "/".join(parts[:2]) if parts[0] == "src" and len(parts) > 2 else parts[0]


def look(path, folder):
    own = folder.removeprefix("src/")
    allowed = MAY[folder] | {own}
    if folder.startswith("src/") and path.name.startswith(("test", "bench")):
        allowed |= PROBES_MAY
    for number, line in enumerate(path.read_text().splitlines(), 1):
        here = f"{path.relative_to(root)}:{number}"
        if re.search(r"#\s*include\s*<(\w*intrin|arm_\w+)\.h>", line) and folder != "src/kernels":
            bad.append(f"{here}: intrinsics outside src/kernels: {line.strip()}")
        match = re.match(r'\s*#\s*include\s*["<]([\w./]+)[">]', line)
        if not match:
            continue
        name = match[1]
        if name.startswith("dsakit/") or not (root / "src" / name).exists():
            continue  # public, of the system, or beside the file itself
        if (folder, name) in EXCEPTIONS:
            used.add((folder, name))
        elif name == "bench.hpp" and path.name.startswith("bench"):
            continue
        elif name.split("/")[0] not in allowed:
            bad.append(f"{here}: {folder} may not include {name}")


for top in ("include", "src", "python", "tools", "tests", "examples"):
    for path in sorted((root / top).rglob("*")):
        if path.suffix in (".c", ".cc", ".hpp", ".h", ".inc", ".cu"):
            count += 1
            if (folder := folder_of(path)) in MAY:
                look(path, folder)
            else:
                bad.append(f"{path.relative_to(root)}: a folder without a place in the order")
bad += [f"{folder} does not include {name}: take the exception away" for folder, name in EXCEPTIONS.keys() - used]

print("\n".join(bad) or f"{count} files, no arrow upwards, {len(used)} exceptions")
sys.exit(bool(bad) or count < 20)
