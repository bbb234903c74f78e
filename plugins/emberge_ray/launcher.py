"""The `ray` launcher: steps side by side on the machines of a Ray cluster."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

from emberge import Machine, NonNegative
from emberge.wording import parse_size
from emberge_local import PoolLauncher, StepPool


@dataclass(frozen=True, kw_only=True)
class Ray(PoolLauncher):
    """Launcher of steps side by side on the machines of a Ray cluster.

    (Moritz et al., 2018, arXiv:1712.05889.) Each step is a Ray task, which waits in Ray's queue until a
    machine has the requested CPUs, GPUs and memory free, and then runs the step in its own process on that
    machine. Results, states and events of a step are exchanged through OUT, so every machine must see OUT,
    the recipe's folder and local data under the same paths, and have emberge installed. When a machine is
    lost, the steps that ran there continue on other machines.

    Example:
        emberge run recipe.yaml --out out --launcher ray
        emberge run recipe.yaml --out out --launcher '{ray: {threads: 4}}'
    """

    address: str | None = None
    """Address of the cluster's head, such as 10.0.0.1:6379, or `auto` for a cluster that runs on this
    machine. Without it, and without RAY_ADDRESS in the environment, a cluster is started here, and
    stopped after the run."""
    gpus: NonNegative | None = None
    """GPUs that a step asks for; by default one if this machine has any. Two steps share one by 0.5."""
    memory: str | None = None
    """Memory that a step asks for and stays below where possible, such as 8GB; by default `--memory`."""

    @contextlib.contextmanager
    def open(self, machine: Machine) -> Iterator[StepPool]:
        from emberge_ray.cluster import Resources, connected, open_pool

        devices = [device for device in machine.devices if device != "cpu"]
        resources = Resources(
            gpus=float(bool(devices)) if self.gpus is None else self.gpus,
            memory=parse_size(self.memory) if self.memory else machine.memory,
            threads=self.threads,
        )
        address = self.address or os.environ.get("RAY_ADDRESS") or "local"
        with connected(address, machine), open_pool(resources) as pool:
            yield pool
