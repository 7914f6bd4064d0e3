# SPDX-License-Identifier: Apache-2.0
"""Operations of dsakit.pypto that torch has too: random shapes, axes, keys and valid regions."""

import random

import numpy as np
import pytest

from dsakit import pypto

torch = pytest.importorskip("torch")


def ours(x):
    return pypto.from_torch(x.contiguous())


def equal(found, due):
    np.testing.assert_array_equal(found.numpy(), due.numpy())


def whole(shape):
    return torch.randint(-9, 9, shape).float()


def some(shape, axis, n):
    """A shape within `shape`, with n along the axis."""
    return [n if i == axis % len(shape) else random.randint(1, m) for i, m in enumerate(shape)]


def key_of(shape):
    """Ints, slices with bounds from both ends and without, inside of the shape."""
    key = []
    for n in shape:
        start = random.randrange(n)
        stop = random.randint(start + 1, n)
        window = slice(random.choice([start, start - n]) if start else None, stop if stop < n else None)
        key.append(random.randrange(-n, n) if random.random() < 0.3 else window)
    return tuple(key)


@pytest.fixture(params=range(40))
def case(request):
    random.seed(request.param)
    torch.manual_seed(request.param)
    shape = [random.randint(1, 5) for _ in range(random.randint(1, 4))]
    return whole(shape), shape, random.randrange(-len(shape), len(shape))


def test_reductions(case):
    x, _, axis = case
    for keepdim in (False, True):
        equal(pypto.amax(ours(x), axis, keepdim), x.amax(axis, keepdim))
        equal(pypto.amin(ours(x), axis, keepdim), x.amin(axis, keepdim))
        equal(pypto.sum(ours(x), axis, keepdim), x.sum(axis, keepdim))
        equal(pypto.prod(ours(x), axis, keepdim), x.prod(axis, keepdim))
    equal(pypto.cumsum(ours(x), axis), x.cumsum(axis))


def test_order(case):
    x, shape, axis = case
    values, order = torch.sort(x, dim=axis, descending=True, stable=True)
    k = random.randint(1, shape[axis])
    found, at = pypto.topk(ours(x), k, axis)
    equal(found, values.narrow(axis, 0, k))
    equal(at, order.narrow(axis, 0, k))
    equal(pypto.argsort(ours(x), axis, False), torch.sort(x, dim=axis, stable=True)[1])


def test_shapes(case):
    x, shape, axis = case
    order = random.sample(range(len(shape)), len(shape))
    equal(pypto.permute(ours(x), order), x.permute(order))
    equal(pypto.concat([ours(x), ours(x + 1)], axis), torch.cat([x, x + 1], axis))
    padding = [random.randint(0, 2) for _ in range(2 * random.randint(1, len(shape)))]
    equal(pypto.pad(ours(x), padding, value=2.0), torch.nn.functional.pad(x, padding, value=2.0))
    if len(shape) > 1:
        equal(pypto.tril(ours(x), 1), x.tril(1))
        equal(pypto.triu(ours(x), -1), x.triu(-1))


def test_indices(case):
    x, shape, axis = case
    index = torch.randint(0, shape[axis], some(shape, axis, random.randint(1, 6)))
    equal(pypto.gather(ours(x), axis, ours(index)), x.gather(axis, index))
    listed = torch.randint(0, shape[axis], (random.randint(1, 6),))
    equal(pypto.index_select(ours(x), axis, ours(listed)), x.index_select(axis, listed))
    index = torch.randint(0, shape[axis], some(shape, axis, 1))  # no duplicates: torch leaves them open
    source = whole(index.shape)
    equal(pypto.scatter(ours(x), axis, ours(index), ours(source)), x.scatter(axis, index, source))
    equal(pypto.scatter(ours(x), axis, ours(index), 3.0), x.scatter(axis, index, 3.0))


def test_keys(case):
    x, shape, _ = case
    for _ in range(5):
        key = key_of(shape)
        if all(isinstance(k, int) for k in key):
            continue
        equal(ours(x)[key], x[key])
        source, y, z = whole(x[key].shape), x.clone(), ours(x.clone())
        y[key] = source
        z[key] = ours(source)
        equal(z, y)


def test_broadcasting(case):
    x, shape, _ = case
    y = whole([n if random.random() < 0.7 else 1 for n in shape])
    for name in ("add", "sub", "mul", "div", "maximum", "minimum", "eq", "lt", "ge"):
        equal(getattr(pypto, name)(ours(x), ours(y)), getattr(torch, name)(x, y))
    equal(pypto.where(ours(x) > ours(y), ours(x), 0.0), torch.where(x > y, x, torch.tensor(0.0)))


def test_valid_regions_compute_on_what_is_valid(case):
    x, shape, axis = case
    valid = [random.randint(1, n) for n in shape]
    box = tuple(slice(0, n) for n in valid)
    part = pypto.view(ours(x), shape, [0] * len(shape), valid_shape=valid)
    reduced = [1 if i == axis % len(shape) else n for i, n in enumerate(valid)]
    for name in ("sum", "amax", "amin"):
        found = getattr(pypto, name)(part, axis, True)
        assert found.valid_shape == reduced
        kept = found.numpy()[tuple(slice(0, n) for n in reduced)]
        np.testing.assert_array_equal(kept, getattr(x[box], name)(axis, True).numpy())
    np.testing.assert_allclose(pypto.softmax(part, axis).numpy()[box], x[box].softmax(axis).numpy(), atol=1e-6)
    turned = pypto.permute(part, list(range(len(shape)))[::-1])
    assert turned.valid_shape == valid[::-1]
