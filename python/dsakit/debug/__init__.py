# SPDX-License-Identifier: Apache-2.0
"""Cases: calls of operators as files, which can be read, edited, computed again and judged. docs/debugging.md

case = dsakit.debug.Case.load("dump/000017-quant_lightning_indexer-r0-4711.safetensors")
run = case.run(reference=True)
for difference in case.compare(run): print(difference)
dsakit.debug.plot("selection", "dump", output="selection.svg")
"""

import typing

from ..errors import raise_error
from .case import Case, Comparison, Run, golden, rules, spellings
from .importing import export_case, import_cases

KINDS = ("selection", "profile", "mass", "recency", "heads", "latency", "roofline", "ulp", "codes")  # of pictures

__all__ = ["KINDS", "Case", "Comparison", "Run", "export_case", "golden", "import_cases", "plot", "report", "rules", "spellings"]

if typing.TYPE_CHECKING:
    from .plotting import plot
    from .reporting import report
else:

    def __getattr__(name):
        """`plot` and `report`, when they are asked for: they need dsakit[plot]."""
        module = {"plot": "plotting", "report": "reporting"}.get(name)
        if module is None:
            raise AttributeError(f"module 'dsakit.debug' has no attribute {name!r}")
        import importlib

        try:
            return getattr(importlib.import_module("." + module, __name__), name)
        except ModuleNotFoundError as e:
            raise_error("UNSUPPORTED", name, str(e.name), "", "is not installed", "pip install 'dsakit[plot]'")
