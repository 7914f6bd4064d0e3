# SPDX-License-Identifier: Apache-2.0
"""One rank of test_dist_model.py's processes. Usage: dist_model_ranks.py MODEL PARALLEL FOLDER, with RANK and WORLD_SIZE set."""

import datetime
import json
import os
import pathlib
import sys

import numpy as np
import torch.distributed

import dsakit
import dsakit.dist

model_folder, parallel, folder = (pathlib.Path(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3]))
torch.distributed.init_process_group(
    "gloo",
    store=torch.distributed.FileStore(str(folder / "store"), int(os.environ["WORLD_SIZE"])),
    rank=int(os.environ["RANK"]),
    world_size=int(os.environ["WORLD_SIZE"]),
    timeout=datetime.timedelta(seconds=300),
)
group = dsakit.dist.init(timeout=300)
text = (model_folder / "heldout.txt").read_bytes()[:170]
session = dsakit.Model(model_folder, group=group, parallel=parallel).session("sparse_w8a8")
logits = [session.prefill(text[:160]), *(session.step(token) for token in text[160:])]
np.save(folder / f"{group.rank()}.npy", np.stack(logits))
(folder / f"{group.rank()}.json").write_text(json.dumps(session.traffic))
