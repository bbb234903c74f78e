"""What the models of a step are called among one another, where a recipe gives them no names."""

from __future__ import annotations

import re
from collections.abc import Sequence

from emberge import Model, ModelRef

__all__ = ["found_under", "labelled"]


def labelled(models: Sequence[ModelRef]) -> dict[str, ModelRef]:
    """The models by the last word of what they are called, or by number where that tells them not apart."""
    words = [re.sub(r"[^\w.=,-]+", "-", m.text.strip("./$").rpartition("/")[2]) for m in models]
    apart = len(set(words)) == len(words) and all(words)
    return {
        word if apart else str(number): model
        for number, (word, model) in enumerate(zip(words, models, strict=True))
    }


def found_under(label: str, models: Sequence[Model]) -> dict[str, Model]:
    """One model under its label, or each of several (`$run.checkpoints`) under a number beside it."""
    if len(models) == 1:
        return {label: models[0]}
    return {f"{label}-{number}": model for number, model in enumerate(models)}
