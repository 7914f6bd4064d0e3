# SPDX-License-Identifier: Apache-2.0
"""Libraries that stand before the system's in a process under test (LD_PRELOAD)."""

import pathlib
import shutil
import subprocess

import pytest


def compiled(folder, name):
    """Of `name`.cc beside this file; without a compiler the test is skipped."""
    compiler = shutil.which("c++")
    if not compiler:
        pytest.skip("needs a C++ compiler")
    library = folder / f"{name}.so"
    words = ["-std=c++20", "-O1", "-shared", "-fPIC", "-Wno-mismatched-new-delete", "-o", library]
    subprocess.run([compiler, *words, pathlib.Path(__file__).parent / f"{name}.cc"], check=True)
    return library
