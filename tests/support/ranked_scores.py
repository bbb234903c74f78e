"""A score that ranks can be sent: what the model of a step is worth, by a list, and who asked."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from safetensors.torch import load_file


def score(told: Sequence[float], asked: Path, folder: Path, step: int) -> float:
    """The score of a step, every second one being scored; writes down which rank took it."""
    assert load_file(folder / "model.safetensors")
    with asked.open("a") as file:
        file.write(f"{os.environ.get('RANK', '0')}:{step}\n")
    return told[step // 2 - 1]
