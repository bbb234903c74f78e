"""A trainee without texts: each step is a batch of one target, towards which parameters are pulled."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from emberge.training import PlannedBatch, PlannedPart, Trainee


class Pull(Trainee):
    """Trainee whose batches have one part, of the row with the step's number."""

    @property
    def tasks(self) -> Mapping[str, str]:
        return {"points": "pull"}

    def batch(self, step: int) -> PlannedBatch:
        part = PlannedPart("points", np.array([step]), in_batch=False)
        return PlannedBatch(step, 0, 0, (part,))
