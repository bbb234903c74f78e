"""The selection of datasets that a study named."""

from __future__ import annotations

from dataclasses import dataclass

from emberge import DataError, Pool, Sampler, suggest

__all__ = ["Members"]


@dataclass(frozen=True, kw_only=True)
class Members(Sampler):
    """The selection of datasets by name, all `known` to a study; `label` is their name together."""

    names: tuple[str, ...]
    known: tuple[str, ...]
    label: str = ""

    def select(self, pool: Pool, seed: int) -> Pool:
        """Return the pool without other datasets.

        Raises:
            DataError: where the training's datasets are not those of the study.
        """
        there = [info.name for info in pool]
        for name in self.names:
            if name not in there:
                hint = suggest(name, there) or f"; there are {', '.join(there)}"
                raise DataError(
                    f"{self.label} holds '{name}', which is no dataset of this training{hint}"
                )
        for name in there:
            if name not in self.known:
                raise DataError(
                    f"dataset '{name}' of this training was not in the study, which knows "
                    f"{', '.join(self.known)}; leave it out, or study it too"
                )
        return {info: rows for info, rows in pool.items() if info.name in self.names}
