# SPDX-License-Identifier: Apache-2.0
"""Case files as objects."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import _core

Path = str | os.PathLike[str]
GROUPS = ("in", "out", "after", "ref", "tap", "float", "pages")


@dataclass(frozen=True)
class Comparison:
    """One tensor beside another, by their bits; by a rule when `rule` says which."""

    name: str  # as the case has it, such as "out.0"
    parameter: str
    equal: bool  # or, by a rule, whether it passes
    elements: int = 0
    different: int = 0
    first: tuple[int, ...] | None = None
    mismatch: str = ""  # why the two cannot be compared
    rule: str = ""
    sentence: str = ""  # what the rule measured
    figures: Mapping[str, Any] | None = None  # max_abs, mere, mare, rms, cosine, worst, departing, ..


class Run:
    """What one run left: `results` by "out.<name>" and "after.<name>", or a `refusal`."""

    def __init__(self, core: _core.CaseRun):
        self._core = core

    @property
    def results(self) -> dict[str, np.ndarray[Any, Any]]:
        return self._core.results

    @property
    def pages(self) -> dict[str, list[int]]:
        """Of a result that is a small pool: the numbers its pages have in the case."""
        return self._core.pages

    @property
    def undefined(self) -> dict[str, list[tuple[int, int]]]:
        """Ranges of rows that the operator never writes."""
        return self._core.undefined

    @property
    def refusal(self) -> tuple[str, str] | None:
        """Status and sentence."""
        return self._core.refusal

    @property
    def seconds(self) -> float:
        return self._core.seconds


class _Attributes(Mapping[str, Any]):
    """Attributes by the names or positions of the case; assigning None is null, `del` the default."""

    def __init__(self, core: _core.Case):
        self._core = core

    def __getitem__(self, name: str) -> Any:
        return self._core.attributes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._core.attributes)

    def __len__(self) -> int:
        return len(self._core.attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        self._core.set_attribute(name, value)

    def __delitem__(self, name: str) -> None:
        if name not in self._core.attributes:
            raise KeyError(name)
        self._core.remove_attribute(name)

    def __repr__(self) -> str:
        return repr(dict(self))


class Case:
    """One call. `case["in.query"]` is a copy of a tensor as a numpy array; assigning replaces it.

    A tensor goes by the name that the file has, which may be a position; `find` goes by parameter.
    """

    def __init__(self, call: str, attributes: Mapping[str, Any] | None = None):
        self._core = _core.Case(call)
        for name, value in (attributes or {}).items():
            self._core.set_attribute(name, value)

    @classmethod
    def _of(cls, core: _core.Case) -> Case:
        case = cls.__new__(cls)
        case._core = core
        return case

    @classmethod
    def load(cls, path: Path) -> Case:
        return cls._of(_core.Case.read(path))

    def save(self, path: Path) -> None:
        """Whole or not at all."""
        self._core.check()
        self._core.write(path)

    def copy(self) -> Case:
        """Tensors are shared until they are assigned."""
        return self._of(self._core.copy())

    def check(self) -> None:
        """What `load` asks, of a case that was edited."""
        self._core.check()

    def want_results(self, other: Case) -> None:
        """The results of another recording of this call become what is wanted: group `ref`."""
        self._core.want_results(other._core)

    # ---- what it says

    @property
    def name(self) -> str:
        """Of the file."""
        return self._core.name

    @property
    def call(self) -> str:
        """The spelling that was called."""
        return self._core.call

    @property
    def operator(self) -> str:
        return self._core.operator

    @property
    def attributes(self) -> _Attributes:
        return _Attributes(self._core)

    @property
    def call_attributes(self) -> dict[str, Any]:
        """By the operator's names, as the call has them: given, or the default of its spelling. A copy."""
        return self._core.call_attributes()

    @property
    def metadata(self) -> dict[str, str]:
        return self._core.metadata

    def set_metadata(self, key: str, text: str | None) -> None:
        if text is None:
            self._core.remove_metadata(key)
        else:
            self._core.set_metadata(key, text)

    @property
    def where(self) -> dict[str, Any]:
        """Sequence, step, layer, rank, as far as they are known."""
        return json.loads(self.metadata.get("where", "{}"))

    @property
    def refusal(self) -> str | None:
        """The sentence of a call that was refused."""
        return self._core.refusal()

    def keys(self, group: str | None = None) -> list[str]:
        """Of all tensors, or those of a group: in, out, after, ref, tap, float, pages."""
        return [k for k in self._core.keys() if group is None or k.partition(".")[0] == group]

    def find(self, group: str, parameter: str) -> str | None:
        """The key of a parameter's tensor, by whatever name or position the file has it."""
        for name in self._core.names(group):
            if self.parameter(group, name) == parameter:
                return f"{group}.{name}"
        return None

    def parameter(self, group: str, name: str) -> str | None:
        """What a name or a position of the case means: `find` the other way round."""
        return self._core.parameter(group, name)

    def __contains__(self, key: str) -> bool:
        return key in self._core.keys()

    def __getitem__(self, key: str) -> np.ndarray[Any, Any]:
        return self._core.get(key)

    def __setitem__(self, key: str, value: Any) -> None:
        """Layouts stay: of a view, take the layout away first."""
        self._core.set(key, value)

    def __delitem__(self, key: str) -> None:
        if not self._core.remove(key):
            raise KeyError(key)

    def layout(self, key: str) -> dict[str, Any]:
        return self._core.layout(key)

    def set_layout(self, key: str, **fields: Any) -> None:
        """Without fields: row-major."""
        self._core.set_layout(key, fields)

    # ---- what it computes

    def run(self, reference: bool = False, *, threads: int = 0, isa: str = "", strides: bool = False) -> Run:
        """The call, on the fast path or by the reference; the case stays as it is."""
        return Run(self._core.run(reference, strides, threads, isa))

    def index_scores(self, rows: Sequence[int]) -> list[np.ndarray[Any, Any]]:
        """Of an indexer: what the keys that these query rows see are worth, in float64."""
        return self._core.index_scores(list(rows))

    def compare(self, other: Run | Case, group: str = "out", other_group: str = "out") -> list[Comparison]:
        """The tensors of a group ("out" has "after" with it) beside a run, or beside a group of another case, by bits."""
        if isinstance(other, Run):
            found = self._core.compare(group, other._core)
        else:
            found = self._core.compare_case(group, other._core, other_group)
        return [
            Comparison(
                name=d["name"],
                parameter=d["parameter"],
                equal=not d["mismatch"] and d["different"] == 0,
                elements=d.get("elements", 0),
                different=d.get("different", 0),
                first=d.get("first"),
                mismatch=d["mismatch"],
            )
            for d in found
        ]

    def judge(self, rule: str, other: Run | Case, group: str = "out", other_group: str = "out") -> list[Comparison]:
        """The same by a rule of `rules()`; `other` is golden."""
        if isinstance(other, Run):
            found = self._core.judge(rule, group, other._core)
        else:
            found = self._core.judge_case(rule, group, other._core, other_group)
        return [
            Comparison(
                name=d["name"],
                parameter=d["parameter"],
                equal=d["passes"],
                elements=d["elements"],
                different=d["elements"] - d["equal"],
                first=d["worst"],
                rule=rule,
                sentence=d["sentence"],
                figures=d,
            )
            for d in found
        ]

    def __repr__(self) -> str:
        return f"<Case {self.name}: {self.call}, {len(self.keys())} tensors>"


def spellings() -> dict[str, str]:
    """The names by which a case may call an operator: spelling -> operator."""
    return _core.case_spellings()


def rules() -> dict[str, str]:
    """The presets of `judge`: name -> what passes."""
    return _core.case_rules()


def golden(operator: str, /, **settings: Any) -> Case:
    """A call that is made up, with the results of the reference: `dsakit golden OPERATOR --set NAME=VALUE ..`.

    golden("sparse_flash_attention", layout_kv="PA_BSND", Lk=700, data="V10", seed=3)
    """
    return Case._of(_core.case_golden(operator, [(name, _setting(value)) for name, value in settings.items()]))


def _setting(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "+".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
