"""One training on several ranks, for tests: each rank is a process of its own.

`python ranked_fit.py CASE.pkl` runs what a pickled dict says (arguments of `fit`, and `root`, `echo`) and, on
the first rank, pickles losses beside the result.
"""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    """What torchrun would tell a process."""
    told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    return {
        **os.environ,
        **{name: str(value) for name, value in told.items()},
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "PYTHONPATH": str(REPOSITORY),
        "OMP_NUM_THREADS": "1",
    }


def start(case: Mapping[str, Any], path: Path, ranks: int) -> list[subprocess.Popen[str]]:
    """Start all ranks of a case; the first one's standard output can be read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(dict(case)))
    port = free_port()
    return [
        subprocess.Popen(
            [sys.executable, "-m", "tests.core.ranked_fit", str(path)],
            stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
            env=environment(rank, ranks, port),
        )
        for rank in range(ranks)
    ]


def finish(processes: list[subprocess.Popen[str]]) -> list[str]:
    """Wait for all ranks; what each wrote to standard error."""
    return [process.communicate(timeout=300)[1] for process in processes]


def run(case: Mapping[str, Any], path: Path, ranks: int) -> Any:
    """Run a case to its end; its results."""
    processes = start(case, path, ranks)
    errors = finish(processes)
    assert all(process.returncode == 0 for process in processes), "\n".join(errors)
    return pickle.loads(path.with_suffix(".out").read_bytes())


def main(path: Path) -> None:
    import torch
    from emberge.errors import EmbergeError
    from emberge.training.ranks import leave_ranks

    torch.set_num_threads(1)
    case = pickle.loads(path.read_bytes())
    found = []
    try:
        for one in case["trainings"]:
            found.append(train({**case, **one}))
    except EmbergeError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    if os.environ["RANK"] == "0":
        path.with_suffix(".out").write_bytes(pickle.dumps(found))
    leave_ranks()


def train(case: Mapping[str, Any]) -> dict[str, Any]:
    from emberge import fit

    ranks, rank = (int(os.environ[name]) for name in ("WORLD_SIZE", "RANK"))
    losses: list[float] = []
    root: Path = case["root"]
    if rank:  # only the first writes
        root = Path(os.devnull)

    def told(name: str, value: float, step: int) -> None:
        if name == "loss":
            losses.append(value)

    def progress(done: int, total: int, unit: str, note: str = "") -> None:
        if unit == "steps" and rank == 0 and case.get("echo"):
            print(done, flush=True)

    before = case.get("before")
    if before is not None:
        before(rank)
    result = fit(
        **case["fit"],
        folder=root / "out",
        work=case["root"] / "work",
        store=case["root"] / "store",
        device="cpu",
        progress=progress,
        metric=told,
        ranks=ranks,
        shard=case.get("shard", False),
    )
    return {"losses": losses, "result": result}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
