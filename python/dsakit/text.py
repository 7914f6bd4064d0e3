# SPDX-License-Identifier: Apache-2.0
"""Text to token ids: `python -m dsakit.text MODEL FILE -o ids.npy`, for `dsakit run MODEL --tokens ids.npy`.

Needs the package tokenizers (`pip install "dsakit[text]"`). The ids are those of MODEL/tokenizer.json, with the
beginning-of-sequence token in front exactly where tokenizer_config.json says add_bos_token. Chat templates are not
evaluated.
"""

import argparse
import json
import os
import pathlib
import sys
from typing import Any

import numpy as np

from .errors import Error, raise_error
from .whole_files import write_whole


def _settings(path: pathlib.Path) -> dict[str, Any]:
    """A JSON object that may be absent."""
    return json.loads(path.read_bytes()) if path.exists() else {}


class Tokenizer:
    """The tokenizer of a checkpoint folder."""

    def __init__(self, model: str | os.PathLike[str]):
        folder = pathlib.Path(model)
        path = folder / "tokenizer.json"
        if not path.exists():
            raise_error(
                "IO_ERROR",
                "text",
                str(path),
                "",
                "is missing",
                "the file of the tokenizers package: make the ids with the model's own tokenizer, and give them to"
                " `dsakit run --tokens` as an .npy file",
            )
        try:
            import tokenizers
        except ImportError as error:
            raise ImportError('dsakit.text needs the package tokenizers: pip install "dsakit[text]"') from error
        self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        self.bos = self._bos(folder)

    def _bos(self, folder: pathlib.Path) -> list[int]:
        """The ids that every text begins with: one or none."""
        settings = _settings(folder / "tokenizer_config.json")
        if not settings.get("add_bos_token"):
            return []
        token = settings.get("bos_token")
        token = token["content"] if isinstance(token, dict) else token
        number = self._tokenizer.token_to_id(token) if token else _settings(folder / "config.json").get("bos_token_id")
        if number is None:
            got = f"is {token!r}" if token else "is missing"
            raise_error(
                "INVALID_FILE", "text", "tokenizer_config.json: bos_token", "", got, "a token of tokenizer.json"
            )
        return [number]

    def encode(self, text: str) -> list[int]:
        return self.bos + self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=False)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m dsakit.text", description=(__doc__ or "").partition("\n\n")[2])
    parser.add_argument("MODEL", help="checkpoint folder with tokenizer.json")
    parser.add_argument("FILE", help="UTF-8 text, - for standard input")
    parser.add_argument("-o", "--out", required=True, metavar="IDS.npy", help="where the ids go, int32")
    options = parser.parse_args(arguments)
    try:
        tokenizer = Tokenizer(options.MODEL)
        data = sys.stdin.buffer.read() if options.FILE == "-" else pathlib.Path(options.FILE).read_bytes()
        ids = np.array(tokenizer.encode(data.decode()), np.int32)
        write_whole(options.out, lambda file: np.save(file, ids), "text")
    except (Error, ImportError, OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 3
    print(f"{options.out}: {len(ids)} tokens of {len(data)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
