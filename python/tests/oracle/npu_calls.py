# SPDX-License-Identifier: Apache-2.0
"""The small calls of calls.py as torch_npu is given them."""

import torch

import dsakit

from .calls import CALLS
from .harness import to_torch


def mapped(change, args):
    """The arguments with every tensor changed, those of lists too."""
    return torch.utils._pytree.tree_map(lambda v: change(v) if isinstance(v, torch.Tensor) else v, args)


def tensors_of(args):
    """As torch has them, without NaN in unused rows."""
    args = torch.utils._pytree.tree_map(to_torch, args)
    return mapped(lambda v: torch.nan_to_num(v) if v.is_floating_point() else v, args)


def inputs(id, without=""):
    """The call without memory for results; dtypes that are written as strings are torch's."""
    call = CALLS[id]
    fields = {f["name"]: f for f in dsakit._core.describe()[call.operator]["fields"]}
    args = {k: v for k, v in call.make().items() if fields[k]["role"] != "out" and k not in without.split()}
    dtypes = {k: getattr(torch, v) for k, v in args.items() if fields[k]["kind"] == "dtype" and isinstance(v, str)}
    return tensors_of(args) | dtypes


def results_of(results):
    return results if isinstance(results, (tuple, list)) else () if results is None else (results,)
