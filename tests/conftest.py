"""Fixtures that every room's tests share."""

from __future__ import annotations

import gc
import os
import signal
from collections import Counter
from collections.abc import Generator
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("EMBERGE_HASH_CACHE", "never")  # the user's own is no test's business

# A shell without job control starts what runs in the background with Ctrl-C ignored, which children inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest
from hypothesis import HealthCheck, settings

from tests.support import skips, tiny
from tests.support.places import ROOT

# How long an example takes is a matter of the machine.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage while tests are collected, and never among their millions of objects."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(optionalhook=True)  # xdist is not always there
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return one worker for each core; each spends 12 to 20 CPU seconds on imports and collecting."""
    return os.cpu_count() or 1


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List every reason for a skipped test, and mark those that a package would mend."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = [skips.reason_of(report.longrepr) for report in skipped]
    for reason, count in sorted(Counter(reasons).items()):
        wrong = (
            " (install it: nothing is skipped for a package)" if skips.not_allowed([reason]) else ""
        )
        terminalreporter.write_line(f"skipped {count}: {reason}{wrong}")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run that skipped tests for another reason than those allowed, where asked to."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not os.environ.get(skips.STRICT):
        return
    reasons = [skips.reason_of(report.longrepr) for report in reporter.stats.get("skipped", [])]
    if skips.not_allowed(reasons) and not session.exitstatus:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random BERT as a SentenceTransformers folder; do not write into it."""
    return tiny.checkpoint(tmp_path_factory.mktemp("base") / "bert")


@pytest.fixture(scope="session")
def berts(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three noisy siblings of `bert`; do not write into them."""
    root = tmp_path_factory.mktemp("siblings")
    return [tiny.checkpoint(root / f"sibling{i}", seed=i, like=bert) for i in (1, 2, 3)]


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The real all-MiniLM-L6-v2; do not write into it."""
    return tiny.minilm()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real data sets beside the project, for benchmarks and reproductions."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("needs the data sets in ../shared/data beside the project")
    return folder
