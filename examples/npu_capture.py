# SPDX-License-Identifier: Apache-2.0
"""Records one call on any machine, with torch and safetensors alone, as a case file that `dsakit replay` reads:

out = record("dump/000001.safetensors", torch_npu.npu_rms_norm, "torch_npu.npu_rms_norm", x, gamma, epsilon=1e-6)
"""

import json
import os

import torch
from safetensors.torch import save_file


def record(path, function, spelling, *args, in_place=(), npu_format=None, **kwargs):
    """Calls function(*args, **kwargs). `in_place`: names or positions of what it updates; npu_format: name -> format."""
    given = {str(i): value for i, value in enumerate(args)} | kwargs
    attributes, tensors = {}, {}
    for name, value in given.items():
        items = value if isinstance(value, (list, tuple)) else [value]
        if items and all(isinstance(item, torch.Tensor) for item in items):
            for i, item in enumerate(items):  # before the call, and one memory for each
                tensors[f"in.{name}" + (f".{i}" if items is value else "")] = item.detach().cpu().contiguous().clone()
        else:
            attributes[name] = value
    results = function(*args, **kwargs)
    for i, result in enumerate(results if isinstance(results, (list, tuple)) else [results]):
        if isinstance(result, torch.Tensor):
            tensors[f"out.{i}"] = result.detach().cpu().contiguous().clone()
    for name in map(str, in_place):
        tensors[f"after.{name}"] = given[name].detach().cpu().contiguous().clone()
    metadata = {"dsakit.case": "1", "call": spelling, "attributes": json.dumps(attributes, allow_nan=False)}
    metadata |= {"producer": "npu_capture", "versions": f"torch {torch.__version__}"}
    if npu_format:
        metadata["layouts"] = json.dumps({f"in.{name}": {"npu_format": form} for name, form in npu_format.items()})
    save_file(tensors, path + ".partial", metadata)
    os.replace(path + ".partial", path)  # whole or not at all
    return results
