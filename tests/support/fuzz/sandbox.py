"""One case of the fuzzer: a folder of its own, a fork that runs the command, and the verdict."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

HANG = 20.0
"""Seconds of wall time after which a case is a hang."""
MEMORY = 2 << 30
"""Bytes that a case may have in memory at most, libraries included."""
_FILE = 1 << 30
_SPACE = 24 << 30
_UNSOUND = 90
_ESCAPED = 91
_CRASHED = 92

SECRET = "the private notes of somebody else"


@dataclass(frozen=True)
class Place:
    """The folders of a case: `given` is a stranger's, `out` and `tmp` are emberge's, `outside` is private."""

    root: Path

    @property
    def given(self) -> Path:
        return self.root / "given"

    @property
    def out(self) -> Path:
        return self.root / "out"

    @property
    def outside(self) -> Path:
        return self.root / "outside"

    @property
    def home(self) -> Path:
        return self.root / "home"

    def make(self) -> None:
        """Create the folders, with private files that nothing may change or copy."""
        shutil.rmtree(self.root, ignore_errors=True)
        for folder in (self.given, self.out, self.outside / "deep", self.home, self.root / "tmp"):
            folder.mkdir(parents=True)
        for folder in (self.outside, self.outside / "deep", self.home):
            (folder / "secret.txt").write_text(SECRET)
        (self.home / ".bashrc").write_text("# mine\n")


@dataclass(frozen=True)
class Case:
    """Words of one command, or of several one after the other, and the model that success leaves."""

    words: Sequence[Sequence[str]]
    opens: Path | None = None
    may_change: tuple[Path, ...] = ()
    """Files of `given` that the command is asked to write."""
    patient: bool = False
    """Waiting for a server is no hang as long as SIGINT ends it within 2 s."""
    then: Callable[[], None] = lambda: None
    """Called after commands that succeeded, in their process."""


@dataclass
class Outcome:
    """How a case ended: `done`, `refused`, or the kind of fault."""

    kind: str
    seconds: float = 0.0
    cpu: float = 0.0
    memory: int = 0
    text: str = ""


@dataclass
class Sandbox:
    """Runs cases in forks of this process, which has loaded what they need."""

    scratch: Path
    cache: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    debug: bool = False
    """Show where errors come from."""

    def run(self, name: str, build: Callable[[Place], Case]) -> Outcome:
        """Build the case in a fresh folder, run it in a fork, and judge how it ended."""
        place = Place(self.scratch / name)
        place.make()
        case = build(place)
        if self.debug:
            case = replace(case, words=[[*words, "--debug"] for words in case.words])
        before = _snapshot(place, case)
        outcome = self._fork(place, case)
        if outcome.kind in ("done", "refused"):
            changed = sorted(before.items() ^ _snapshot(place, case).items())
            leaked = _leaks(place.out)
            if changed:
                outcome.kind, outcome.text = "outside", f"changed: {changed[0][0]}\n{outcome.text}"
            elif leaked:
                outcome.kind, outcome.text = "leak", f"copied into {leaked}\n{outcome.text}"
        shutil.rmtree(place.root, ignore_errors=True)
        return outcome

    def _fork(self, place: Place, case: Case) -> Outcome:
        log = place.root / "log"
        sys.stdout.flush()
        sys.stderr.flush()
        begun = time.monotonic()
        child = os.fork()
        if child == 0:
            code = _CRASHED
            try:
                self._enter(place, log)
                code = _run(case)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        status, usage, waited = _wait(child, begun)
        outcome = Outcome(
            "done",
            time.monotonic() - begun,
            usage.ru_utime + usage.ru_stime,
            usage.ru_maxrss * 1024,
            log.read_text(errors="replace") if log.is_file() else "",
        )
        outcome.kind = _verdict(case, status, waited, outcome)
        return outcome

    def _enter(self, place: Place, log: Path) -> None:
        os.setsid()
        os.chdir(place.given)
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - whatever stood there before
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
        os.environ.update(self.environment)
        os.environ.update(
            HOME=str(place.home), XDG_CACHE_HOME=str(self.cache), TMPDIR=str(place.root / "tmp")
        )
        tempfile.tempdir = None
        resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE, _FILE))
        resource.setrlimit(resource.RLIMIT_AS, (_SPACE, _SPACE))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background has none
        sys.addaudithook(_watch)


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    """End the process where it starts a foreign program or calls another machine."""
    if event == "socket.connect":
        address = arguments[1]
        if isinstance(address, tuple) and address[0] not in ("127.0.0.1", "::1", "localhost"):
            _escape(f"connects to {address}")
    elif event in ("os.system", "os.exec") or (
        event == "subprocess.Popen" and arguments[0] not in (None, sys.executable)
    ):
        _escape(f"starts {arguments[:2]}")


def _escape(what: str) -> None:
    os.write(2, f"escaped: {what}\n".encode())
    os._exit(_ESCAPED)


def _run(case: Case) -> int:
    """Run the commands and return the last exit code, or the fuzzer's own of a model that is unsound."""
    from emberge.cli.main import main

    code = 0
    for words in case.words:
        code = main(list(words))
    if code == 0 and case.opens is not None:
        try:
            _open(case.opens)
        except Exception:
            traceback.print_exc()
            return _UNSOUND
    if code == 0:
        case.then()
    return code


def _open(folder: Path) -> None:
    """Open a result as its users would, and embed with it."""
    import numpy as np
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(
        str(folder), device="cpu", trust_remote_code=False, local_files_only=True
    )
    vectors = model.encode(["a list of names", "open the file"], show_progress_bar=False)
    if not np.isfinite(vectors).all() or not np.linalg.norm(vectors, axis=1).all():
        raise ValueError("its embeddings are NaN, infinite or zero")


def _wait(child: int, begun: float) -> tuple[int, Any, str]:
    """Wait for the child; after 20 s interrupt it, 2 s later kill it and all that it started."""
    waited = ""
    while True:
        done, status, usage = os.wait4(child, os.WNOHANG)
        if done:
            return status, usage, waited
        passed = time.monotonic() - begun
        if passed > HANG and not waited:
            waited = "interrupted"
            os.kill(child, signal.SIGINT)
        elif passed > HANG + 2 and waited == "interrupted":
            waited = "killed"
            os.killpg(child, signal.SIGKILL)
        time.sleep(0.01 if passed < 1 else 0.05)


def _verdict(case: Case, status: int, waited: str, outcome: Outcome) -> str:
    code = os.waitstatus_to_exitcode(status)
    if waited and not (case.patient and waited == "interrupted"):
        return "hang"
    if code == _UNSOUND:
        return "unsound"
    if code == _ESCAPED:
        return "escaped"
    if code < 0 or code == _CRASHED:
        return "crash"
    if (
        "Traceback (most recent call last)" in outcome.text
        or "(--debug shows where)" in outcome.text
    ):
        return "traceback"
    if outcome.memory > MEMORY:
        return "memory"
    return "done" if code == 0 else "refused"


def _snapshot(place: Place, case: Case) -> dict[str, tuple[int, ...]]:
    """Return mode, size and time of everything in the folders that are not emberge's to write."""
    found: dict[str, tuple[int, ...]] = {}
    allowed = (*case.may_change, place.home / ".cache")
    for folder in (place.given, place.outside, place.home):
        for where, folders, files in os.walk(folder):
            for name in (*folders, *files):
                path = Path(where, name)
                if any(path.is_relative_to(one) for one in allowed):
                    continue
                status = path.lstat()
                times = () if path.is_dir() else (status.st_size, status.st_mtime_ns)
                found[str(path.relative_to(place.root))] = (status.st_mode, *times)
    return found


def _leaks(out: Path) -> str:
    """Return the first file that emberge made which has a private file's content."""
    for where, _, files in os.walk(out):
        for path in (Path(where, name) for name in files):
            private = path.is_file() and not path.is_symlink() and path.stat().st_size < 1 << 20
            if private and SECRET.encode() in path.read_bytes():
                return str(path.relative_to(out))
    return ""
