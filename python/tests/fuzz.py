# SPDX-License-Identifier: Apache-2.0
"""Files and calls that Hypothesis damages, for as long as wanted:

    python fuzz.py TARGET FOLDER [--seconds 3600] [--seed 0] [--examples 200]

Without --seconds: so many examples, always the same. FOLDER receives the input under test before it is read, so that it is
there when the process dies. Every answer is a result or a dsakit.Error; what a target wants beside that stands at it."""

import argparse
import faulthandler
import importlib.util
import json
import os
import pathlib
import struct
import subprocess
import sys
import time
import unicodedata

os.environ.setdefault("DSAKIT_MEM_LIMIT", str(256 << 20))  # sizes that a file or a call asks for are damaged too

import hypothesis
import numpy as np
from hypothesis import strategies as st

import dsakit
from dsakit import debug
from oracle import capsule
from oracle.calls import CALLS
from oracle.refusals import FIELDS, Numpy, bits, case_of

ROOT = pathlib.Path(__file__).parents[2]
PACKAGE = pathlib.Path(dsakit.__file__).parent
FILE_STATUSES = {"INVALID_FILE", "INVALID_CONFIG", "INVALID_PATH", "INVALID_SHAPE", "INVALID_DTYPE", "IO_ERROR"}
FILE_STATUSES |= {"MISSING_TENSOR", "CONFLICT", "UNSUPPORTED", "OUT_OF_MEMORY", "INVALID_ARGUMENT"}


def module(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    found = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def sentence(call, statuses=None):
    """The sentence of a refusal, or None."""
    try:
        call()
    except dsakit.Error as error:
        text = str(error)
        hidden = [c for c in text if not (c.isprintable() or unicodedata.category(c) == "Cn")]  # Cn: Unicodes differ
        assert not hidden and len(text) < 2000 and ", wanted " in text, text
        assert error.got in text and error.wanted in text, text
        assert error.status != "INTERNAL" and (statuses is None or error.status in statuses), (error.status, text)
        return text
    return None


# ---- bytes

WORDS = [
    b"{",
    b"}",
    b"[",
    b"]",
    b'"',
    b",",
    b":",
    b"0",
    b"-1",
    b"1e308",
    b"NaN",
    b"null",
    b"true",
    b"\\u0000",
    b"\\ud800",
]
WORDS += [b"\xff", b"\x00", b"9223372036854775807", b"9223372036854775808", b"18446744073709551616", b"..", b"/", b'""']
WORDS += [b"shape", b"dtype", b"data_offsets", b"__metadata__", b"F32", b"F4", b"weight_map", b"0.5", b"[" * 70, b"\n"]
edits = st.lists(
    st.tuples(
        st.sampled_from(["set", "insert", "erase", "copy"]),
        st.integers(0, 2**16),
        st.integers(1, 24),
        st.one_of(st.sampled_from(WORDS), st.binary(min_size=1, max_size=8)),
    ),
    max_size=6,
)


def edited(data, changes):
    data = bytearray(data)
    for what, at, count, new in changes:
        at %= len(data) + 1
        if what == "set":
            data[at : at + len(new)] = new
        elif what == "insert":
            data[at:at] = new
        elif what == "erase":
            del data[at : at + count]
        else:
            data[at:at] = data[at : at + count]
    return bytes(data)


def split(blob):
    """Header and data of a good file."""
    (size,) = struct.unpack("<Q", blob[:8])
    return blob[8 : 8 + size], blob[8 + size :]


def joined(header, data, wrong=0):
    return struct.pack("<Q", (len(header) + wrong) % 2**64) + header + data


lengths = st.one_of(st.just(0), st.just(0), st.integers(-9, 9), st.integers(-(2**63), 2**63))


# ---- targets


def header(folder):
    """load_safetensors says of any bytes what the rules of tests/corpus say, which are written in plain Python."""
    corpus = module(ROOT / "tests" / "corpus" / "make_bad_safetensors.py")
    blobs = [blob for _, blob in corpus.cases() if len(blob) < 4000]
    whole = [b for b in blobs if corpus.answer(b).startswith("OK:")]
    path = folder / "x.safetensors"

    @hypothesis.given(st.sampled_from(whole), edits, edits, lengths)
    def target(blob, to_header, to_file, wrong):
        head, data = split(blob)
        blob = edited(joined(edited(head, to_header), data, wrong), to_file if wrong else [])
        path.write_bytes(blob)
        wanted = corpus.answer(blob)
        try:
            got = f"OK:{len(dsakit.load_safetensors(path))}"
        except dsakit.Error as error:
            assert error.status == "INVALID_FILE", error
            got = error.reason
            assert sentence(lambda: dsakit.load_safetensors(path)) == str(error)
        assert got == wanted, (got, wanted, blob[:400])

    return target


def checkpoint(folder):
    """Model of a folder whose config.json and index.json are damaged; what it takes, it computes."""
    checkpoints = module(ROOT / "tests" / "make_checkpoints.py")
    checkpoints.make("v32", "fp8").write(folder)
    files = [folder / "config.json", folder / "model.safetensors.index.json"]
    good = [path.read_bytes() for path in files]
    values = [
        0,
        1,
        -1,
        2,
        3,
        7,
        2**31 - 1,
        2**31,
        2**63,
        1e308,
        0.5,
        "1",
        "",
        None,
        True,
        [],
        {},
        [1],
        "yarn",
        "..",
        "../x",
    ]
    names = [list(json.loads(good[0])), list(json.loads(good[1])["weight_map"])]
    field = st.integers(0, 2**16)
    change = st.lists(st.tuples(st.booleans(), field, st.sampled_from(values)), max_size=3)

    @hypothesis.given(change, st.one_of(st.just([]), edits), st.one_of(st.just([]), edits))
    def target(changes, to_config, to_index):
        objects = [json.loads(text) for text in good]
        for of_index, at, value in changes:
            table = objects[1]["weight_map"] if of_index else objects[0]
            name = names[of_index][at % len(names[of_index])]
            hypothesis.assume((name, value) != ("index_topk", 2**31 - 1))  # test_fuzz.py: known to be otherwise
            table[name] = value
        for path, value, text, damage in zip(files, objects, good, (to_config, to_index)):
            path.write_bytes(edited(json.dumps(value).encode() if changes else text, damage))
        model = []
        if sentence(lambda: model.append(dsakit.Model(folder)), FILE_STATUSES) is None:
            for mode in model[0].modes[:1]:
                sentence(lambda: model[0].logits([1, 2, 3], mode=mode))

    return target


def case(folder):
    """A recorded call, its header and its attributes damaged; what is read is run, twice alike, and saved again."""
    seeds = []
    for name in ("qli", "sfa", "v3", "mla", "rms norm", "update", "scatter pages"):
        made = case_of(name, CALLS[name].make())
        made.save(folder / "seed.safetensors")
        seeds.append((folder / "seed.safetensors").read_bytes())
    path = folder / "case.safetensors"

    @hypothesis.given(st.sampled_from(seeds), edits, edits, lengths)
    def target(blob, to_header, to_data, wrong):
        head, data = split(blob)
        head = edited(head, to_header)
        path.write_bytes(joined(head, edited(data, to_data) if wrong else data, wrong))
        found = []
        if sentence(lambda: found.append(debug.Case.load(path)), FILE_STATUSES | {"INVALID_STRIDE", "MISALIGNED"}):
            return
        runs = []
        if sentence(lambda: runs.extend(found[0].run() for _ in range(2))) is None:
            assert runs[0].refusal == runs[1].refusal
            assert {k: bits(v) for k, v in runs[0].results.items()} == {k: bits(v) for k, v in runs[1].results.items()}
            found[0].save(folder / "again.safetensors")
            debug.Case.load(folder / "again.safetensors")

    return target


def words(folder):
    """The command on a damaged file: exit code 0 or 3, one line on stderr or none, no signal."""
    corpus = module(ROOT / "tests" / "corpus" / "make_bad_safetensors.py")
    blobs = [blob for _, blob in corpus.cases() if len(blob) < 4000]
    path = folder / "x.safetensors"

    @hypothesis.given(st.sampled_from(blobs), edits)
    def target(blob, changes):
        blob = edited(blob, changes)
        path.write_bytes(blob)
        done = subprocess.run([PACKAGE / "bin" / "dsakit", "inspect", path], capture_output=True, timeout=600)
        wanted = 0 if corpus.answer(blob).startswith("OK:") else 3
        assert done.returncode == wanted and done.stderr.count(b"\n") == (wanted == 3), (done, blob)

    return target


def arguments(folder):
    """Command lines by chance, of the commands that are quick: an exit code of the list, at most one line on stderr."""
    (folder / "x.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    commands = [
        "describe",
        "info",
        "inspect",
        "replay",
        "check",
        "diff",
        "verbose",
        "explain",
        "descrbe",
        "",
        "-",
        "--version",
    ]
    some = [
        "--json",
        "--isa",
        "--threads",
        "--reference",
        "--quiet",
        "--rule",
        "--help",
        "--",
        "-",
        "-h",
        "=",
        "--isa=",
        "all",
    ]
    some += [
        "1,2",
        "0",
        "-1",
        "99999999999999999999",
        "1e9",
        "nan",
        "rms_norm",
        "rms_nrm",
        str(folder),
        "x.safetensors",
        "..",
        "/",
    ]
    texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs", "Cc"]), max_size=12)

    @hypothesis.given(st.sampled_from(commands), st.lists(st.one_of(st.sampled_from(some), texts), max_size=5))
    def target(command, more):
        done = subprocess.run(
            [PACKAGE / "bin" / "dsakit", command, *more], cwd=folder, capture_output=True, timeout=600
        )
        lines = done.stderr.count(b"\n")
        assert done.returncode in (0, 1, 2, 3, 4) and lines <= 1 and (lines == 1) == (done.returncode > 1), (more, done)

    return target


# ---- calls

DTYPES = ["int8", "uint8", "int32", "int64", "float16", "float32", "float64", "bool"]
NUMBERS = [0, 1, -1, 2, 3, 4, 5, 7, 16, 97, 2**31 - 1, -(2**31), 2**40, -(2**63), 2**63 - 1]
REALS = [0.0, 1.0, -1.0, 1e-300, 1e300, float("nan"), float("inf"), 0.25]
TEXTS = [
    "",
    "BSND",
    "TND",
    "BNSD",
    "BSH",
    "PA_BSND",
    "PA_NZ",
    "Norm",
    "strict",
    "portable",
    "mask",
    "device",
    "x" * 300,
]


def as_drawn(data, value):
    """An array in another shape, with other strides inside of its memory, of another dtype, with other integers."""
    what = data.draw(st.sampled_from(["entry", "axis", "shape", "stride", "dtype", "none", "empty"]))
    axis = data.draw(st.integers(0, max(value.ndim - 1, 0)))
    if what == "none":
        return None
    if what == "dtype":
        return np.ones(value.shape, data.draw(st.sampled_from(DTYPES)))
    if what == "shape":
        return np.resize(value, data.draw(st.lists(st.integers(0, 6), max_size=5)))
    if value.ndim == 0 or value.size == 0:
        return value
    if what == "axis":
        return np.take(value, range(data.draw(st.integers(0, value.shape[axis] + 1))), axis, mode="wrap")
    if what == "empty":
        return np.take(value, [], axis)
    if what == "stride":
        step = data.draw(st.sampled_from([-1, 2, -2]))
        wide = np.repeat(value, abs(step), axis)
        return wide[(slice(None),) * axis + (slice(None, None, step),)]
    value = value.copy()
    if value.dtype.kind == "i":
        entry = data.draw(st.sampled_from(NUMBERS))
        limits = np.iinfo(value.dtype)
        value.flat[data.draw(st.integers(0, value.size - 1))] = min(max(entry, limits.min), limits.max)
    return value


def call(folder):
    """A good call with up to three things changed: the operator and its reference take it, or refuse it with the same
    sentence; what is refused is left as it was, and nothing but results and caches is ever written."""
    faces = [Numpy(dsakit), Numpy(dsakit.reference)]

    @hypothesis.given(st.data())
    def target(data):
        name = data.draw(st.sampled_from(sorted(CALLS)))
        fields, args = FIELDS[CALLS[name].operator], CALLS[name].make()
        for _ in range(data.draw(st.integers(0, 3))):
            key = data.draw(st.sampled_from([n for n, f in fields.items() if f["role"] not in ("hint", "tolerated")]))
            value, f = args.get(key), fields[key]
            if isinstance(value, np.ndarray):
                args[key] = as_drawn(data, value)
            elif f["role"] == "attribute" and f["kind"] != "level":
                kinds = [NUMBERS, NUMBERS, REALS, TEXTS, [None, True]]
                args[key] = data.draw(st.sampled_from(data.draw(st.sampled_from(kinds))))
            elif data.draw(st.booleans()):
                args[key] = data.draw(st.sampled_from([None, 3, np.ones((2, 2), np.float32), [1, 2], "x"]))
        (folder / "last.txt").write_text(f"{name}: {args!r}"[:100000])
        before = {k: bits(v) for k, v in args.items() if isinstance(v, np.ndarray)}
        said = []
        for face in faces:
            given = {k: v.copy(order="K") if isinstance(v, np.ndarray) else v for k, v in args.items()}
            said.append(sentence(lambda: face.call(name, given)))
            changed = [k for k, v in before.items() if bits(given[k]) != v]
            assert said[-1] is None or not changed, (name, said, changed)
            assert set(changed) <= set(CALLS[name].written) | {k for k, f in fields.items() if "out" in f["role"]}, (
                changed
            )
        assert said[0] == said[1], (name, said)

    return target


HUGE = [2**60, 2**62, 2**63 - 1, -(2**63)]
SIZES = st.one_of(st.integers(0, 5), st.sampled_from([-1, *HUGE]))
STRIDES = st.one_of(st.integers(-1, 64), st.sampled_from(HUGE))  # none that a caller's memory might have


def capsules(folder):
    """DLPack capsules of any shape, strides, dtype, device and version in the middle of 64 KiB: what small numbers say stays
    inside of them, and what large ones say is refused."""
    memory = np.ones(1 << 16, np.uint8)

    @hypothesis.given(
        st.sampled_from([np.float32, np.float16, np.int8, np.int64]),
        st.lists(SIZES, max_size=4),
        st.one_of(st.none(), st.lists(STRIDES, min_size=4, max_size=4)),
        st.sampled_from([0, 0, 0, 2, 3, 64]),
        st.sampled_from(
            [{}, {}, {}, dict(device=2), dict(bits=7), dict(bits=0), dict(lanes=0), dict(version=1), dict(version=9)]
        ),
    )
    def target(dtype, shape, strides, offset, odd):
        strides = None if strides is None else strides[: len(shape)]
        given = dict(shape=shape, strides=strides, data=1 << 15, byte_offset=offset) | odd
        (folder / "last.txt").write_text(repr((dtype, given)))
        gamma = np.ones(shape[-1] if shape and 0 <= shape[-1] < 6 else 1, dtype)
        for function in (dsakit.rms_norm, dsakit.reference.rms_norm):
            sentence(lambda: function(capsule.capsule(memory.view(dtype), **given), gamma))
        sentence(lambda: dsakit.dynamic_quant(capsule.capsule(memory.view(dtype), **given)))
        capsule._alive.clear()

    return target


TARGETS = dict(
    header=header, checkpoint=checkpoint, case=case, inspect=words, arguments=arguments, call=call, capsules=capsules
)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--examples", type=int, default=200)
    given = parser.parse_args()
    faulthandler.enable()
    given.folder.mkdir(parents=True, exist_ok=True)
    dsakit.set_num_threads(2)
    count, end, seed = 0, time.monotonic() + given.seconds, given.seed
    always = dict(database=None, deadline=None, suppress_health_check=list(hypothesis.HealthCheck), print_blob=True)
    while True:
        target = TARGETS[given.target](given.folder)
        inner = target.hypothesis.inner_test

        def counted(*args, inner=inner, **kwargs):
            nonlocal count
            count += 1
            inner(*args, **kwargs)

        target.hypothesis.inner_test = counted
        run = hypothesis.settings(max_examples=given.examples, derandomize=given.seconds == 0, **always)(target)
        if given.seconds:
            run = hypothesis.seed(seed)(run)
        run()
        seed += 1
        if time.monotonic() >= end:
            break
    print(f"{given.target}: {count} examples, seeds {given.seed}..{seed - 1}")


if __name__ == "__main__":
    main()
