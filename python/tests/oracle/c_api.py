# SPDX-License-Identifier: Apache-2.0
"""The C interface by ctypes: include/dsakit/dsakit.h over libdsakit.so of the build."""

import ctypes
import pathlib

import numpy as np

from dsakit.errors import raise_error

from .capsule import DLTensor, tensor_of, tensor_of_capsule

NONE, TENSOR, TENSORS, _, INTEGER, INTEGERS, REAL, BOOLEAN, STRING = range(9)  # dsakit_kind
READ_ONLY = 1


class _Value(ctypes.Union):
    _fields_ = [
        ("pointer", ctypes.c_void_p),
        ("integer", ctypes.c_int64),
        ("real", ctypes.c_double),
        ("boolean", ctypes.c_bool),
    ]


class _Argument(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("kind", ctypes.c_int32),
        ("flags", ctypes.c_uint32),
        ("value", _Value),
        ("count", ctypes.c_size_t),
    ]


class _Error(ctypes.Structure):
    _fields_ = [("status", ctypes.c_int32)] + [
        (name, ctypes.c_char_p) for name in ("message", "operator", "parameter", "position", "got", "wanted")
    ]


def find():
    """Of the newest build beside these tests, or None."""
    found = pathlib.Path(__file__).parents[3].glob("build/*/libdsakit.so")
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


class _Options(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("isa", ctypes.c_char_p),
        ("memory_limit", ctypes.c_size_t),
        ("threads", ctypes.c_int32),
        ("same_products", ctypes.c_bool),
        ("check_values", ctypes.c_bool),
    ]


class Library:
    def __init__(self, path):
        self._library = ctypes.CDLL(str(path))
        self._library.dsakit_version.restype = self._library.dsakit_status_name.restype = ctypes.c_char_p
        self._library.dsakit_last_error.restype = ctypes.POINTER(_Error)
        self._library.dsakit_run.argtypes = [
            ctypes.c_void_p, ctypes.c_char_p, ctypes.POINTER(_Argument), ctypes.c_size_t,
        ]  # fmt: skip
        self._library.dsakit_context_create.argtypes = [ctypes.POINTER(_Options), ctypes.POINTER(ctypes.c_void_p)]
        self._library.dsakit_context_destroy.argtypes = [ctypes.c_void_p]
        self._library.dsakit_context_destroy.restype = None

    def context(self, **options):
        made = ctypes.c_void_p()
        self._check(self._library.dsakit_context_create(_Options(size=ctypes.sizeof(_Options), **options), made))
        return made

    def destroy(self, context):
        self._library.dsakit_context_destroy(context)

    def version(self):
        return self._library.dsakit_version().decode()

    def run(self, operator, args, context=None):
        """A call of arrays, capsules, lists and numbers; a refusal is raised as Python has it."""
        alive = []
        given = [_argument(name, value, alive) for name, value in args.items()]
        arguments = (_Argument * len(given))(*given)
        self._check(self._library.dsakit_run(context, operator.encode(), arguments, len(given)))

    def _check(self, status):
        if status != 0:
            error = self._library.dsakit_last_error().contents
            status = self._library.dsakit_status_name(error.status).decode()
            words = (error.operator, error.parameter, error.position, error.got, error.wanted)
            raise_error(status, *(word.decode() for word in words), sentence=error.message.decode())


def _tensor(value, alive):
    """(DLTensor, flags) of an array or of a capsule."""
    if not isinstance(value, np.ndarray):
        return tensor_of_capsule(value), 0
    tensor, memory = tensor_of(value, strides=[s // value.itemsize for s in value.strides])
    alive.append(memory)
    return tensor, 0 if value.flags.writeable else READ_ONLY


def _argument(name, value, alive):
    a = _Argument(name=name.encode(), kind=NONE)

    def point(kind, to, count=0):
        alive.append(to)
        a.kind, a.value.pointer, a.count = kind, ctypes.addressof(to), count

    if value is None:
        pass
    elif isinstance(value, np.ndarray) or type(value).__name__ == "PyCapsule":
        tensor, a.flags = _tensor(value, alive)
        point(TENSOR, tensor)
    elif isinstance(value, (list, tuple)) and value and not isinstance(value[0], int):
        tensors = [_tensor(v, alive) for v in value]
        a.flags = max(flags for _, flags in tensors)
        point(TENSORS, (DLTensor * len(tensors))(*(t for t, _ in tensors)), len(tensors))
    elif isinstance(value, (list, tuple)):
        point(INTEGERS, (ctypes.c_int64 * max(len(value), 1))(*value), len(value))
    elif isinstance(value, bool):
        a.kind, a.value.boolean = BOOLEAN, value
    elif isinstance(value, int):
        a.kind, a.value.integer = INTEGER, value
    elif isinstance(value, float):
        a.kind, a.value.real = REAL, value
    elif isinstance(value, str):
        point(STRING, ctypes.create_string_buffer(value.encode()))
    else:
        raise TypeError(f"{name}: {value!r} has no form in C")
    return a
