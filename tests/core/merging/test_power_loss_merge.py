"""A merge whose power is cut goes on or begins again, and a published model is whole.

What a power cut may leave is described in `tests/support/power_cuts.py`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import emberge.merging.streaming.stream as journal
import pytest

from tests.support.disk_recorder import DiskRecorder, syncs_skipped
from tests.support.power_cuts import Cut, DiskLog, contents
from tests.support.power_programs import merge, write_models

JOURNAL = ".out.partial/journal.jsonl"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(autouse=True)
def _quick() -> Iterator[None]:
    with syncs_skipped():
        yield


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "time", journal.time)  # is put back


def recorded(models: Path, disk: Path) -> DiskLog:
    with DiskRecorder(disk) as recorder:
        merge(models, disk)
        recorder.announce("merged")
    return recorder.log


class Undisturbed:
    """A merge that nobody disturbs, by which others are judged."""

    def __init__(self, models: Path, disk: Path) -> None:
        self.models = models
        self.tensors = merge(models, disk)
        self.expected = contents(disk / "out")

    def faults(self, cut: Cut, place: Path) -> Iterator[str]:
        """Merge again on a disk whose power was cut; yield what is wrong then."""
        cut.restore(place)
        out = place / "out"
        if cut.announced and not out.exists():
            yield f"{cut}: was announced and is lost"
        if not out.exists():
            computed = merge(self.models, place)
            # Without a journal, which goes right before the publishing, all is computed again.
            left = self.tensors - (done(cut.safe) if JOURNAL in cut.tree else 0)
            if computed > left:
                yield f"{cut}: computed {computed} tensors, and {left} were left"
        if contents(out) != self.expected:
            yield f"{cut}: other bytes"
        if [path.name for path in place.iterdir()] != ["out"]:
            yield f"{cut}: leaves something behind"


def done(tree: object) -> int:
    """The number of tensors that a disk's journal calls done."""
    found = tree.get(JOURNAL)  # type: ignore[attr-defined]
    return found.content.count(b"\n") - 1 if found is not None and found.content else 0


def test_a_merge_whose_power_is_cut_ends_in_the_same_bytes(models: Path, tmp_path: Path) -> None:
    """Published means whole, announced means there, and what the journal has is not computed again."""
    (tmp_path / "whole").mkdir()
    (tmp_path / "disk").mkdir()
    judge = Undisturbed(models, tmp_path / "whole")
    log = recorded(models, tmp_path / "disk")
    assert contents(tmp_path / "disk" / "out") == judge.expected
    cuts = list(log.cuts(draws=2, most=120))
    faults = log.faults(partial(judge.faults, place=tmp_path / "place"), cuts)
    assert not faults, faults
    assert len({done(cut.safe) for cut in cuts}) > 4, "names were journalled meanwhile"
    assert {"out" in cut.tree for cut in cuts} == {True, False}


def test_a_merge_whose_power_is_cut_twice_does_nothing_again(models: Path, tmp_path: Path) -> None:
    """The second run takes away what the first left of a torn line, or a third could not read its own."""
    (tmp_path / "whole").mkdir()
    (tmp_path / "disk").mkdir()
    judge = Undisturbed(models, tmp_path / "whole")
    log = recorded(models, tmp_path / "disk")
    torn = [cut for cut in log.cuts(draws=0) if torn_journal(cut)]
    assert len(torn) > 3
    draw = random.Random(0)
    for first in draw.sample(torn, 3):
        disk = first.restore(tmp_path / "again")
        again = [cut for cut in recorded(models, disk).cuts(draws=0) if JOURNAL in cut.tree]
        some = draw.sample(again, 12)
        faults = log.faults(partial(judge.faults, place=tmp_path / "place"), some)
        assert not faults, f"after {first}:\n{faults}"


def torn_journal(cut: Cut) -> bool:
    """Whether a disk's journal has lines that are whole and one that is not."""
    content = cut.tree[JOURNAL].content if JOURNAL in cut.tree else b""
    last = content.rpartition(b"\n")[2]
    return done(cut.safe) > 0 and (last != b"" or b"\0" in content)


@pytest.mark.slow
def test_a_merge_whose_power_is_cut_ends_in_the_same_bytes_in_many_more_ways(
    models: Path, tmp_path: Path
) -> None:
    (tmp_path / "whole").mkdir()
    (tmp_path / "disk").mkdir()
    judge = Undisturbed(models, tmp_path / "whole")
    log = recorded(models, tmp_path / "disk")
    faults = log.faults(partial(judge.faults, place=tmp_path / "place"), draws=10, everywhere=True)
    assert not faults, faults
