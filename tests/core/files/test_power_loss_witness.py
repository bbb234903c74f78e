"""What the recorder of power cuts notes in the process is what the kernel saw of it, by a disk of our own."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import power_programs
from tests.support.disk_recorder import DiskRecorder
from tests.support.fuse_disk import mounted
from tests.support.power_cuts import Data, DiskLog, Sync
from tests.support.word_vectors import WordVectors, word_vectors

ROOT = Path(__file__).parents[3]
DENIED = 77
PRIVATE = ("unshare", "--map-root-user", "--mount")

PROGRAMS: dict[str, Callable[[Path, Path], object]] = {
    "merge": lambda work, disk: power_programs.merge(work / "models", disk),
    "train": lambda work, disk: power_programs.train(WordVectors(), work / "vectors", disk),
    "run": lambda _, disk: power_programs.run(disk),
}


def witnessed(work: Path) -> None:
    """Run each program on a disk of our own, and leave both logs of it in `work`."""
    for name, program in PROGRAMS.items():
        disk = work / f"disk of {name}"
        disk.mkdir()
        with mounted(disk, work / f"{name} in the kernel"):
            with DiskRecorder(disk, syncing=True) as recorder:
                program(work, disk)
            (work / f"{name} in the process").write_bytes(pickle.dumps(recorder.log))


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the logs of all programs."""
    work = tmp_path_factory.mktemp("witness")
    skip_without_a_disk(work)
    power_programs.write_models(work / "models")
    word_vectors(work / "vectors")
    call = f"from {__name__} import witnessed, Path; witnessed(Path({str(work)!r}))"
    done = in_private(call)
    assert done.returncode == 0, done.stderr
    return work


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_process_and_the_kernel_saw_the_same(name: str, logs: Path) -> None:
    """The same names changed and the same syncs in one order, and at each sync the same data."""
    process: DiskLog = pickle.loads((logs / f"{name} in the process").read_bytes())
    kernel: DiskLog = pickle.loads((logs / f"{name} in the kernel").read_bytes())
    assert list(process.paths()) == list(by_call(kernel))
    assert synced(process) == synced(kernel)


def by_call(log: DiskLog) -> Iterator[tuple[str, ...]]:
    """What the kernel saw as a process sees it: safetensors writes a file under another name first."""
    for kind, *paths in log.paths():
        hidden = "/.tmp" in paths[0]
        if hidden and kind == "rename":
            yield "make file", paths[1]
        elif not hidden:
            yield kind, *paths


def synced(log: DiskLog) -> list[bytes]:
    """What each sync of a file made safe."""
    data: dict[int, bytes] = {}
    found = []
    for one in log.operations:
        if isinstance(one, Data):
            data[one.node] = one.content
        elif isinstance(one, Sync) and one.node in data:
            found.append(data[one.node])
    return found


def skip_without_a_disk(work: Path) -> None:
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("a disk of our own needs /dev/fuse")
    if not shutil.which("unshare"):
        pytest.skip("a disk of our own needs `unshare`, to be mounted for one process")
    place = work / "probe"
    place.mkdir()
    probe = in_private(
        "import errno, sys\n"
        "from tests.support.fuse_disk import mounted, Path\n"
        "try:\n"
        f"    with mounted(Path({str(place)!r}), Path({str(work / 'log')!r})): pass\n"
        "except OSError as error:\n"
        f"    sys.exit({DENIED} if error.errno in (errno.EPERM, errno.EACCES) else repr(error))"
    )
    if probe.returncode == DENIED or probe.stderr.startswith("unshare: "):
        pytest.skip(f"mounting a disk of our own is not allowed here {probe.stderr.strip()}")
    assert probe.returncode == 0, probe.stderr


def in_private(call: str) -> subprocess.CompletedProcess[str]:
    """Run Python where it may mount disks, which are gone with it."""
    path = os.pathsep.join([str(ROOT), *sys.path])
    return subprocess.run(
        [*PRIVATE, sys.executable, "-c", call],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
    )
