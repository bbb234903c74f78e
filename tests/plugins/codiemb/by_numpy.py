"""Measures of token matrices and of drift as numpy computes them."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


def by_numpy(x: Matrix, *, squares: bool = True, dtype: str = "float32") -> dict[str, float]:
    """The measures of one token matrix, pair by pair and with numpy's singular values."""
    x = np.asarray(x, np.float64)
    rows = [row / np.linalg.norm(row) for row in x if np.any(row)]
    cosines = [float(a @ b) for i, a in enumerate(rows) for j, b in enumerate(rows) if i != j]
    sigma = np.linalg.svd(x, compute_uv=False)
    epsilon = float(np.finfo(dtype).eps)
    p = sigma**2 / (sigma**2).sum() if squares else sigma / sigma.sum()
    return {
        "token_similarity": math.fsum(cosines) / len(cosines),
        "rank": float(sum(s > max(x.shape) * epsilon * sigma[0] for s in sigma)),
        "condition_number": float(sigma[0] / max(sigma[-1], epsilon * sigma[0])),
        "svd_entropy": -math.fsum(float(q * math.log(q)) for q in p if q > 0),
    }


def cka_by_kernels(x: Matrix, y: Matrix) -> float:
    """Linear CKA by HSIC of the two kernels, as the paper defines it."""
    centre = np.eye(len(x)) - 1 / len(x)
    k, m = (centre @ (e @ e.T) @ centre for e in (x, y))
    return float((k * m).sum() / math.sqrt((k * k).sum() * (m * m).sum()))
