"""A Ray cluster, found or started, with a queue of steps."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import secrets
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from emberge import EmbergeError, Launch, Machine
from emberge.contracts import Ended, Launched
from emberge.processes import StepProcess

# How long a cluster's head may take to take up a connection.
_ANSWER = 10.0
# How long tasks may take to end when a run is stopped.
_LEAVING = 10.0


@dataclass(frozen=True)
class Resources:
    """The resources that a step needs of its machine; `memory` in bytes."""

    cpus: float
    gpus: float
    memory: int | None
    threads: int

    def machine(self) -> Machine:
        """Return the machine as the step sees it; Ray shows only the GPUs that the step was given."""
        devices = (
            tuple(f"cuda:{i}" for i in range(max(1, int(self.gpus)))) if self.gpus else ("cpu",)
        )
        return Machine(devices=devices, workers=max(1, int(self.cpus)), memory=self.memory)


@contextlib.contextmanager
def connected(address: str, machine: Machine) -> Iterator[None]:
    """Connect to the cluster at `address`, or for `local` to a new cluster on this machine, in the block.

    A connection that exists already is used and left open. A cluster that is started here listens only on the
    loopback interface and requires a token that only its processes know, because whoever reaches a Ray
    cluster can run code on it.

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
        "job_config": _build_job(),
    }
    starts_cluster = address == "local"
    if starts_cluster:
        gpus = [device for device in machine.devices if device != "cpu"]
        options |= {"num_cpus": machine.workers, "num_gpus": len(gpus), "include_dashboard": False}
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with keep_cluster_local() if starts_cluster else contextlib.nullcontext():
        with _keep_signal_handler():
            try:
                _require_answer(address)
                ray.init(address=address, **options)
            except (OSError, RuntimeError, ValueError) as error:
                reason = _shorten_error(error)
                raise EmbergeError(f"no Ray cluster at '{address}': {reason}") from error
        try:
            if starts_cluster:
                _require_loopback()
            yield
        finally:
            ray.shutdown()


def _build_job() -> Any:
    """Return a job whose workers import nothing from the current folder, which Ray would put first."""
    from ray.job_config import JobConfig

    class Job(JobConfig):  # type: ignore[misc]
        def _runtime_env_has_working_dir(self) -> bool:
            return True  # the only case in which Ray adds no folder

    return Job()


@contextlib.contextmanager
def keep_cluster_local() -> Iterator[None]:
    """Make a cluster that starts in this block listen only on the loopback interface, with its own token.

    Ray has a switch for this, meant for systems whose firewall would ask the user; Ray keeps the switch's
    value at import in a constant. If the environment already has a token, that token is used.
    """
    from ray._private import ray_constants

    variables = {ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR: "0"}
    if not {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys():
        variables |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    old_environment = {name: os.environ.get(name) for name in variables}
    anywhere_default = ray_constants.ENABLE_RAY_CLUSTER
    os.environ.update(variables)
    ray_constants.ENABLE_RAY_CLUSTER = False
    _read_token_again()
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = anywhere_default
        for name, value in old_environment.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
        _read_token_again()


def _read_token_again() -> None:
    """Make Ray forget the token and the mode that it has read from the environment."""
    from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

    AuthenticationTokenLoader.instance().reset_cache()
    Config.initialize("")


def _require_loopback() -> None:
    """Refuse a cluster that was started here if other machines could reach it.

    Raises:
        EmbergeError: if they could; the message has the cluster's address.
    """
    import ray

    address = str(ray.util.get_node_ip_address())
    if not ipaddress.ip_address(address).is_loopback:
        raise EmbergeError(
            f"Ray has opened its ports at {address}, where other machines reach them; use --launcher local"
        )


def _require_answer(address: str) -> None:
    """Check that a host answers on a port, because Ray itself would try for minutes.

    Raises:
        OSError: if the host does not answer.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER).close()


@contextlib.contextmanager
def open_pool(resources: Resources) -> Iterator[_Queue]:
    """Open a pool on the connected cluster, and stop all its tasks after the block."""
    queue = _Queue(resources)
    try:
        yield queue
    finally:
        queue.end()


class _Queue:
    """Queue of a Ray cluster, with the tasks that this run submitted."""

    has_room = True

    def __init__(self, resources: Resources) -> None:
        import ray

        options: dict[str, Any] = {"num_cpus": resources.cpus, "num_gpus": resources.gpus}
        if resources.memory is not None:
            options["memory"] = resources.memory
        # Retries are the run's, which knows what the step has left.
        self._task = ray.remote(max_retries=0, **options)(run_launch)
        self._resources = resources
        self._tasks: list[_Task] = []

    def launch(self, launch: Launch) -> Launched:
        task = self._task.options(name=launch.step)
        self._tasks.append(_Task(task.remote(launch, self._resources)))
        return self._tasks[-1]

    def end(self) -> None:
        """Stop all tasks, and wait up to 10 s for them."""
        running = [task for task in self._tasks if task.ended() is None]
        for task in running:
            task.stop()
        end = time.monotonic() + _LEAVING
        while time.monotonic() < end and any(task.ended() is None for task in running):
            time.sleep(0.05)


class _Task:
    """One attempt at a step as a Ray task."""

    def __init__(self, reference: Any) -> None:
        self._reference = reference
        self._ended: Ended | None = None

    def ended(self) -> Ended | None:
        import ray

        if self._ended is None and ray.wait([self._reference], timeout=0)[0]:
            self._ended = _read_outcome(self._reference)
        return self._ended

    def stop(self) -> None:
        import ray

        # The task's worker goes at once, and the step's process with it, whose leash it holds.
        ray.cancel(self._reference, force=True)


def _read_outcome(reference: Any) -> Ended:
    import ray
    from ray.exceptions import RayError, RayTaskError

    try:
        ended: Ended = ray.get(reference)
    except RayTaskError as error:
        return Ended(EmbergeError.exit_code, f"error: {_shorten_error(error.cause or error)}")
    except RayError as error:
        return Ended(None, _shorten_error(error))
    return ended


def run_launch(launch: Launch, resources: Resources) -> Ended:
    """Run a step as a Ray task on the machine that Ray chose, and return how it ended."""
    try:
        return StepProcess(launch, resources.machine(), resources.threads).wait()
    except EmbergeError as error:
        return Ended(error.exit_code, f"error: {error}")


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
