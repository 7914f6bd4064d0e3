# SPDX-License-Identifier: Apache-2.0
"""What the package's own tests share."""

import pathlib

import numpy as np
import pytest

import dsakit


def pytest_addoption(parser):
    parser.addoption("--no-references", action="store_true", help="leave out the tests of the references alone")


def pytest_collection_modifyitems(config, items):
    """The references know no instruction set: where the same tests run on one after the other, once is enough."""
    if config.getoption("--no-references"):
        alone = [i for i in items if hasattr(i, "callspec") and i.callspec.params.get("impl") == "reference"]
        config.hook.pytest_deselected(items=alone)
        left_out = set(alone)
        items[:] = [i for i in items if i not in left_out]


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
