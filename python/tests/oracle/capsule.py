# SPDX-License-Identifier: Apache-2.0
"""Somebody's DLPack capsule, with any shape, strides and address: what no array library would make."""

import ctypes


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    ]


_new = ctypes.pythonapi.PyCapsule_New
_new.restype = ctypes.py_object
_new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype = ctypes.c_void_p
_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_alive = []  # capsules do not own what they point to
_CODES = {"i": 0, "u": 1, "f": 2, "V": 4, "b": 6}  # V: bfloat16


def tensor_of(array, *, shape=None, strides=None, data=0, device=1, bits=None, lanes=1, byte_offset=0):
    """(`array` as a DLTensor, parts replaced; what has to live as long)."""
    shape = array.shape if shape is None else shape
    shape = (ctypes.c_int64 * max(len(shape), 1))(*shape)
    if strides is not None:
        strides = (ctypes.c_int64 * max(len(strides), 1))(*strides)
    tensor = DLTensor(
        data=None if data is None else array.ctypes.data + data,
        device_type=device,
        ndim=len(shape) if array.ndim or len(shape) > 1 else 0,
        code=_CODES[array.dtype.kind],
        bits=array.dtype.itemsize * 8 if bits is None else bits,
        lanes=lanes,
        shape=shape,
        strides=strides,
        byte_offset=byte_offset,
    )
    return tensor, (shape, strides, array)


def tensor_of_capsule(capsule):
    """Of the old kind."""
    return DLTensor.from_address(_pointer(capsule, b"dltensor"))


def capsule(array, *, version=None, **parts):
    """`array` as a capsule, parts of tensor_of replaced; strides in elements, data=None for NULL, version (major) or the
    old kind."""
    tensor, memory = tensor_of(array, **parts)
    managed = _Managed(tensor=tensor) if version is None else _Versioned(major=version, tensor=tensor)
    name = b"dltensor" if version is None else b"dltensor_versioned"
    _alive.append((managed, memory, name))
    return _new(ctypes.addressof(managed), name, None)
