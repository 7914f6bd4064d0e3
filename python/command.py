#!python
# SPDX-License-Identifier: Apache-2.0
"""The `dsakit` command of the wheel: the program that the package carries, without importing the package."""

import importlib.util
import os
import sys

program = os.path.join(importlib.util.find_spec("dsakit").submodule_search_locations[0], "bin", "dsakit")
os.execv(program, [program, *sys.argv[1:]])
