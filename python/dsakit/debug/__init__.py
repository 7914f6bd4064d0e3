# SPDX-License-Identifier: Apache-2.0
"""Cases: calls of operators as files, which can be read, edited, computed again and judged. docs/debugging.md

case = dsakit.debug.Case.load("dump/000017-quant_lightning_indexer-r0-4711.safetensors")
run = case.run(reference=True)
for difference in case.compare(run): print(difference)
"""

from .case import Case, Comparison, Run, golden, rules, spellings
from .importing import export_case, import_cases

__all__ = ["Case", "Comparison", "Run", "export_case", "golden", "import_cases", "rules", "spellings"]
