"""Devices of threads, each with a stream of its own on a GPU."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from emberge.contracts import Measures

__all__ = ["DeviceStreams", "on_cpu"]


class DeviceStreams:
    """The devices of all threads, each thread with a stream of its own on its GPU.

    A thread's rows go through its own pinned buffers and stream: while one thread waits for its copy or
    its result, another one's kernels run.
    """

    def __init__(self, devices: Sequence[str]) -> None:
        self._devices = itertools.cycle(devices)
        self._lock = threading.Lock()
        self._own = threading.local()

    @contextmanager
    def current_device(self) -> Iterator[str]:
        """Yield the calling thread's device; all work inside goes to its stream and is then waited for."""
        if not hasattr(self._own, "device"):
            with self._lock:
                self._own.device = next(self._devices)
            gpu = self._own.device != "cpu"
            self._own.stream = torch.cuda.Stream(self._own.device) if gpu else None  # type: ignore[no-untyped-call]
        if self._own.stream is None:
            yield self._own.device
            return
        with torch.cuda.stream(self._own.stream):
            yield self._own.device
            # The pinned buffer is filled anew by the next call, so its copy must have ended.
            self._own.stream.synchronize()


def on_cpu(measures: Measures) -> Measures:
    """Return the measures with their tensors on the CPU, where they are summed."""
    return {name: _on_cpu(value) for name, value in measures.items()}


def _on_cpu(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.cpu()
    return on_cpu(value) if isinstance(value, Mapping) else value
