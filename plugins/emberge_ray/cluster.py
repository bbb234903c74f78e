"""The `ray` launcher: steps side by side on the machines of a Ray cluster, found or started."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from emberge import EmbergeError, Machine, NonNegative
from emberge.devices import parse_size
from emberge_local import PoolLauncher, ProcessEnd, StepHandle, StepPool, StepProcess, StepRequest

# Seconds that a cluster's head may take to accept a connection.
_CONNECT_TIMEOUT_SECONDS = 10.0
# Seconds that tasks may take to end when a run is stopped.
_LEAVING_SECONDS = 10.0


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
        devices = [device for device in machine.devices if device != "cpu"]
        resources = Resources(
            gpus=float(bool(devices)) if self.gpus is None else self.gpus,
            memory=parse_size(self.memory) if self.memory else machine.memory,
            threads=self.threads,
        )
        address = self.address or os.environ.get("RAY_ADDRESS") or "local"
        with connected(address, machine), contextlib.closing(_Queue(resources)) as pool:
            yield pool


@dataclass(frozen=True)
class Resources:
    """The resources that a step needs of its machine: a CPU for each thread; `memory` is in bytes."""

    gpus: float
    memory: int | None
    threads: int

    def build_machine(self) -> Machine:
        """Return the machine as the step sees it; Ray shows only the GPUs that the step was given."""
        devices = (
            tuple(f"cuda:{i}" for i in range(max(1, int(self.gpus)))) if self.gpus else ("cpu",)
        )
        return Machine(devices=devices, workers=self.threads, memory=self.memory)


@contextlib.contextmanager
def connected(address: str, machine: Machine) -> Iterator[None]:
    """Connect to the cluster at `address`, or for `local` to a new cluster on this machine, in the block.

    A connection that exists already is used and left open.

    Raises:
        EmbergeError: if Ray is missing, or no cluster answers.
    """
    try:
        import ray
    except ImportError:
        raise EmbergeError("the launcher ray needs Ray: pip install 'emberge[ray]'") from None
    if ray.is_initialized():
        yield
        return
    options: dict[str, Any] = {
        "log_to_driver": False,
        "logging_level": "ERROR",
        "job_config": _build_job_config(),
    }
    if address == "local":
        gpus = [device for device in machine.devices if device != "cpu"]
        options |= {"num_cpus": machine.workers, "num_gpus": len(gpus), "include_dashboard": False}
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with _keep_signal_handler():
        try:
            _require_answer(address)
            ray.init(address=address, **options)
        except (OSError, RuntimeError, ValueError) as error:
            reason = _shorten_error(error)
            raise EmbergeError(f"no Ray cluster at '{address}': {reason}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _build_job_config() -> Any:
    """Return a job whose workers import nothing from the current folder, which Ray would put first."""
    from ray.job_config import JobConfig

    class Job(JobConfig):  # type: ignore[misc]
        def _runtime_env_has_working_dir(self) -> bool:
            return True  # the only case in which Ray adds no folder

    return Job()


def _require_answer(address: str) -> None:
    """Check that a host answers on a port, because Ray itself would try for minutes.

    Raises:
        OSError: if the host does not answer.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection(
            (host.strip("[]"), int(port)), timeout=_CONNECT_TIMEOUT_SECONDS
        ).close()


class _Queue:
    """Queue of a Ray cluster, with the tasks that this run submitted."""

    has_room = True

    def __init__(self, resources: Resources) -> None:
        import ray

        options: dict[str, Any] = {"num_cpus": resources.threads, "num_gpus": resources.gpus}
        if resources.memory is not None:
            options["memory"] = resources.memory
        # Retries are the run's, which knows what the step has left.
        self._task = ray.remote(max_retries=0, **options)(run_request)
        self._resources = resources
        self._tasks: list[_Task] = []

    def launch(self, request: StepRequest) -> StepHandle:
        task = self._task.options(name=request.step)
        self._tasks.append(_Task(task.remote(request, self._resources)))
        return self._tasks[-1]

    def close(self) -> None:
        """Stop all tasks, and wait up to `_LEAVING_SECONDS` seconds for them."""
        running = [task for task in self._tasks if task.poll() is None]
        for task in running:
            task.stop()
        end = time.monotonic() + _LEAVING_SECONDS
        while time.monotonic() < end and any(task.poll() is None for task in running):
            time.sleep(0.05)


class _Task:
    """One attempt at a step as a Ray task."""

    def __init__(self, reference: Any) -> None:
        self._reference = reference
        self._process_end: ProcessEnd | None = None

    def poll(self) -> ProcessEnd | None:
        import ray

        if self._process_end is None and ray.wait([self._reference], timeout=0)[0]:
            self._process_end = _read_process_end(self._reference)
        return self._process_end

    def stop(self) -> None:
        import ray

        # The task's worker ends at once, and with it the step's process, whose standard input it keeps open.
        ray.cancel(self._reference, force=True)


def _read_process_end(reference: Any) -> ProcessEnd:
    import ray
    from ray.exceptions import RayError, RayTaskError

    try:
        process_end: ProcessEnd = ray.get(reference)
    except RayTaskError as error:
        return ProcessEnd(EmbergeError.exit_code, f"error: {_shorten_error(error.cause or error)}")
    except RayError as error:
        return ProcessEnd(None, _shorten_error(error))
    return process_end


def run_request(request: StepRequest, resources: Resources) -> ProcessEnd:
    """Run a step as a Ray task on the machine that Ray chose, and return how it ended."""
    try:
        return StepProcess(request, resources.build_machine(), resources.threads).wait()
    except EmbergeError as error:
        return ProcessEnd(error.exit_code, f"error: {error}")


def _shorten_error(error: BaseException) -> str:
    lines = str(error).splitlines() or [type(error).__name__]
    return lines[0].partition(". ")[0].rstrip(".")


@contextlib.contextmanager
def _keep_signal_handler() -> Iterator[None]:
    """Restore the handler of SIGTERM after the block, in which Ray sets its own."""
    old_handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # not the main thread, where Ray takes none either
            signal.signal(signal.SIGTERM, old_handler)
