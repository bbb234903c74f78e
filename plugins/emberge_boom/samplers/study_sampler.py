"""The samplers that choose datasets by a study of interactions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from emberge import DataError, EmbergeError, FileRef, Pool, Sampler, suggest

from emberge_boom.study.study import Study, read_study


@dataclass(frozen=True, kw_only=True)
class StudySampler(Sampler):
    """The datasets that are chosen by a study of interactions.

    `of` is a step `interactions`, or the folder of a finished one.
    """

    of: FileRef

    def members(self, study: Study) -> Members:
        """Return the sampler that keeps the chosen datasets.

        Raises:
            DataError: if the study does not have the cluster or pair that the options ask for.
        """
        raise NotImplementedError

    def resolved(self, locate: Callable[[FileRef], Path]) -> Sampler:
        return self.members(read_study(locate(self.of)))

    def select(self, pool: Pool, seed: int) -> Pool:
        raise EmbergeError(f"the study {self.of} was not read; ask for the resolved sampler")


@dataclass(frozen=True, kw_only=True)
class Members(Sampler):
    """Sampler of the datasets `names`, out of the study's `known` ones; `label` describes the choice."""

    names: tuple[str, ...]
    known: tuple[str, ...]
    label: str = ""

    def select(self, pool: Pool, seed: int) -> Pool:
        """Return the pool with only the chosen datasets.

        Raises:
            DataError: if the datasets of the training differ from those of the study.
        """
        names_in_pool = [info.name for info in pool]
        for name in self.names:
            if name not in names_in_pool:
                hint = suggest(name, names_in_pool) or f"; there are {', '.join(names_in_pool)}"
                raise DataError(
                    f"{self.label} holds '{name}', which is no dataset of this training{hint}"
                )
        for name in names_in_pool:
            if name not in self.known:
                raise DataError(
                    f"dataset '{name}' of this training was not in the study, which knows "
                    f"{', '.join(self.known)}; leave it out, or study it too"
                )
        return {info: rows for info, rows in pool.items() if info.name in self.names}
