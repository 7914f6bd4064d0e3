# SPDX-License-Identifier: Apache-2.0
"""What every operator's tests share: both implementations, array kinds, pages, refusals, thread counts."""

import ml_dtypes
import numpy as np
import pytest

import dsakit

BF16 = ml_dtypes.bfloat16
ALL_TOKENS = 2**63 - 1
both = pytest.mark.parametrize("impl", ["fast", "reference"])
CLASSES = dict(
    INVALID_ARGUMENT=ValueError,
    INVALID_SHAPE=ValueError,
    INVALID_DTYPE=TypeError,
    INVALID_STRIDE=ValueError,
    MISALIGNED=ValueError,
    INVALID_DEVICE=ValueError,
    ALIASED=ValueError,
    INVALID_SEQLEN=ValueError,
    INVALID_BLOCK=IndexError,
    INVALID_SLOT=IndexError,
    INVALID_INDEX=IndexError,
    INVALID_VALUE=ValueError,
    UNSUPPORTED=NotImplementedError,
    OUT_OF_MEMORY=MemoryError,
)


def seeds(count, first=0):
    return pytest.mark.parametrize("seed", range(first, first + count), ids=lambda s: f"seed{s}")


def operator(name, impl="fast"):
    return getattr(dsakit if impl == "fast" else dsakit.reference, name)


def to_torch(value):
    torch = pytest.importorskip("torch")
    if not isinstance(value, np.ndarray):
        return value
    value = value.copy()
    if value.dtype == BF16:
        return torch.from_numpy(value.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(value)


def to_numpy(value):
    if value is None or isinstance(value, np.ndarray):
        return value
    torch = pytest.importorskip("torch")
    assert isinstance(value, torch.Tensor)
    if value.dtype == torch.bfloat16:
        return value.view(torch.int16).numpy().view(BF16)
    return value.numpy()


def assert_same(a, b, what=""):
    """Same dtype, shape and bytes."""
    a, b = np.asarray(a), np.asarray(b)
    assert a.dtype == b.dtype and a.shape == b.shape, f"{what}: {a.dtype}{a.shape} against {b.dtype}{b.shape}"
    if a.tobytes() != b.tobytes():
        raw = [np.ascontiguousarray(v).reshape(-1).view(np.uint8).reshape(-1, v.dtype.itemsize) for v in (a, b)]
        at = np.flatnonzero((raw[0] != raw[1]).any(axis=1))
        first = np.unravel_index(at[0], a.shape)
        raise AssertionError(
            f"{what}{[int(i) for i in first]}: {a[first]!r} against {b[first]!r}; {len(at)} of {a.size} differ"
        )


def per_thread_count(call, counts=(1, 2, 3)):
    """The results of call() at each thread count; two threads afterwards."""
    try:
        results = []
        for count in counts:
            dsakit.set_num_threads(count)
            results.append(call())
        return results
    finally:
        dsakit.set_num_threads(2)


def refused(call, operator_name, statuses, parameters, position=None, guards=()):
    """The call is refused as documented, and every guard keeps its bytes."""
    statuses = {statuses} if isinstance(statuses, str) else set(statuses)
    parameters = {parameters} if isinstance(parameters, str) else set(parameters)
    before = [g.tobytes() for g in guards]
    with pytest.raises(dsakit.Error) as caught:
        call()
    error, sentence = caught.value, str(caught.value)
    status = getattr(error.status, "name", error.status)
    assert status in statuses, f"status {status}: {sentence}"
    assert isinstance(error, CLASSES[status]) and isinstance(error, RuntimeError)
    assert error.operator == operator_name and error.parameter in parameters, sentence
    if position is not None:
        assert str(error.position) == position, f"position {error.position}: {sentence}"
    assert error.got and error.wanted and str(error.got) in sentence and str(error.wanted) in sentence, sentence
    assert sentence.startswith(f"{error.operator}: {error.parameter}{error.position}") and ", wanted " in sentence, (
        sentence
    )
    assert [g.tobytes() for g in guards] == before, "a refused call has written"
    return error
