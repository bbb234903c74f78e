"""Models that a training keeps beside its states, as inputs of later merges."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from emberge.training.options import FitOptions
from emberge.training.plan import BatchPlan
from emberge.training.saves import clear_torn, publish
from emberge.training.watch import link_or_copy

__all__ = ["KeptModels"]


@dataclass(frozen=True)
class KeptModels:
    """The models of some steps in `folder`, of which the newest `keep_last` stay."""

    folder: Path
    steps: frozenset[int]
    keep_last: int

    @classmethod
    def of(cls, plan: BatchPlan, options: FitOptions, folder: Path) -> KeptModels:
        """Those that the options ask for: every `save_steps`, or at the ends of epochs."""
        steps: frozenset[int] = frozenset()
        if options.keep_last and options.save_steps is not None:
            steps = frozenset(range(options.save_steps, plan.steps + 1, options.save_steps))
        elif options.keep_last:
            steps = frozenset(plan.starts[1:])
        return cls(folder, steps, options.keep_last)

    def clear_torn(self) -> None:
        """Remove what a killed process left half-written."""
        clear_torn(self.folder)

    def keep(self, step: int, save: Callable[[Path], None]) -> None:
        """Write the model of a step, and drop what is older than the newest few."""
        publish(self.folder / f"step-{step}", save)
        for old in self._by_step()[: -self.keep_last]:
            shutil.rmtree(old)

    def hand_over(self, folder: Path) -> tuple[Path, ...]:
        """Put the kept models into a result; the originals stay until the step is done."""
        # A power cut may have brought back, in part, what was dropped before.
        kept = self._by_step()[-self.keep_last :] if self.keep_last else []
        for path in kept:
            target = folder / "checkpoints" / path.name
            shutil.copytree(path, target, copy_function=link_or_copy, dirs_exist_ok=True)
        return tuple(Path("checkpoints") / path.name for path in kept)

    def _by_step(self) -> list[Path]:
        found = self.folder.glob("step-*") if self.folder.is_dir() else ()
        return sorted(found, key=lambda p: int(p.name.removeprefix("step-")))
