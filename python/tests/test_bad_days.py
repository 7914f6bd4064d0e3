# SPDX-License-Identifier: Apache-2.0
"""Files that change while they are read, that were never fetched whole or cannot be read, disks that are full, signals in the
middle of work, processes that fork, busy neighbours, and an environment that says nonsense. Events are waited for, not
time."""

import collections
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest

import dsakit
from dsakit import debug
from oracle.calls import CALLS
from oracle.harness import operator
from oracle.refusals import bits
from preloaded import compiled
from test_refusals_generated import c_library

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tests"))
import make_checkpoints as made

PROGRAM = pathlib.Path(dsakit.__file__).parent / "bin" / "dsakit"
TOKENS = np.random.default_rng(5).integers(0, 256, 40).tolist()
HANGS = 1800  # seconds: against hangs
FILE = ("IO_ERROR", "INVALID_FILE")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """One shard, experts among its weights; never changed."""
    return made.make("v32", "fp8").write(tmp_path_factory.mktemp("checkpoint"), shard_bytes=None)


@pytest.fixture
def copy(checkpoint, tmp_path):
    return pathlib.Path(shutil.copytree(checkpoint, tmp_path / "copy"))


@pytest.fixture(scope="module")
def wanted(checkpoint):
    return logits(dsakit.Model(checkpoint))


def logits(model):
    return np.asarray(model.logits(TOKENS, mode="sparse_bf16")).tobytes()


def refusal(call):
    """Of a file: the error, a sentence."""
    with pytest.raises(dsakit.Error) as caught:
        call()
    text = str(caught.value)
    assert text.isprintable() and ", wanted " in text and caught.value.got in text and caught.value.wanted, text
    return caught.value


def dsakit_command(*words, status=0, **how):
    done = subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True, timeout=HANGS, **how)
    assert done.returncode == status and done.stderr.count("\n") == (status != 0), (done.returncode, done.stderr)
    return done.stderr if status else done.stdout


def python(code, *arguments, **how):
    """A process of its own, which says nothing on stderr and ends well."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=HANGS, cwd=pathlib.Path(__file__).parent, **how
    )
    assert done.returncode == 0 and not done.stderr, (done.returncode, done.stdout, done.stderr)
    return done.stdout


def contents(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


# ---- files that change while they are read

CHANGES = {
    "truncated": (lambda path, good: os.truncate(path, path.stat().st_size // 2), "IO_ERROR"),
    "emptied": (lambda path, good: os.truncate(path, 0), "IO_ERROR"),
    "grown": (lambda path, good: os.truncate(path, path.stat().st_size + 1), "IO_ERROR"),
    "replaced": (lambda path, good: os.replace(shutil.copy(good, path.with_suffix(".new")), path), None),
    "replaced by nonsense": (lambda path, good: (path.unlink(), path.write_bytes(b"nonsense")), None),
    "deleted": (lambda path, good: path.unlink(), None),
}


@pytest.mark.parametrize("how", CHANGES)
def test_a_file_changes_between_opening_and_reading(how, checkpoint, copy, wanted):
    """Experts are read when a token asks for them: the file that was opened has right bits, or another size."""
    change, status = CHANGES[how]
    each = dsakit.Model(checkpoint).expert_costs["expert_bytes"]
    model = dsakit.Model(copy, expert_memory=4 * each)
    change(copy / "model.safetensors", checkpoint / "model.safetensors")
    if status:
        error = refusal(lambda: logits(model))
        assert error.status == status and "copy/model.safetensors" in str(error), error
    else:
        assert logits(model) == wanted


def test_a_file_changes_again_and_again_while_it_is_loaded(checkpoint, copy, wanted, tmp_path):
    """Whenever it happens: the bits of what was there before or after, or a sentence about a file. A file of other numbers
    has the same header and size: nothing is read of one and of the other."""
    path, ended = copy / "model.safetensors", threading.Event()
    other = made.make("v32", "fp8", seed=2).write(tmp_path / "other", shard_bytes=None)
    files = [folder / path.name for folder in (checkpoint, other)]
    each = dsakit.Model(checkpoint).expert_costs["expert_bytes"]
    rights = {wanted, logits(dsakit.Model(other))}

    def disturb():
        while not ended.is_set():
            for change, _ in CHANGES.values():
                change(path, files[0])
                for good in files * 20:  # most of the time there is a whole one
                    os.replace(shutil.copy(good, path.with_suffix(".new")), path)

    thread = threading.Thread(target=disturb)
    thread.start()
    said = collections.Counter()
    try:
        for turn in range(60):
            try:
                model = dsakit.Model(copy, expert_memory=None if turn % 2 else 4 * each)
                assert logits(model) in rights
                said["computed"] += 1
            except dsakit.Error as error:
                assert error.status in FILE and ", wanted " in str(error), error
                said[error.status] += 1
    finally:
        ended.set()
        thread.join()
    print(said)


# ---- downloads that were broken off

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize 4294967296\n" % (b"0" * 64)
PAGE = b"<!DOCTYPE html>\n<html><head><title>404 Not Found</title></head><body>Not Found</body></html>\n"


def test_a_part_of_a_shard(checkpoint, copy):
    path = copy / "model.safetensors"
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    cuts = [*range(9), 9, header // 2, header - 1, header, header + 1, len(whole) // 2, len(whole) - 1]
    for cut in cuts:
        path.write_bytes(whole[:cut])
        error = refusal(lambda: dsakit.Model(copy))
        assert error.status == "INVALID_FILE" and error.reason and "model.safetensors" in str(error), (cut, error)
        assert f"[{error.reason}]" in dsakit_command("inspect", path, status=3)
    path.write_bytes(whole[:header] + bytes(len(whole) - header))  # made as long as it will be, and not filled yet
    dsakit.Model(copy)  # which nothing tells from a model of zeros


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json"])
def test_a_part_of_a_json_file(name, tmp_path):
    folder = made.make("v32", "fp8").write(tmp_path / "in")
    whole = (folder / name).read_bytes().rstrip()
    cuts = {*range(0, len(whole), -(-len(whole) // 100)), *range(3), len(whole) - 2, len(whole) - 1}
    for cut in sorted(cuts):
        (folder / name).write_bytes(whole[:cut])
        error = refusal(lambda: dsakit.Model(folder))
        assert error.status == ("INVALID_CONFIG" if name == "config.json" else "INVALID_FILE"), (cut, error)
        assert name in str(error)
    (folder / name).write_bytes(whole)
    dsakit.Model(folder)


@pytest.mark.parametrize("text", [POINTER, PAGE, b"", b"\0" * 4096], ids=["pointer", "page", "nothing", "zeros"])
@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_what_was_fetched_instead(text, name, copy):
    (copy / name).write_bytes(text)
    error = refusal(lambda: dsakit.Model(copy))
    assert error.status == ("INVALID_CONFIG" if name == "config.json" else "INVALID_FILE") and name in str(error)
    dsakit_command("run", copy, "--text", __file__, status=3)
    if name != "config.json":
        assert refusal(lambda: dsakit.load_safetensors(copy / name)).status == "INVALID_FILE"
        assert refusal(lambda: debug.Case.load(copy / name)).status == "INVALID_FILE"


# ---- what cannot be read


def a_socket(path):
    here = os.getcwd()
    os.chdir(path.parent)  # names of sockets are short
    try:
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.chdir(here)


UNREADABLE = {
    "directory": lambda path: path.mkdir(),
    "FIFO": os.mkfifo,
    "socket": a_socket,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "terminal": lambda path: path.symlink_to("/dev/tty"),
    "dangling link": lambda path: path.symlink_to("nowhere"),
    "loop": lambda path: path.symlink_to(path.name),
    "no permission": lambda path: (path.touch(), path.chmod(0)),
    "memory": lambda path: path.symlink_to("/proc/self/mem"),  # a regular file of no size whose reading fails
}


@pytest.mark.parametrize("kind", UNREADABLE)
@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_what_cannot_be_read(kind, name, copy):
    if kind == "no permission" and os.geteuid() == 0:
        pytest.skip("root may read everything")
    path = copy / name
    path.unlink()
    UNREADABLE[kind](path)
    statuses = {"IO_ERROR", "INVALID_PATH"} | ({"INVALID_CONFIG", "INVALID_FILE"} if kind == "memory" else set())
    error = refusal(lambda: dsakit.Model(copy))
    assert error.status in statuses and name in str(error), error
    dsakit_command("run", copy, status=3)
    for read in (dsakit.load_safetensors, debug.Case.load):
        assert refusal(lambda read=read: read(path)).status in statuses
    dsakit_command("inspect", path, status=3)
    dsakit_command("replay", path, status=3)


# ---- full disks


def test_a_session_on_a_full_disk(copy, tmp_path):
    """The session before stays; once there is room the same call saves."""
    code = """
import resource, sys, dsakit, pathlib
model = dsakit.Model(sys.argv[1])
folder = pathlib.Path(sys.argv[2])
folder.mkdir()
session = model.session("sparse_bf16")
session.prefill(list(range(20)))
session.save(folder)
contents = lambda: {p.name: p.read_bytes() for p in folder.iterdir()}
before = contents()
session.prefill(list(range(30)))
for most in (0, 100, 3000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, -1))
    try:
        session.save(folder)
    except OSError as e:
        assert e.status == "IO_ERROR" and ", wanted " in str(e), e
    else:
        raise SystemExit("saved")
    assert contents() == before
    assert len(model.load_session(folder)) == 20 and len(session) == 50
resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
session.save(folder)
assert len(model.load_session(folder)) == 50 and not [p for p in folder.iterdir() if p.name.startswith(".")]
"""
    python(code, copy, tmp_path / "session")


def limited(most):
    """For a process: no file longer than that."""
    import resource

    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


@pytest.fixture(scope="module")
def case_file(tmp_path_factory):
    """Of a call that is recorded and explained at once."""
    file = tmp_path_factory.mktemp("cases") / "case.safetensors"
    dsakit_command("golden", "quant_lightning_indexer", "--set", "S1=2", "--set", "S2=40", "-o", file)
    return file


@pytest.mark.parametrize("what", ["golden", "plot svg", "plot png", "report", "import", "export"])
def test_files_of_commands_on_a_full_disk(what, case_file, tmp_path):
    if what in ("plot svg", "plot png", "report"):
        pytest.importorskip("matplotlib")
        pytest.importorskip("jinja2")
    arrays, folder = tmp_path / "arrays", tmp_path / "out"
    debug.export_case(debug.Case.load(case_file), arrays)
    before = contents(tmp_path)
    words = {
        "golden": ["golden", "rms_norm", "-o", folder / "out.safetensors"],
        "plot svg": ["plot", "selection", case_file, "-o", folder / "out.svg"],
        "plot png": ["plot", "selection", case_file, "-o", folder / "out.png"],
        "report": ["report", case_file, "-o", folder / "out.html"],
        "import": ["import", arrays, "-o", folder / "out.safetensors"],
        "export": ["export", case_file, "-o", folder],
    }[what]
    folder.mkdir()
    command = [sys.executable, "-m", "dsakit.debug"] if what not in ("golden",) else [PROGRAM]
    run = lambda **how: subprocess.run(
        [*command, *map(str, words)], capture_output=True, text=True, timeout=HANGS, **how
    )
    done = run(preexec_fn=limited(300))
    assert done.returncode == 3, (done.returncode, done.stderr)
    (line,) = [line for line in done.stderr.splitlines() if line]
    assert "cannot be written" in line and ", wanted " in line
    left = {name: data for name, data in contents(tmp_path).items() if len(data) or name in before}
    assert left == before, set(left) - set(before)
    assert run().returncode == 0
    assert len(contents(folder)) >= 1 and not [n for n in contents(folder) if ".partial" in n]
    whole = contents(folder)
    assert run().returncode == 0 and contents(folder) == whole, "over what is there"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="has no /dev/full")
def test_devices_are_not_replaced(case_file, tmp_path):
    (tmp_path / "full.safetensors").symlink_to("/dev/full")
    error = dsakit_command("golden", "rms_norm", "-o", tmp_path / "full.safetensors", status=3)
    assert "is a directory, a pipe or a device" in error
    case = debug.Case.load(case_file)
    assert refusal(lambda: case.save(tmp_path / "full.safetensors")).status == "IO_ERROR"
    assert (tmp_path / "full.safetensors").is_symlink() and len(list(tmp_path.iterdir())) == 1


def test_recording_on_a_full_disk(tmp_path):
    """What cannot be recorded is computed all the same; recording ends with a warning."""
    code = """
import os, resource, sys, warnings
import numpy as np
os.environ["DSAKIT_CAPTURE"] = sys.argv[1]
import dsakit
x = np.ones((4, 64), np.float32)
call = lambda: dsakit.rms_norm(x, x[0])[0].tobytes()
want = call()
resource.setrlimit(resource.RLIMIT_FSIZE, (500, -1))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(3):
        assert call() == want
assert any("has ended" in str(w.message) and "cannot be written" in str(w.message) for w in caught), caught
resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
"""
    python(code, tmp_path / "dump")
    files = list((tmp_path / "dump").glob("*.safetensors"))
    assert len(files) == 1 and debug.Case.load(files[0]).operator == "rms_norm"
    assert not list((tmp_path / "dump").glob(".*"))


# ---- signals in the middle of work

INTERRUPTED = "dsakit: the command was interrupted, wanted to run to its end\n"


def interrupted(number, words, tmp_path, **how):
    """The exit status of the command, which gets the signal once an operator has run; and what it printed."""
    events = tmp_path / "events"
    os.mkfifo(events)
    running = subprocess.Popen(
        [PROGRAM, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"DSAKIT_VERBOSE": str(events)},
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # shells have it ignored in the background
        **how,
    )
    with open(events) as lines:
        while "," not in (line := lines.readline()) or "fields" in line:  # the first call
            assert line, running.communicate()
        running.send_signal(number)
        lines.read()
    out, error = running.communicate(timeout=HANGS)
    return running.returncode, out, error.decode()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
@pytest.mark.parametrize("what", ["run", "bench", "demo"])
def test_the_command_is_told_to_stop(what, number, tmp_path):
    """A shell makes 130 of SIGINT."""
    words = {
        "run": ["run", "--context", "4096", "--mode", "sparse_w8a8"],
        "bench": ["bench", "rms_norm"],
        "demo": ["demo"],
    }[what]
    status, _, error = interrupted(number, words, tmp_path)
    assert (status, error) == (-number, INTERRUPTED)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda n: n.name)
def test_a_conversion_is_told_to_stop(number, checkpoint, tmp_path):
    """No file has its name before it is whole, and the same command goes on."""
    out = tmp_path / "out"
    command = [PROGRAM, "convert", checkpoint, out, "--format", "bf16", "--shard-size", "100KB"]
    before = contents(checkpoint)
    running = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, preexec_fn=lambda: signal.signal(number, signal.SIG_DFL)
        if number != signal.SIGKILL else None
    )  # fmt: skip
    while running.poll() is None and not (out.is_dir() and list(out.glob("*.safetensors"))):
        pass
    running.send_signal(number)
    _, error = running.communicate(timeout=HANGS)
    told = running.returncode != 0 and number != signal.SIGKILL
    assert running.returncode in (-number, 0) and error.decode() == INTERRUPTED * told, error
    assert not told or not list(out.glob(".*.partial"))
    for path in out.glob("*.safetensors"):
        dsakit.load_safetensors(path)
    assert running.returncode == 0 or not (out / "config.json").exists()
    dsakit_command(*command[1:])
    dsakit_command("convert", checkpoint, tmp_path / "alone", *command[4:])
    assert contents(out) == contents(tmp_path / "alone") and contents(checkpoint) == before


@pytest.fixture(scope="module")
def signalled(tmp_path_factory):
    """Preloaded: SIGINT before a process's n-th read or write."""
    return compiled(tmp_path_factory.mktemp("signalled"), "signalled")


def at_each(signalled, point, folder, *words, status=0, **environment):
    """The command gets SIGINT at its first such point, its second and so on: it says so, has left nothing that is not
    whole, and at last runs to its end. How many points there were."""
    for n in range(1, 1000):
        preload = {"LD_PRELOAD": str(signalled), "DSAKIT_TEST_SIGNAL": f"{point} {n}"}
        done = subprocess.run(
            [PROGRAM, *map(str, words)], capture_output=True, text=True, timeout=HANGS,
            env=os.environ | preload | environment, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
        if done.returncode == status:
            return n - 1
        assert (done.returncode, done.stderr) == (-signal.SIGINT, INTERRUPTED), n
        left = [path for path in folder.rglob("*") if path.is_file()]
        assert not [path for path in left if path.name.endswith(".partial")], (n, left)
        for path in left:
            if path.suffix == ".safetensors":
                dsakit.load_safetensors(path)
    raise AssertionError("no end of points")


def test_a_command_is_interrupted_before_each_write(signalled, checkpoint, tmp_path):
    def before(point, *words, **how):
        (tmp_path / "out").mkdir()
        count = at_each(signalled, point, tmp_path / "out", *words, **how)
        shutil.rmtree(tmp_path / "out")
        return count

    out = tmp_path / "out"
    assert before("write", "golden", "rms_norm", "-o", out / "one.safetensors") >= 2
    assert before("write", "golden", "rms_norm", "--set", "T=1,8", "-o", out) >= 4
    assert before("write", "convert", checkpoint, out / "new", "--format", "bf16", "--layers", "0") >= 10


def test_explain_is_interrupted_at_each_read_and_call(signalled, case_file, tmp_path):
    case, file = debug.Case.load(case_file), tmp_path / "case.safetensors"
    case["out.sparse_indices"] = case["out.sparse_indices"] + 1  # which a change explains (L3), among many
    case.save(file)
    assert at_each(signalled, "pread", tmp_path, "explain", file, status=1) >= 3
    lines = {"DSAKIT_VERBOSE": str(tmp_path / "lines")}  # a write for each call
    assert at_each(signalled, "write", tmp_path, "explain", file, status=1, **lines) >= 5


def test_python_is_interrupted_while_it_reads_files(signalled, checkpoint):
    """KeyboardInterrupt before all is read, wherever the signal came; and the next time it is all there."""
    code = """
import ctypes, pathlib, signal, sys
import dsakit
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it, and so would we
library = ctypes.CDLL(sys.argv[1])
folder = pathlib.Path(sys.argv[2])
logits = lambda: dsakit.Model(folder).logits(list(range(40))).tobytes()
bits = lambda: [a.tobytes() for a in dsakit.load_safetensors(folder / "model.safetensors").values()]
for call, load, stopped in ((logits, lambda: dsakit.Model(folder), 3 / 4),
                            (bits, lambda: dsakit.load_safetensors(folder / "model.safetensors"), 1)):
    want = call()
    library.signal_before_read(0)
    load()
    every = library.reads_counted()
    assert every > 30, every
    for n in range(1, int(every * stopped), 7):
        library.signal_before_read(n)
        try:
            load()
        except KeyboardInterrupt:
            pass
        else:
            raise SystemExit(f"loaded in spite of {n}")
        assert n <= library.reads_counted() < every, (n, library.reads_counted(), every)
    library.signal_before_read(0)
    assert call() == want
"""
    python(code, signalled, checkpoint, env=os.environ | {"LD_PRELOAD": str(signalled)})


@pytest.mark.parametrize("ignored", [False, True])
def test_nobody_reads_to_the_end(ignored):
    """`dsakit describe --json | head -1`"""
    running = subprocess.Popen(
        [PROGRAM, "describe", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, restore_signals=not ignored
    )
    running.stdout.readline()
    running.stdout.close()
    error = running.stderr.read().decode()
    running.stderr.close()
    assert running.wait(HANGS) == (3 if ignored else -signal.SIGPIPE), error
    assert error.count("\n") == ignored and ("output cannot be written" in error) == ignored, error


def test_python_is_interrupted_in_a_model(checkpoint, tmp_path):
    """KeyboardInterrupt once an operator of the pass has run; the session is as it was, and has the bits of another."""
    code = """
import os, signal, sys, threading
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it, and so would we
events = sys.argv[2]
os.mkfifo(events)
os.environ["DSAKIT_VERBOSE"] = events
asked, sent = threading.Event(), threading.Event()
def watch():
    with open(events) as lines:
        for line in lines:
            if asked.is_set() and "fields" not in line:
                asked.clear()
                os.kill(os.getpid(), signal.SIGINT)
                sent.set()
watcher = threading.Thread(target=watch, daemon=True)
watcher.start()
import numpy as np, dsakit
model = dsakit.Model(sys.argv[1])
tokens = np.random.default_rng(1).integers(0, 256, 3000).tolist()
want = np.asarray(model.logits(tokens[:60], mode="sparse_bf16"))[-1].tobytes()
session, times = model.session("sparse_bf16"), 0
session.prefill(tokens[:50])
for call in (lambda: session.prefill(tokens), lambda: model.logits(tokens, mode="sparse_w8a8"),
             lambda: model.generate(tokens[:9], 3000, mode="sparse_bf16"),
             lambda: [dsakit.step([session], [3]) for _ in range(3000)]):
    sent.clear()
    asked.set()
    length = len(session)
    try:
        call()
        sent.wait()
    except KeyboardInterrupt:
        times += 1
    assert len(session) >= length
    session.crop(len(session) - 50)
assert times == 4, times
assert np.asarray(session.prefill(tokens[50:60])).tobytes() == want
"""
    python(code, checkpoint, tmp_path / "events")


# ---- processes and threads


@pytest.mark.parametrize("how", ["fork", "spawn", "forkserver"])
def test_a_model_in_other_processes(how, checkpoint):
    """The parent has computed with threads before, and does so after."""
    code = """
import multiprocessing, sys
import numpy as np, dsakit
TOKENS = list(range(40))
def logits(model):
    return np.asarray(model.logits(TOKENS, mode="sparse_w8a8")).tobytes()
def child(pipe, folder, model=None, session=None):
    before = None if session is None else np.asarray(session.step(7)).tobytes()
    pipe.send((logits(model or dsakit.Model(folder)), before))
if __name__ == "__main__":
    how, folder = sys.argv[1:]
    context = multiprocessing.get_context(how)
    dsakit.set_num_threads(3)
    model = dsakit.Model(folder)
    session, other = (model.session("sparse_bf16") for _ in range(2))
    session.prefill(TOKENS), other.prefill(TOKENS)
    want, after = logits(model), np.asarray(other.step(7)).tobytes()
    ends = []
    for _ in range(2):
        here, there = context.Pipe()
        handed_on = (model, session) if how == "fork" else ()
        process = context.Process(target=child, args=(there, folder, *handed_on))
        process.start()
        ends.append((process, here))
    assert logits(model) == want
    for process, pipe in ends:
        got, step = pipe.recv()
        process.join()
        assert process.exitcode == 0 and got == want and step in (None, after)
    assert np.asarray(session.step(7)).tobytes() == after
"""
    script = checkpoint.parent / f"{how}.py"
    script.write_text(code)  # spawned processes read it again
    done = subprocess.run([sys.executable, script, how, checkpoint], capture_output=True, text=True, timeout=HANGS)
    assert done.returncode == 0 and not done.stderr, done.stderr


def test_contexts_of_threads():
    """Each with its own, all with one, and contexts that are made and destroyed beside them: the same bits."""
    library, names = c_library(), ["qli", "v3", "sfa", "fia", "quantize", "attention"]
    makes = {name: CALLS[name] for name in names}
    wants = {}
    for name, call in makes.items():
        args = call.make()
        operator(call.operator)(**args)
        wants[name] = bits([args[w] for w in call.written])
    wrong = []

    def work(shared, times):
        for turn in range(times):
            own = shared or library.context(threads=1 + turn % 3)
            for name, call in makes.items():
                args = call.make()
                library.run(call.operator, args, own)
                wrong.extend([name] * (bits([args[w] for w in call.written]) != wants[name]))
            if not shared:
                library.destroy(own)

    one = library.context(threads=2)
    threads = [threading.Thread(target=work, args=(shared, 5)) for shared in (None, None, None, one, one)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    library.destroy(one)
    assert not wrong


def test_imported_again():
    """Files of Python again and again; the library once in a process, and whoever asks for more is told."""
    code = """
import sys, importlib
import numpy as np, dsakit
x = np.ones((2, 4), np.float32)
want = dsakit.rms_norm(x, x[0])[0].tobytes()
assert importlib.reload(dsakit).rms_norm(x, x[0])[0].tobytes() == want
for name in [n for n in sys.modules if n.split(".")[0] == "dsakit"]:
    del sys.modules[name]
try:
    importlib.import_module("dsakit")
except ImportError as error:
    assert "in this process already, wanted one import" in str(error), error
else:
    raise SystemExit("imported")
assert dsakit.rms_norm(x, x[0])[0].tobytes() == want
"""
    python(code)


def test_imported_by_another_interpreter():
    """Numpy says no; what stands after it is asked for nothing."""
    pytest.importorskip("_xxsubinterpreters")  # 3.11, 3.12
    code = """
import _xxsubinterpreters as interpreters
import dsakit, numpy as np
x = np.ones((2, 4), np.float32)
want = dsakit.rms_norm(x, x[0])[0].tobytes()
for _ in range(2):
    other = interpreters.create()
    try:
        interpreters.run_string(other, "import warnings; warnings.simplefilter('ignore'); import dsakit")
    except interpreters.RunFailedError as error:
        assert "ImportError" in str(error) and "once per process" in str(error), error
    else:
        raise SystemExit("imported")
    interpreters.destroy(other)
    assert dsakit.rms_norm(x, x[0])[0].tobytes() == want
"""
    python(code)


def test_busy_neighbours(checkpoint, wanted):
    """Twice as many processes as cores that never wait: work ends, with its bits."""
    busy = [sys.executable, "-S", "-c", "print(flush=True)\nwhile True: pass"]
    neighbours = [
        subprocess.Popen(busy, stdout=subprocess.PIPE, preexec_fn=lambda: os.nice(5))
        for _ in range(2 * len(os.sched_getaffinity(0)))
    ]
    try:
        for neighbour in neighbours:
            neighbour.stdout.readline()  # it is busy
        assert logits(dsakit.Model(checkpoint)) == wanted
    finally:
        for neighbour in neighbours:
            neighbour.kill()
            neighbour.communicate()


# ---- the environment

GARBAGE = ["", "nonsense", "-1", "0", "1e9", "8GB", "9" * 40, "\x1b[31m", "a,b=c", "/nowhere/at/all", "x" * 5000]


@pytest.mark.parametrize("name", ["NUM_THREADS", "MEM_LIMIT", "CHECK", "CAPTURE", "VERBOSE", "PYPTO_ARCH"])
def test_garbage_in_the_environment(name, tmp_path):
    """Clamped or ignored: the same bits, and `dsakit info` says so of what is no number and no switch."""
    code = """
import warnings
warnings.simplefilter("ignore")
import numpy as np, dsakit
x = np.ones((3, 8), np.float32)
print(dsakit.rms_norm(x, x[0])[0].tobytes().hex(), dsakit.dynamic_quant(x)[0].tobytes().hex())
"""
    want = python(code)
    for value in GARBAGE:
        environment = os.environ | {f"DSAKIT_{name}": value}
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=HANGS)
        assert (done.returncode, done.stdout, done.stderr) == (0, want, ""), (value[:20], done.stderr)
        done = subprocess.run(
            [PROGRAM, "info"], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=HANGS
        )
        assert done.returncode == 0 and not done.stderr, (value[:20], done.stderr)
        assert done.stdout.replace("\n", "").isprintable()
        if name in ("NUM_THREADS", "MEM_LIMIT", "CHECK") and value and value != "9" * 40:
            (line,) = [text for text in done.stdout.splitlines() if text.startswith(f"DSAKIT_{name}")]
            assert ("ignored: wanted" in line) == ((name, value) != ("CHECK", "0")), line
    told = json.loads(dsakit_command("info", "--json", env=os.environ | {"DSAKIT_NUM_THREADS": "100000"}))
    assert "at most the cores" in told["environment"]["DSAKIT_NUM_THREADS"]
