"""Course of a fine-tuning: what it has learned so far, kept so that a killed one goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from emberge.training import latest_state, save_state
from torch import Tensor

__all__ = ["Course"]

_WORST = -2.0  # below every metric
_MOMENTS = {"mean": "exp_avg", "square": "exp_avg_sq"}


@dataclass
class Course:
    """Steps taken, the curve so far, and the state that was best on development data (`dev`, at step `best`).

    `losses` are those since the last point of the curve. `weights` are copies of the best state's.
    """

    step: int = 0
    losses: list[float] = field(default_factory=list)
    curve: list[tuple[int, float, float]] = field(default_factory=list)
    dev: float = _WORST
    best: int = 0
    weights: dict[str, Tensor] = field(default_factory=dict)

    def look(self, dev: float, trained: Mapping[str, Tensor]) -> None:
        """Add a point to the curve, and keep a copy of the weights where none were better."""
        self.curve.append((self.step, sum(self.losses) / len(self.losses), dev))
        self.losses.clear()
        if dev > self.dev:
            self.dev, self.best = dev, self.step
            self.weights = {name: p.detach().to("cpu", copy=True) for name, p in trained.items()}

    def restore_best(self, trained: Mapping[str, Tensor]) -> None:
        """Put the best weights back."""
        _copy(self.weights, trained)

    def save(
        self, folder: Path, trained: Mapping[str, Tensor], optimizer: torch.optim.Optimizer
    ) -> None:
        """Write the course, the weights and the optimizer's moments into a folder of states."""
        tensors = {f"now.{name}": p for name, p in trained.items()}
        tensors |= {f"best.{name}": p for name, p in self.weights.items()}
        for name, weight in trained.items():
            for word, key in _MOMENTS.items():
                if key in optimizer.state.get(weight, {}):
                    tensors[f"{word}.{name}"] = optimizer.state[weight][key]
        facts = {name: getattr(self, name) for name in ("losses", "curve", "dev", "best")}
        save_state(folder, self.step, tensors, facts)

    @classmethod
    def load(
        cls, folder: Path, trained: Mapping[str, Tensor], optimizer: torch.optim.Optimizer
    ) -> Course:
        """Return the newest course in a folder, its weights and moments put back; a new one without any."""
        state = latest_state(folder)
        if state is None:
            return cls()
        _copy(_part(state.tensors, "now"), trained)
        for name, weight in trained.items():
            own = {k: state.tensors.get(f"{word}.{name}") for word, k in _MOMENTS.items()}
            moments = {k: value.to(weight.device) for k, value in own.items() if value is not None}
            if moments:
                optimizer.state[weight] = {"step": torch.tensor(float(state.step)), **moments}
        facts = {**state.facts, "curve": [tuple(point) for point in state.facts["curve"]]}
        return cls(step=state.step, weights=_part(state.tensors, "best"), **facts)


def _part(tensors: Mapping[str, Tensor], word: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(f"{word}."): value
        for name, value in tensors.items()
        if name.startswith(f"{word}.")
    }


def _copy(values: Mapping[str, Tensor], into: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, value in values.items():
            into[name].copy_(value)
