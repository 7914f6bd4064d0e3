# SPDX-License-Identifier: Apache-2.0
"""What the package's own tests share."""

import pathlib

import numpy as np
import pytest

import dsakit


@pytest.fixture
def indexer():
    """Arguments of a small quant_lightning_indexer call."""
    rng = np.random.default_rng(7)
    return dict(
        query=rng.integers(-128, 128, (2, 3, 4, 16), np.int8),
        key=rng.integers(-128, 128, (2, 9, 1, 16), np.int8),
        weights=rng.random((2, 3, 4)).astype(np.float16),
        query_dequant_scale=rng.random((2, 3, 4)).astype(np.float16),
        key_dequant_scale=rng.random((2, 9, 1)).astype(np.float16),
        sparse_count=5,
    )


@pytest.fixture
def npu():
    """torch_npu that computes here."""
    import dsakit.npu

    dsakit.npu.install()
    import torch_npu

    yield torch_npu
    dsakit.npu.uninstall()


@pytest.fixture(scope="session")
def model_folder():
    """The small trained model that the wheel carries."""
    return pathlib.Path(dsakit.__file__).parent / "models" / "tiny-dsa"
