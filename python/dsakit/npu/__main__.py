# SPDX-License-Identifier: Apache-2.0
"""python -m dsakit.npu [--strict] [--soc A3] [--vllm-ascend 0.18] SCRIPT | -m MODULE | names"""

from __future__ import annotations

import argparse
import os
import pathlib
import runpy
import sys
import tempfile

from . import install, names


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m dsakit.npu", description="Runs a program with dsakit as torch_npu.")
    parser.add_argument("--strict", action="store_true", help="refuse what Atlas A2/A3 would")
    parser.add_argument("--soc", default="A2")
    parser.add_argument("--vllm-ascend", default=None, metavar="RELEASE")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, help="MODULE ..")
    parser.add_argument("rest", nargs=argparse.REMAINDER, help="SCRIPT .., or names")
    options = parser.parse_args()
    module, rest = options.module, options.rest
    if not (module or rest):
        parser.error("wanted a script, -m MODULE, or names")
    level = "strict" if options.strict else "portable"
    install(level=level, soc=options.soc, vllm_ascend=options.vllm_ascend, devices=options.devices)
    if rest == ["names"]:
        for name in names():
            print(f"{name.state:<9} {name.name:<70} {name.page or name.nearest}")
        return
    with tempfile.TemporaryDirectory() as folder:
        command = pathlib.Path(folder, "npu-smi")  # test suites ask whether there is one
        command.write_text("#!/bin/sh\necho dsakit\n")
        command.chmod(0o755)
        os.environ["PATH"] = folder + os.pathsep + os.environ.get("PATH", "")
        if module:
            sys.argv = module
            sys.path.insert(0, os.getcwd())
            runpy.run_module(module[0], run_name="__main__", alter_sys=True)
        else:
            sys.argv = rest
            sys.path.insert(0, str(pathlib.Path(rest[0]).resolve().parent))
            runpy.run_path(rest[0], run_name="__main__")


main()
