"""Size of a dataset as far as it is known before a run: rows, texts of a row, tokens of a text."""

from __future__ import annotations

from dataclasses import dataclass

from emberge.contracts import TaskKind


@dataclass(frozen=True)
class SetSize:
    """The size of a dataset as far as it is known before the run.

    `rows` are at most those that its entry states, `negatives` the most that a row can have; None where
    neither the entry nor its first rows show them. `query_tokens` and `document_tokens` are about the tokens
    of an anchor and of another text on average; None where no text was looked at.
    """

    name: str
    place: str
    task: TaskKind | None = None
    rows: int | None = None
    negatives: int | None = None
    query_tokens: float | None = None
    document_tokens: float | None = None

    def count_query_tokens(self, longest: int | None) -> float | None:
        """Return the tokens of an anchor, at most `longest`; `longest` if no text was looked at."""
        return _limit_tokens(self.query_tokens, longest)

    def count_document_tokens(self, longest: int | None) -> float | None:
        """Return the tokens of a positive or negative, by the rule of `count_query_tokens`."""
        return _limit_tokens(self.document_tokens, longest)


def _limit_tokens(average: float | None, longest: int | None) -> float | None:
    if longest is None or average is None:
        return average if longest is None else float(longest)
    return min(average, float(longest))
