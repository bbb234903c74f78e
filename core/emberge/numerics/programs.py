"""Evaluations of stored rows and recorded links by compiled kernels: what a block asks first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from emberge.numerics.buffers import pooled_like
from emberge.numerics.lanes import LANES, total
from emberge.numerics.links import Dropped, Link
from emberge.numerics.noise import SPAN

if TYPE_CHECKING:
    from emberge.numerics.stored_rows import StoredRows

__all__ = ["Program"]

_LIKE = torch.empty(0)


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """Stored rows with the links on their deltas, as arguments for the kernels."""

    kernels: Any
    rows: tuple[Any, ...]
    links: tuple[Any, ...]
    shape: tuple[int, ...]
    size: int
    models: int

    @classmethod
    def of(
        cls,
        stored: StoredRows | None,
        links: Sequence[Link],
        linked: Tensor | None,
        start: int,
        *,
        deltas: bool,
    ) -> Program | None:
        """Build the program of a block's models, or of their `deltas`; None where torch has to do it.

        `linked` are the deltas that the links change, where the rows less the base are not.
        """
        if stored is None or stored.kernels is None or not stored.size:
            return None
        if not _fit(links, linked, start + stored.size):
            return None
        known = stored.kernels
        count = len(stored.models) if linked is None else len(linked)
        rows = stored.arguments(changed=linked, subtract=deltas and linked is None)
        coded = (
            np.array([link.code for link in links], np.int64),
            np.array([link.numbers() for link in links], np.float32).reshape(len(links), count),
            np.array([link.words() for link in links], np.int64).reshape(len(links), count, 3),
            start,
        )
        merged = any(link.code == known.VARIANCE for link in links)
        return cls(known, rows, coded, stored.shape, stored.size, 1 if merged else count)

    def decode(self, *, less_first: bool = False) -> Tensor:
        """Return the values after all links, [models, *rows]; or the first, and the others less it."""
        out = pooled_like(_LIKE, (self.models, *self.shape))
        flat = out.view(self.models, -1).numpy()
        self.kernels.decode(self.rows, self.links, self.size, less_first, flat)
        return out

    def combine(self, coefficients: Sequence[float], *, add_base: bool) -> Tensor:
        """Return the sum of coefficient × values, and of the base if asked for."""
        out = pooled_like(_LIKE, self.shape)
        factors = np.array(coefficients, np.float32)
        flat = out.view(-1).numpy()
        self.kernels.combine(self.rows, self.links, self.size, factors, add_base, flat)
        return out

    def elect(
        self,
        votes: Sequence[float],
        weights: Sequence[float],
        least: float | None,
        *,
        normalize: bool,
        scale: float,
    ) -> Tensor:
        """Return base + scale × the mean of the deltas that have the elected sign."""
        out = pooled_like(_LIKE, self.shape)
        self.kernels.elect(
            self.rows,
            self.links,
            self.size,
            np.array(votes, np.float32),
            np.array(weights, np.float32),
            np.float32(-1 if least is None else least),
            normalize,
            np.float32(scale),
            out.view(-1).numpy(),
        )
        return out

    def sums(self, *, squares: bool) -> Tensor:
        """Return the sums of magnitudes or squares, float64 [models]."""
        lanes = np.zeros((self.models, LANES))
        self.kernels.sums(self.rows, self.links, self.size, squares, lanes)
        return torch.from_numpy(total(lanes).copy())

    def tally(
        self, which: Sequence[int], brackets: np.ndarray, frequent: np.ndarray, width: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Count magnitudes near limits: (counts, collected patterns, their rows, ties), a row a limit."""
        limits = len(which)
        counts = np.zeros((limits, 4), np.int64)
        values, homes = _words(limits, self.size), _words(limits, self.size)
        ties = np.zeros((limits, frequent.shape[1], -(-self.size // width)), np.int32)
        self.kernels.tally(
            self.rows,
            self.links,
            self.size,
            width,
            np.array(which, np.int64),
            brackets[:, 0].copy(),
            brackets[:, 1].copy(),
            frequent,
            counts,
            values,
            homes,
            ties,
        )
        return counts, values, homes, ties


def _words(rows: int, size: int) -> np.ndarray:
    found: np.ndarray = pooled_like(_LIKE, (rows, size)).view(torch.int32).numpy()
    return found


def _fit(links: Sequence[Link], linked: Tensor | None, end: int) -> bool:
    """Return whether kernels can do this: no place beyond a hash's span, and float32 in order."""
    if end > SPAN and any(isinstance(link, Dropped) for link in links):
        return False
    if linked is None:
        return True
    return linked.dtype == torch.float32 and linked.is_contiguous() and linked.device.type == "cpu"
