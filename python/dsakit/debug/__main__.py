# SPDX-License-Identifier: Apache-2.0
"""python -m dsakit.debug import|export: cases from other tools' files, and back."""

from __future__ import annotations

import argparse
import pathlib
import sys

from ..errors import Error
from .case import Case
from .importing import export_case, import_cases


def _import(options: argparse.Namespace) -> None:
    names = dict(pair.split("=", 1) for pair in options.map)
    cases = import_cases(options.path, options.call, names)
    target = pathlib.Path(options.o)
    if len(cases) == 1 and target.suffix == ".safetensors":
        cases[0].save(target)
        print(target)
        return
    target.mkdir(parents=True, exist_ok=True)
    for number, case in enumerate(cases, 1):
        file = target / f"{number:06}-{case.operator}.safetensors"
        case.save(file)
        print(file)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m dsakit.debug", description=__doc__)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("import", help="a .pt file, a folder of .npy and .bin files, or a dump of msprobe")
    command.add_argument("path")
    command.add_argument("--call", default="", help="the spelling that was called, such as torch_npu.npu_rms_norm")
    command.add_argument("--map", action="append", default=[], metavar="3=weights", help="another name for a tensor")
    command.add_argument("-o", required=True, help="a .safetensors file, or a folder")
    command.set_defaults(run=_import)
    command = commands.add_parser("export", help="a folder of .npy files")
    command.add_argument("case")
    command.add_argument("-o", required=True)
    command.set_defaults(run=lambda o: export_case(Case.load(o.case), o.o))
    options = parser.parse_args(arguments)
    try:
        options.run(options)
    except Error as e:
        print(e, file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
