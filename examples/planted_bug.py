# SPDX-License-Identifier: Apache-2.0
"""Writes a bug into a W8A8 checkpoint, for docs/tutorial.md: in one layer, each channel of the query projection has the
scale of the next one. python examples/planted_bug.py FOLDER
"""

import pathlib
import sys

import ml_dtypes  # noqa: F401  bfloat16, for what is left as it is
import numpy as np
from safetensors.numpy import load_file, save_file

SCALE = "model.layers.2.self_attn.q_b_proj.weight_scale"
(file,) = pathlib.Path(sys.argv[1]).glob("*.safetensors")
tensors = load_file(file)
tensors[SCALE] = np.roll(tensors[SCALE], -1, axis=0)
save_file(tensors, file)
