"""What samplers share that choose datasets by what a study of interactions found."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from emberge import EmbergeError, FileRef, Pool, Preflight, Problem, Sampler

from emberge_boom.samplers.members import Members
from emberge_boom.study.study import Study, read_study

__all__ = ["OfStudy"]


@dataclass(frozen=True, kw_only=True)
class OfStudy(Sampler):
    """Keep the datasets that a study of interactions points to.

    `of` is a step `interactions`, or what one left.
    """

    of: FileRef

    def members(self, study: Study) -> Members:
        """The datasets to keep.

        Raises:
            DataError: when the study has not what the options ask for.
        """
        raise NotImplementedError

    def told(self, study: Study) -> list[str]:
        """What `check` says of the study, as far as it bears on the choice."""
        raise NotImplementedError

    def resolved(self, locate: Callable[[FileRef], Path]) -> Sampler:
        return self.members(read_study(locate(self.of)))

    def check(self, context: Preflight) -> Iterable[Problem]:
        """What a study that is there already has to say.

        One that the recipe makes may have been left by an earlier run with other options, so that what does
        not fit it is a warning.
        """
        earlier = self.of.step is not None
        place = context.earlier_result(self.of) if earlier else context.data(self.of)
        if place is None:
            if earlier:
                told = f"known when {self.of} is done; `emberge check` with --out then says it"
                context.note(f"datasets by the study {self.of}", [told])
            return
        judged = context.warning if earlier else context.problem
        try:
            study = read_study(place)
            context.note(f"the study {self.of}", self.told(study))
            self.members(study)
        except EmbergeError as error:
            yield judged(str(error), "sampler")

    def select(self, pool: Pool, seed: int) -> Pool:
        raise EmbergeError(
            f"the study {self.of} was not read before datasets were chosen by it; ask for the resolved "
            "sampler"
        )
