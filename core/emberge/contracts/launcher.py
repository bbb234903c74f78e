"""Launchers, which run the steps of a recipe in other processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from emberge.contracts.option import Count


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """A launcher, which runs each step in a process as soon as its inputs are finished.

    Its fields are the options in `--launcher 'name: {options}'`. They decide the speed and are never in a
    recipe. The exception is `threads`, which every launcher has: float32 sums change with the number of
    threads that add them up. Every step gets the same number of threads, whatever runs at the same time and
    however many cores there are. The same recipe then gives the same bytes under each launcher, with any
    number of workers, and in a run without a launcher on as many threads (`OMP_NUM_THREADS`). A training that
    began with another number of threads keeps that number. Only a training that finds little free memory
    takes smaller chunks, as it does without a launcher; a `token_budget` fixes the size of chunks too.
    """

    threads: Count = 1
    """CPU threads of a step's sums; merges also use idle cores, which changes no byte."""

    def run_steps(self, run: Any) -> None:
        """Run every step of a `RecipeRun` that can run; errors of steps are recorded in `run`.

        `emberge_local.PoolLauncher` does so by a pool of processes, which a launcher opens.

        Raises:
            EmbergeError: if the launcher cannot start.
        """
        raise NotImplementedError
