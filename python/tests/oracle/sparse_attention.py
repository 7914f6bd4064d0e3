# SPDX-License-Identifier: Apache-2.0
"""The sparse attentions in float64, the same with their documented roundings, and the limits between the two."""

import numpy as np

from .rounding import bf16, f16, f32


def attend(q, q_rope, latent, k_rope, scale):
    """One query row in float64: q [H, Dv], latent [n, Dv] dequantised."""
    if latent.shape[0] == 0:
        return np.zeros(q.shape)
    s = (q @ latent.T + q_rope @ k_rope.T) * np.float64(np.float32(scale))
    p = np.exp(s - s.max(axis=1, keepdims=True))
    return (p @ latent) / p.sum(axis=1, keepdims=True)


def attend_plain(q, q_rope, latent, k_rope, scale, sink=None, rounding=bf16):
    """The same with the documented roundings: key, normalised probabilities and output in 16 bits."""
    if latent.shape[0] == 0:
        return np.zeros(q.shape)
    key = rounding(latent)
    s = f32((q @ key.T + q_rope @ k_rope.T)) * np.float32(scale)
    m = s.max(axis=1, keepdims=True)
    if sink is not None:
        m = np.maximum(m, sink[:, None].astype(np.float32))
    p = np.exp(s - m)
    total = p.sum(axis=1, keepdims=True, dtype=np.float32)
    if sink is not None:
        total = total + np.exp(sink[:, None].astype(np.float32) - m)
    return rounding(f32(rounding(p / total) @ key))


def softmax(q, q_rope, latent, k_rope, scale, sink=None):
    """One query row in float64: output, maximum, sum and the largest absolute score of each head."""
    heads = len(q)
    empty = latent.shape[0] == 0
    s = (q @ latent.T + q_rope @ k_rope.T) * np.float64(np.float32(scale))
    m = np.zeros(heads) if empty else s.max(axis=1)
    sink = np.full(heads, -np.inf) if sink is None else sink.astype(np.float64)
    if empty:
        there = np.isfinite(sink)
        return np.zeros(q.shape), np.where(there, sink, 0), there.astype(np.float64), np.abs(np.where(there, sink, 0))
    m = np.maximum(m, sink)
    p = np.exp(s - m[:, None])
    total = p.sum(axis=1) + np.exp(sink - m)
    return (p @ latent) / total[:, None], m, total, np.abs(s).max(axis=1)


def check_output(out, exact, plain, what, half=False, scale=1.0):
    """rms error at most 1.1 x plain; each element within abs 1e-3 + rel 2^-7 (fp16: 2.5e-4 + 2^-10) or 1.1 x plain's
    worst. `scale`: of the inputs, where they are larger than 1."""
    out = np.asarray(out, np.float64)
    assert np.isfinite(out).all(), f"{what}: not finite"
    error, plain_error = np.abs(out - exact), np.abs(plain - exact)
    absolute, relative = (2.5e-4, 2.0**-10) if half else (1e-3, 2.0**-7)
    limit = np.maximum(absolute * scale + relative * np.abs(exact), 1.1 * plain_error.max(initial=0))
    assert (
        error <= limit
    ).all(), f"{what}: worst error {error.max()} against {plain_error.max()} of the plain evaluation"
    if out.size >= 4096:
        rms, plain_rms = np.sqrt(np.mean(error**2)), np.sqrt(np.mean(plain_error**2))
        assert rms <= 1.1 * plain_rms, f"{what}: rms error {rms} against {plain_rms} of the plain evaluation"


def check_sums(got_max, got_sum, want_max, want_sum, largest, factor):
    """softmax_max within 1e-6 + 2^-20 of the largest score, softmax_sum within 1e-5; both times `factor`, how much larger
    than 1/sqrt(D) the scale is, which enlarges the errors of the dots alike."""
    got_max, got_sum, factor = np.asarray(got_max, np.float64), np.asarray(got_sum, np.float64), max(1.0, factor)
    error = np.abs(got_max - want_max)
    assert (error <= 1e-6 * factor + 2.0**-20 * largest).all(), f"softmax_max is off by {error.max()}"
    error = np.abs(got_sum - want_sum)
    assert (error <= 1e-5 * factor * want_sum).all(), f"softmax_sum is off by {error.max()}"


def attended(entries, length, visible, block=1, mask=False):
    """The positions that one list of the torch_npu family names, in order; None if the list is an error."""
    positions = []
    if visible == 0:
        return positions
    for e in (int(v) for v in entries):
        if e == -1:
            break
        if e < -1 or (e * block >= length and not mask):
            return None
        if e * block < visible and e * block < length:
            positions.extend(range(e * block, min((e + 1) * block, visible)))
    return positions


ROUNDING = {"bfloat16": bf16, "float16": f16}
