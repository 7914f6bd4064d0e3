# SPDX-License-Identifier: Apache-2.0
"""python -m dsakit.text: a tokenizer made here, the same ids as the package's own, bos as the configuration says."""

import json
import subprocess
import sys

import numpy as np
import pytest

import dsakit.text

tokenizers = pytest.importorskip("tokenizers")

TEXT = "low lower lowest\nnéw 新しい 👍 <s>low"


@pytest.fixture
def model(tmp_path):
    """A byte-level BPE trained on a line, with <s> as a special token that its post-processor would add."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=300, special_tokens=["<s>"], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(["low lower lowest new newer newest"], trainer)
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def run(*args, status=0, **options):
    done = subprocess.run(
        [sys.executable, "-m", "dsakit.text", *map(str, args)], capture_output=True, text=True, **options
    )
    assert done.returncode == status, done.stderr
    return done.stdout if status == 0 else done.stderr


@pytest.mark.parametrize(
    "settings,bos",
    [
        (None, []),
        ({"add_bos_token": False, "bos_token": "<s>"}, []),
        ({"bos_token": "<s>"}, []),
        ({"add_bos_token": True, "bos_token": "<s>"}, [0]),
        ({"add_bos_token": True, "bos_token": {"content": "<s>", "special": True}}, [0]),
        ({"add_bos_token": True}, [7]),
    ],
)
def test_ids(model, settings, bos):
    if settings is not None:
        (model / "tokenizer_config.json").write_text(json.dumps(settings))
    (model / "config.json").write_text('{"bos_token_id": 7}')
    (model / "text.txt").write_text(TEXT, encoding="utf-8")
    plain = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json")).encode(TEXT, add_special_tokens=False).ids
    assert "ids: " in run(model, model / "text.txt", "-o", model / "ids")
    ids = np.load(model / "ids")
    assert ids.dtype == np.int32 and ids.tolist() == bos + plain and len(plain) < len(TEXT.encode())
    tokenizer = dsakit.text.Tokenizer(model)
    assert tokenizer.encode(TEXT) == ids.tolist() and tokenizer.decode(plain) == TEXT
    run(model, "-", "-o", model / "other", input=TEXT)
    assert (model / "other").read_bytes() == (model / "ids").read_bytes()


def test_refusals(model, tmp_path):
    (model / "text.txt").write_text(TEXT, encoding="utf-8")
    (model / "tokenizer_config.json").write_text('{"add_bos_token": true, "bos_token": "<bos>"}')
    out = model / "ids.npy"
    assert "bos_token is '<bos>', wanted a token of" in run(model, model / "text.txt", "-o", out, status=3)
    (model / "tokenizer.json").unlink()
    message = run(model, model / "text.txt", "-o", out, status=3)
    assert "tokenizer.json is missing" in message and "dsakit run --tokens" in message
    assert not out.exists()
    with pytest.raises(OSError):
        dsakit.text.Tokenizer(model)
