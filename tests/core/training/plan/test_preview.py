"""The rows and steps that a training will have, told before it runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from emberge import DataEntry, DataError, DataRef, PerDataset
from emberge.training import FitOptions, preview_training
from emberge_data import JsonLines
from emberge_train import BatchShuffle, InfoNCE


def preview(path: Path, **options: Any) -> Any:
    losses = options.pop("losses", PerDataset(default=(InfoNCE(),)))
    return preview_training(
        [DataEntry(path=DataRef(str(path)))],
        readers=(JsonLines(),),
        resolve=lambda reference: Path(reference.text),
        sampler=(BatchShuffle(batch_size=PerDataset(default=4)),),
        losses=losses,
        options=FitOptions(**options),
        seed=0,
    )


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    path = tmp_path / "find.jsonl"
    rows = [{"query": f"query {row}", "pos": [f"text {row}"]} for row in range(20)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_steps_are_counted_from_the_rows(pairs: Path) -> None:
    assert preview(pairs, epochs=2).steps == 10


@pytest.mark.parametrize(
    "options",
    [
        {"losses": PerDataset(default=(InfoNCE(),), by_dataset={"fnd": (InfoNCE(),)})},
        {"max_length": PerDataset(by_dataset={"fnd": 8})},
    ],
)
def test_unknown_datasets_in_options_are_refused(pairs: Path, options: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=r"by_dataset names 'fnd'.*did you mean 'find'"):
        preview(pairs, **options)
