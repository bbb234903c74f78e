"""Small datasets in memory, for tests of training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emberge import DatasetInfo, Example, TaskKind

from tests.support.tiny import WORDS


@dataclass(frozen=True)
class InMemory:
    """A Dataset of given rows."""

    info: DatasetInfo
    rows: Sequence[Example]
    prompt: str = ""
    symmetric: bool = False
    fingerprint: str = "1"

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> Example:
        return self.rows[row]


def dataset(name: str, task: TaskKind, rows: Sequence[Example], **more: Any) -> InMemory:
    return InMemory(DatasetInfo(name, task, len(rows)), rows, fingerprint=str(len(rows)), **more)


def write_training_sets(folder: Path) -> None:
    """Write a set of retrieval and one of scored pairs, as `find.jsonl` and `alike.jsonl`."""
    for made in (retrieval(), similarity()):
        rows = []
        for one in made.rows:
            row: dict[str, Any] = {"anchor": one.anchor, "positive": one.positives[0]}
            if one.positive_scores:
                row["score"] = one.positive_scores[0]
            rows.append(json.dumps(row))
        (folder / f"{made.info.name}.jsonl").write_text("\n".join(rows) + "\n")


def retrieval(size: int = 40, name: str = "find", **more: Any) -> InMemory:
    """Pairs with two positives and, on every other row, one hard negative."""
    rows = [
        Example(
            f"find {_word(i)} {_word(i + 7)}",
            (f"{_word(i)} of the {_word(i + 7)} list", f"the {_word(i)} table"),
            (f"{_word(i + 3)} of a {_word(i + 11)}",) if i % 2 else (),
        )
        for i in range(size)
    ]
    return dataset(name, "retrieval", rows, **more)


def similarity(size: int = 24, name: str = "alike", **more: Any) -> InMemory:
    """Scored pairs."""
    rows = [
        Example(
            f"a {_word(i)} of {_word(i + 1)}",
            (f"the {_word(i)} in {_word(i + 2)}",),
            positive_scores=(i % 5 / 4,),
        )
        for i in range(size)
    ]
    return dataset(name, "sts", rows, symmetric=True, **more)


def texts(size: int = 40, name: str = "read", **more: Any) -> InMemory:
    """Single texts, every fourth longer than the 64 tokens that a tiny model takes."""
    rows = [
        Example(" ".join(_word(i * 3 + k * k) for k in range(90 if i % 4 == 3 else 4 + i % 9)))
        for i in range(size)
    ]
    return dataset(name, "text", rows, **more)


def _word(i: int) -> str:
    return WORDS[i * 5 % len(WORDS)]
