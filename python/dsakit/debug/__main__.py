# SPDX-License-Identifier: Apache-2.0
"""dsakit plot|report|import|export: pictures of cases and benchmarks, reports, and cases from other tools' files and
back."""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from typing import NoReturn

from ..errors import Error, printable
from . import KINDS
from .case import Case
from .importing import export_case, import_cases

_FILE = ("IO_ERROR", "INVALID_PATH", "INVALID_FILE", "INVALID_CONFIG", "MISSING_TENSOR", "CONFLICT")
_EXITS = dict.fromkeys(_FILE, 3) | {
    "OUT_OF_MEMORY": 4,
    "INTERRUPTED": 130,
    "INTERNAL": 6,
}  # else 2, as the program has it


def _plot(options: argparse.Namespace) -> None:
    from . import plot

    chosen = {"row": options.row, "ref": options.ref, "dark": options.dark}
    picture = plot(options.kind, *options.file, output=options.output, **chosen)
    print(picture.alt)


def _report(options: argparse.Namespace) -> None:
    from . import report

    written = report(options.file, options.output, cases=options.cases, ref=options.ref)
    if options.json:
        print(json.dumps(written, indent=2))
    else:
        print(f"{written['verdict']}: {options.output}, {written['said']}")


def _import(options: argparse.Namespace) -> None:
    cases = import_cases(options.path, options.call, dict(options.map))
    target = pathlib.Path(options.output)
    if len(cases) == 1 and target.suffix == ".safetensors":
        cases[0].save(target)
        print(target)
        return
    target.mkdir(parents=True, exist_ok=True)
    for number, case in enumerate(cases, 1):
        file = target / f"{number:06}-{case.operator}.safetensors"
        case.save(file)
        print(file)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"is {text!r:.120}, wanted an integer, 0 or more")
    return int(text)


def _renamed(text: str) -> tuple[str, str]:
    name, equals, new = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"is '{printable(text)}', wanted NAME=NEW")
    return name, new


class _Parser(argparse.ArgumentParser):
    """One line about what is wrong, as the program has it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {printable(message, 500)}\n")


def parsers(command: str) -> dict[str, argparse.ArgumentParser]:
    """Of each subcommand. The program describes them too, for its help and completion (tools/python_commands.cc)."""
    raw = argparse.RawDescriptionHelpFormatter
    found = {}

    def add(name: str, does: str, examples: str) -> argparse.ArgumentParser:
        found[name] = _Parser(
            f"{command} {name}", description=does, epilog=f"Examples:\n  dsakit {examples}", formatter_class=raw
        )
        return found[name]

    one = add("plot", "A picture of recorded calls or of benchmarks", "plot selection dump -o selection.svg")
    one.add_argument("kind", metavar="KIND", choices=KINDS, help=", ".join(KINDS))
    one.add_argument("file", metavar="FILE", nargs="+", help="case files and folders of them; of latency and roofline, "
                     "what `dsakit bench --json` and `dsakit bench limits --json` print")  # fmt: skip
    one.add_argument("-o", "--output", required=True, help="the picture to write, .svg or .png")
    one.add_argument("--row", type=_count, help="this query row alone (profile, mass, recency, heads)")
    one.add_argument("--ref", help="another recording of the call, whose results are wanted (ulp)")
    one.add_argument(
        "--dark", action="store_true", help="on dark paper; an SVG follows the reader's setting without it"
    )
    one.set_defaults(run=_plot)
    one = add("report", "Calls, verdicts and pictures as one HTML file", "report dump -o report.html")
    one.add_argument("file", metavar="FILE", nargs="+", help="case files, or folders of them")
    one.add_argument("-o", "--output", required=True, help="the file to write, .html")
    one.add_argument("--cases", type=_count, default=20, help="calls at most that are shown in full, those that do not "
                     "agree first (default: 20)")  # fmt: skip
    one.add_argument("--ref", help="another recording of the call, whose results are wanted, as explain has it")
    one.add_argument("--json", action="store_true", help="what was written, machine-readable")
    one.set_defaults(run=_report)
    one = add("import", "Cases from a .pt file, a folder of .npy and .bin files, or a dump of msprobe",
              "import call.pt --call torch_npu.npu_rms_norm -o case.safetensors")  # fmt: skip
    one.add_argument("path", metavar="PATH", help="what the other tool wrote")
    one.add_argument("--call", default="", help="the spelling that was called, such as torch_npu.npu_rms_norm")
    one.add_argument(
        "--map", type=_renamed, action="append", default=[], metavar="3=weights", help="another name for a tensor"
    )
    one.add_argument("-o", "--output", required=True, help="a .safetensors file, or a folder")
    one.set_defaults(run=_import)
    one = add("export", "A case as a folder of .npy files", "export case.safetensors -o arrays")
    one.add_argument("file", metavar="FILE", help="a case")
    one.add_argument("-o", "--output", required=True, help="a folder")
    one.set_defaults(run=lambda o: export_case(Case.load(o.file), o.output))
    return found


def main(arguments: list[str] | None = None, command: str = "python -m dsakit.debug") -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    known = parsers(command)
    if not arguments or arguments[0] not in known:
        top = _Parser(command, description=__doc__)
        top.add_argument("subcommand", choices=list(known))
        top.parse_args(arguments)
        return 2
    options = known[arguments[0]].parse_args(arguments[1:])
    try:
        options.run(options)
    except Error as e:
        print(printable(str(e), 2000), file=sys.stderr)
        return _EXITS.get(e.status, 2)
    except OSError as e:
        what = printable(str(e.filename or "output"))
        print(
            f"{arguments[0]}: {what} cannot be used: {e.strerror}, wanted a file or a folder that can", file=sys.stderr
        )
        return 3
    except KeyboardInterrupt:
        print(f"{arguments[0]}: the command was interrupted, wanted to run to its end", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
