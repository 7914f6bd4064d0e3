# SPDX-License-Identifier: Apache-2.0
"""Refusals: instances of dsakit.Error and of the built-in class that fits."""

from typing import Any, NoReturn


class Error(RuntimeError):
    """A call that was refused before anything was written. str() is the sentence; its parts are attributes.

    status     such as "INVALID_SHAPE"
    operator, parameter, position    where: the name that was called; position in subscript form, "[2][17]" or ""
    got, wanted
    reason     of a refused file, such as "SIZE_MISMATCH"
    """

    status = operator = parameter = position = got = wanted = reason = ""


_BUILTINS = {
    ValueError: "INVALID_ARGUMENT INVALID_SHAPE INVALID_STRIDE MISALIGNED INVALID_DEVICE ALIASED INVALID_SEQLEN "
    "INVALID_VALUE INVALID_FILE INVALID_CONFIG MISSING_TENSOR CONFLICT",
    TypeError: "INVALID_DTYPE",
    IndexError: "INVALID_BLOCK INVALID_SLOT INVALID_INDEX",
    NotImplementedError: "UNSUPPORTED",
    MemoryError: "OUT_OF_MEMORY",
    OSError: "IO_ERROR INVALID_PATH",
}
_CLASSES: dict[str, type[Error]] = {}
for _builtin, _statuses in _BUILTINS.items():
    _name = "Dsakit" + _builtin.__name__
    _class = type(
        _name, (Error, _builtin), {"__module__": __name__, "__doc__": f"A dsakit.Error that is a {_builtin.__name__}."}
    )
    globals()[_name] = _class
    _CLASSES |= dict.fromkeys(_statuses.split(), _class)


def printable(text: str, most: int = 120) -> str:
    """A caller's text in a sentence: what nobody would see escaped, cut; as the library has it."""
    shown = "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text[:most])
    return shown + "..." * (len(text) > most)


def shown(value: Any) -> str:
    """A caller's value in a sentence: on one line, cut."""
    return " ".join(repr(value).split())[:120]


def raise_error(
    status: str,
    operator: str,
    parameter: str,
    position: str,
    got: str,
    wanted: str,
    reason: str = "",
    sentence: str | None = None,
) -> NoReturn:
    error = _CLASSES.get(status, Error)(sentence or f"{operator}: {parameter}{position} {got}, wanted {wanted}")
    error.status, error.operator, error.parameter, error.position = status, operator, parameter, position
    error.got, error.wanted, error.reason = got, wanted, reason
    raise error from None
