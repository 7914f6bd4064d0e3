# SPDX-License-Identifier: Apache-2.0
"""The Python lines of README run as they stand."""
import os
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[2]


def test_python_example():
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)[1]
    here = os.getcwd()
    os.chdir(ROOT)
    try:
        exec(compile(code, "README.md", "exec"), {})
    finally:
        os.chdir(here)
