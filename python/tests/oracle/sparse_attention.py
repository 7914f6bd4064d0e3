# SPDX-License-Identifier: Apache-2.0
import numpy as np

from .rounding import bf16, f32


def attend(q, q_rope, latent, k_rope, scale):
    """One query row in float64: q [H, Dv], latent [n, Dv] dequantised."""
    if latent.shape[0] == 0:
        return np.zeros(q.shape)
    s = (q @ latent.T + q_rope @ k_rope.T) * np.float64(np.float32(scale))
    p = np.exp(s - s.max(axis=1, keepdims=True))
    return (p @ latent) / p.sum(axis=1, keepdims=True)


def attend_plain(q, q_rope, latent, k_rope, scale):
    """The same with the documented roundings: key in bf16, normalised probabilities in bf16, output in bf16."""
    if latent.shape[0] == 0:
        return np.zeros(q.shape)
    key = bf16(latent)
    s = f32((q @ key.T + q_rope @ k_rope.T)) * np.float32(scale)
    p = np.exp(s - s.max(axis=1, keepdims=True))
    p = bf16(p / p.sum(axis=1, keepdims=True, dtype=np.float32))
    return bf16(f32(p @ key))


def check_output(out, exact, plain, what):
    """rms error at most 1.1 x plain; each element within abs 1e-3 + rel 2^-7 or 1.1 x plain's worst."""
    out = np.asarray(out, np.float64)
    assert np.isfinite(out).all(), f"{what}: not finite"
    error, plain_error = np.abs(out - exact), np.abs(plain - exact)
    limit = np.maximum(1e-3 + 2.0**-7 * np.abs(exact), 1.1 * plain_error.max(initial=0))
    assert (error <= limit).all(), (
        f"{what}: worst error {error.max()} against {plain_error.max()} of the plain evaluation"
    )
    if out.size >= 4096:
        rms, plain_rms = np.sqrt(np.mean(error**2)), np.sqrt(np.mean(plain_error**2))
        assert rms <= 1.1 * plain_rms, f"{what}: rms error {rms} against {plain_rms} of the plain evaluation"
