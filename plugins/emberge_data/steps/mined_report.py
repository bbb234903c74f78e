"""Description of a set's mined negatives: their number, cosines, what `margin` left out, and examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from emberge.wording import prose, table_lines

from emberge_data.steps.negative_choice import (
    EMPTY,
    compute_ceilings,
    find_passing,
    highest_positives,
    nearest_passages,
)
from emberge_data.steps.outcome import shorten_text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from emberge_data.steps.kept_blocks import KeptBlocks
    from emberge_data.steps.listed_set import ArrangedSet
    from emberge_data.steps.negative_choice import ChoiceOptions, Passages
    from emberge_data.steps.search.exact import SearchMemory
    from emberge_data.steps.search.found_passages import FoundPassages
    from emberge_data.steps.search.nearest import NearestDocuments
    from emberge_data.steps.search.space import Space


# Queries whose nearest passages are searched once more without the threshold.
LOOKED_AT = 1000
# The number of example queries in the report, and of negatives shown for each.
SHOWN_QUERIES, SHOWN_NEGATIVES = 3, 3
# Queries whose cosines are computed at once.
_BLOCK = 4096
# Share of tied scores that is worth a warning.
_MANY_TIES = 0.1
_QUANTILES = {"lowest": 0.0, "5 %": 0.05, "median": 0.5, "95 %": 0.95, "highest": 1.0}


def _measure_ties(documents: NearestDocuments) -> float:
    """Return the share of the found scores that equal another of the same query."""
    import numpy as np

    found = documents.places != EMPTY
    equal = (documents.scores[:, 1:] == documents.scores[:, :-1]) & found[:, 1:]
    tied = np.pad(equal, ((0, 0), (0, 1))) | np.pad(equal, ((0, 0), (1, 0)))
    return float(tied.sum() / max(1, found.sum()))


@dataclass(frozen=True, eq=False)
class MinedSet:
    """A set with its mined negatives: document numbers [queries, count] in blocks, padded with -1.

    `spaces` and `teachers` have the embedding space and the name of each teacher.
    """

    arranged: ArrangedSet
    spaces: Sequence[Space | FoundPassages]
    teachers: Sequence[str]
    passages: Passages
    blocks: KeptBlocks

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Number of mined negatives of each query."""
        import numpy as np

        return np.concatenate([(block != EMPTY).sum(axis=1) for block in self.blocks])

    def count_sentence(self) -> str:
        """Return how many rows have negatives, and how many."""
        import numpy as np

        counts = self.counts[self.arranged.query_of]
        rows = len(counts)
        counts = counts[counts > 0]
        low, middle, high = np.quantile(counts, [0, 0.5, 1], method="nearest").tolist()
        each = f"{high:,} a row" if low == high else f"{low:,} to {high:,} a row, median {middle:,}"
        return (
            f"{self.arranged.name}: {len(counts):,} of {rows:,} rows have mined negatives, "
            f"{int(counts.sum()):,} in all, {each}."
        )

    def describe_ranks(
        self, choice: ChoiceOptions, limits: SearchMemory, warn: Callable[[str], None]
    ) -> list[str]:
        """Return how many queries have a positive among the first passages, and what `margin` left out.

        `warn` gets the sentence on teachers of which more than a tenth of the scores are tied.

        Where there are more than `LOOKED_AT` queries, so many of them are searched.
        """
        import numpy as np

        last = min(choice.ranks[1] if choice.ranks else choice.count, self.passages.size)
        query_count = len(self.arranged.queries)
        places = np.linspace(0, query_count - 1, min(LOOKED_AT, query_count))
        queries = np.unique(places.astype(int))
        excluded = self.passages.excluded
        found = nearest_passages(self.spaces, queries, last, excluded=excluded, limits=limits)
        seen = "all" if len(queries) == query_count else f"{len(queries):,} of the"
        sentences = [self._describe_reach(found, queries, last)]
        if choice.margin is not None:
            sentences.append(self._describe_margin(found, queries, choice, last, seen))
        for documents, teacher in zip(found, self.teachers, strict=True):
            if (tied := _measure_ties(documents)) > _MANY_TIES:
                sentences.append(
                    f"{self.arranged.name}: {tied:.0%} of the scores of nearest passages by {teacher} are "
                    "tied, and the order of the file decides among them; the teacher does not tell "
                    "these passages apart."
                )
                warn(sentences[-1])
        return sentences

    def _describe_reach(
        self,
        found: Sequence[NearestDocuments],
        queries: NDArray[np.int64],
        last: int,
    ) -> str:
        """Return how many queries have a positive among their first `last` passages, by each teacher."""
        counts = []
        for space, documents, teacher in zip(self.spaces, found, self.teachers, strict=True):
            best = highest_positives(space, queries, self.passages.positives)
            # Equal scores count against the positive, as there may be more of them than were listed.
            count = int(((documents.scores >= best[:, None]).sum(axis=1) < last).sum())
            by = f" by {teacher}" if len(self.teachers) > 1 else ""
            counts.append(f"{count:,} ({count / len(queries):.1%}){by}")
        listed = ", ".join(counts)
        return (
            f"{self.arranged.name}: {listed} of {len(queries):,} queries have a positive among "
            f"the first {last:,} passages."
        )

    def _describe_margin(
        self,
        found: Sequence[NearestDocuments],
        queries: NDArray[np.int64],
        choice: ChoiceOptions,
        last: int,
        seen: str,
    ) -> str:
        """Return how many of the found candidates are above the threshold."""
        margin, first = choice.margin or 0.0, choice.ranks[0] if choice.ranks else 1
        ceilings = compute_ceilings(self.spaces, queries, self.passages.positives, margin)
        candidates = left_out = 0
        for documents in found:
            ranked = documents.places[:, first - 1 :]
            passes = find_passing(self.spaces, queries, ranked, ceilings)
            candidates += int((ranked != EMPTY).sum())
            left_out += int(((ranked != EMPTY) & ~passes).sum())
        share = left_out / max(1, candidates)
        return (
            f"{self.arranged.name}: of the {candidates:,} nearest passages of {seen} queries (ranks {first} "
            f"to {last}, without their positives), margin {margin:g} left out {left_out:,} ({share:.1%})."
        )

    def describe_cosines(self) -> list[str]:
        """Return a Markdown table: quantiles of each teacher's cosine of negatives and of positives."""
        import numpy as np

        rows = []
        for space, teacher in zip(self.spaces, self.teachers, strict=True):
            for side, scores in self._measure_cosines(space).items():
                cells = ["" for _ in _QUANTILES]
                if len(scores):
                    cells = [f"{x:.3f}" for x in np.quantile(scores, list(_QUANTILES.values()))]
                rows.append([teacher, side, f"{len(scores):,}", *cells])
        head = [self._by, "pairs of a query and", "number", *_QUANTILES]
        return table_lines(head, rows, "ll" + "r" * (len(head) - 2))

    @property
    def _by(self) -> str:
        """Heading of the teachers' names."""
        from emberge_data.steps.search.space import Space

        are_cosines = all(isinstance(space, Space) for space in self.spaces)
        return "cosine by" if are_cosines else "score by"

    def _measure_cosines(self, space: Space | FoundPassages) -> dict[str, NDArray[np.float32]]:
        import numpy as np

        negatives, positives = [], []
        first = 0
        for places in self._list_pieces():
            queries = np.arange(first, first + len(places))
            first += len(places)
            rows, columns = np.nonzero(places != EMPTY)
            documents = places[rows, columns]
            negatives.append(space.scores(queries[rows], documents).astype(np.float32))
            rows, documents = self.passages.positives.pairs(queries)
            positives.append(space.scores(queries[rows], documents).astype(np.float32))
        return {"a negative": np.concatenate(negatives), "a positive": np.concatenate(positives)}

    def _list_pieces(self) -> Iterator[NDArray[np.int64]]:
        """Yield the negatives of a few thousand queries at once, in order."""
        for block in self.blocks:
            yield from (block[row : row + _BLOCK] for row in range(0, len(block), _BLOCK))

    def describe_examples(self) -> list[str]:
        """Return a Markdown list of a few queries, each with its document and its nearest negatives."""
        import numpy as np

        with_negatives = np.flatnonzero(self.counts)
        chosen = np.linspace(0, len(with_negatives) - 1, min(SHOWN_QUERIES, len(with_negatives)))
        lines = []
        for query in with_negatives[chosen.astype(int)]:
            lines.append(f"* {prose(shorten_text(self.arranged.queries[int(query)]))}")
            row = self.blocks[int(query)]
            lines += self._list_documents(
                query, self.passages.positives[int(query)][:1], "its document"
            )
            lines += self._list_documents(query, row[row != EMPTY], "negative")
        return lines

    def _list_documents(self, query: int, places: NDArray[np.int64], word: str) -> list[str]:
        """Return the nearest of these documents by the first teacher, each with its cosine."""
        import numpy as np

        scores = self.spaces[0].scores(np.full(len(places), query), places)
        order = np.argsort(-scores, kind="stable")[:SHOWN_NEGATIVES]
        return [
            f"    * {word}, {scores[i]:.3f}: "
            f"{prose(shorten_text(self.arranged.documents[int(places[i])]))}"
            for i in order
        ]
