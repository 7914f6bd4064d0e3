#!python
# SPDX-License-Identifier: Apache-2.0
"""The `dsakit` command of the wheel: the program that the package carries, without importing the package, but for the
subcommands that Python computes."""

import importlib.util
import os
import sys

if sys.argv[1:2] and sys.argv[1] in ("plot", "report", "import", "export"):
    from dsakit.debug.__main__ import main

    sys.exit(main(command="dsakit"))
program = os.path.join(importlib.util.find_spec("dsakit").submodule_search_locations[0], "bin", "dsakit")
os.execv(program, [program, *sys.argv[1:]])
