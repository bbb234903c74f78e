"""The sampler that keeps a pair of datasets that harm each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from emberge import Count, DataError

from emberge_boom.samplers.study_sampler import Members, StudySampler
from emberge_boom.study.study import Study

_PLACES = {"first": (0,), "second": (1,), "both": (0, 1)}


@dataclass(frozen=True, kw_only=True)
class Conflict(StudySampler):
    """The datasets of a conflicting pair, to train them jointly or alone (BOOM, arXiv:2602.05787).

    `of` is a study of interactions (`$id` of a step `interactions`, or the folder of a finished one). `rank`
    1 is the pair of datasets whose loss rises most when they are trained together.
    This sampler only selects rows: end the chain with a sampler that makes batches, such as `batch_shuffle`.

    Example:
        study:
          interactions: {model: ./base, data: ./datasets.yaml, loss: infonce}
        joint:
          train:
            model: ./base
            data: ./datasets.yaml
            loss: infonce
            sampler: [{conflict: {of: $study, rank: 1}}, batch_shuffle]
    """

    rank: Count = 1
    """Rank of the pair, from 1 for the strongest conflict."""
    member: Literal["both", "first", "second"] = "both"
    """Both datasets, or only one of them in alphabetical order."""

    def members(self, study: Study) -> Members:
        pairs = study.conflicts
        if self.rank > len(pairs):
            raise DataError(f"there is no pair {self.rank}: the study has {len(pairs)}")
        pair = pairs[self.rank - 1].pair
        names = tuple(pair[place] for place in _PLACES[self.member])
        return Members(names=names, known=study.names, label=f"conflict {self.rank}")
