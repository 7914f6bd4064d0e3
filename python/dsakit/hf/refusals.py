# SPDX-License-Identifier: Apache-2.0
from typing import NoReturn

from ..errors import raise_error


def refuse(status: str, parameter: str, got: str, wanted: str, position: str = "") -> NoReturn:
    raise_error(status, "dsakit.hf", parameter, position, got, wanted)
