# SPDX-License-Identifier: Apache-2.0
"""Files that are there whole or not at all."""

import os
import pathlib
from collections.abc import Callable
from typing import Any, BinaryIO

from .errors import printable, raise_error


def write_whole(path: str | os.PathLike[str], write: Callable[[BinaryIO], Any], operation: str) -> None:
    """`write` has a file beside it, which then takes the name `path`; what fails is IO_ERROR and leaves nothing behind."""
    target = pathlib.Path(path)
    partial = target.with_name(f".{target.name}.partial")
    if target.exists() and not target.is_file():
        raise_error(
            "IO_ERROR",
            operation,
            printable(str(target)),
            "",
            "is a directory, a pipe or a device",
            "a file that can be written",
        )
    try:
        with open(partial, "wb") as file:
            write(file)
        os.replace(partial, target)
    except OSError as e:
        got = f"cannot be written: {e.strerror or e}"
        raise_error("IO_ERROR", operation, printable(str(target)), "", got, "a file that can be written")
    finally:
        partial.unlink(missing_ok=True)
