"""The `mine_hard_negatives` step: negatives for every query among the passages nearest to it."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from emberge import (
    Count,
    DataError,
    DataRef,
    Preflight,
    Problem,
    Reader,
    Share,
    Workspace,
)
from emberge.contracts import describe_kinds
from emberge.wording import prose

from emberge_data.steps.listed_set import ListedSet, rows_of
from emberge_data.steps.negative_choice import ChoiceOptions
from emberge_data.steps.outcome import Outcome
from emberge_data.steps.taught_step import SetDescription, TaughtStep, describe_spread

if TYPE_CHECKING:
    from emberge.data import FirstRows, StoredDataset
    from numpy.typing import NDArray

    from emberge_data.steps.listed_set import ArrangedSet
    from emberge_data.steps.mined_report import MinedSet
    from emberge_data.steps.negative_choice import Passages
    from emberge_data.steps.search.exact import SearchMemory
    from emberge_data.steps.search.found_passages import FoundPassages
    from emberge_data.steps.search.space import Space
    from emberge_data.steps.teacher import OpenTeacher


# Queries whose scores are shown where nothing passed.
SHOWN = 1000


@dataclass(frozen=True, kw_only=True)
class MineHardNegatives(TaughtStep):
    """Hard negatives: the passages nearest to each query by exact cosine, without its positives.

    A passage that is very near to a query may be a positive that nobody has marked. So with a `margin` of
    0.95 no negative has a score above 95 % of the lowest score of the query's positives, by the same teacher
    (NV-Retriever, 2024, arXiv:2407.15831, "TopK-PercPos"; Nomic Embed v2, 2025, arXiv:2502.07972). If the
    lowest score s is negative, the threshold is s - (1 - margin) |s|.

    Passages are the positives and negatives of the set's rows, each text once; with a `corpus`, its texts and
    the positives of the rows. Rows with the same anchor are one query. A query never gets one of its
    positives or itself. In a set with labels it never gets a text of a row with the same label either, even
    if that text has another label in another row; in such a set, a negative whose label no row states does
    not count as a passage.

    With several teachers, each lists passages by its own scores. A passage that any teacher scores above its
    threshold is left out of all lists. The lists are interleaved: the first passage of each list, then the
    second of each, each passage once.

    A teacher may be any retriever: with `backbone: splade` or `multi_vector` passages are compared by dot
    product or late interaction (MaxSim). Such a teacher works alone, and `range` says how many passages of
    each query it lists. `changes.md` tells of how many queries a positive is among these.

    With vectors, scores depend on the stored embeddings alone, and passages with equal scores keep their
    order. So the negatives are the same on every device and with any amount of memory.

    `changes.md` has the number of negatives, in all and per row, quantiles of their cosines beside those of
    the positives, how many queries find a positive among as many passages, the share of the nearest
    passages that `margin` left out, whether more than a tenth of the scores are tied, and
    three queries with their nearest negatives.

    Example:
        mined:
          mine_hard_negatives:
            data: ./pairs.jsonl
            teachers: sentence-transformers/all-MiniLM-L6-v2
            count: 10
    """

    embedding_kinds = frozenset({"vector", "sparse", "token_vectors"})

    count: Count = 10
    """Number of negatives to mine for a query."""
    margin: Share | None = 0.95
    """Largest score of a negative as a share of the lowest positive's, 0 to 1; null for no limit."""
    range: tuple[Count, Count] | None = None
    """First and last rank, from 1, of candidates among the passages that a query may get; by default all.

    Ranks are counted before the threshold is applied.
    """
    existing: Literal["replace", "keep"] = "replace"
    """Treatment of negatives that rows already have: replaced, or kept before the mined ones."""
    corpus: tuple[DataRef, ...] = ()
    """Files of passages: rows with `text`, and optionally `title` and `_id`."""

    def check(self, context: Preflight) -> Iterator[Problem]:
        yield from super().check(context)
        if self.range is not None:
            yield from self._check_range(context, *self.range)
        yield from self._check_found(context)
        for reference in self.corpus:
            path = context.data(reference)
            if path is not None and not path.is_file():
                yield context.problem(f"{reference}: there is no such file of passages", "corpus")

    def _check_range(self, context: Preflight, first: int, last: int) -> Iterator[Problem]:
        if not 1 <= first <= last:
            yield context.problem(
                f"range [{first}, {last}] is not a first and a last rank, counted from 1", "range"
            )
        elif last - first + 1 < self.count:
            yield context.problem(
                f"range [{first}, {last}] has fewer ranks than count ({self.count}); end it at "
                f"{first + self.count - 1} or later",
                "range",
            )

    def _check_found(self, context: Preflight) -> Iterator[Problem]:
        """Yield problems of options that need scores of any pair, which only vectors have."""
        kinds = {
            teacher.backbone.kind for teacher in self.teachers if teacher.backbone.kind != "vector"
        }
        if not kinds:
            return
        words = describe_kinds(kinds)
        if len(self.teachers) > 1:
            yield context.problem(
                f"a teacher with {words} works alone; name one teacher", "teachers"
            )
        if self.range is None:
            yield context.problem(
                f"a teacher with {words} lists so many passages of each query as range says; name it, such "
                f"as range: [1, {10 * self.count}]",
                "range",
            )

    def set_problems(self, head: FirstRows) -> Iterator[str]:
        yield from super().set_problems(head)
        if head.texts is not None and not self.corpus and head.texts <= self.count:
            yield (
                f"dataset '{head.info.name}' has fewer passages than count ({self.count}); lower count, or "
                "name a corpus"
            )

    def arranged(self, dataset: StoredDataset, workspace: Workspace) -> ArrangedSet:
        from emberge_data.steps.listed_set import ArrangedSet
        from emberge_data.steps.negative_choice import places_of_passages

        paths = [workspace.data(reference) for reference in self.corpus]
        listed = ListedSet.of(dataset, workspace, read_corpora(paths, workspace.readers))
        arranged = ArrangedSet.of(listed, places_of_passages(listed))
        if len(arranged.documents) <= self.count:
            raise DataError(
                f"dataset '{arranged.name}' has {len(arranged.documents):,} passages, too few for count "
                f"({self.count}) beside a positive; lower count, or name a corpus"
            )
        return arranged

    def compare(
        self, number: int, arranged: ArrangedSet, teacher: OpenTeacher, workspace: Workspace
    ) -> Space | FoundPassages:
        if teacher.kind == "vector":
            return super().compare(number, arranged, teacher, workspace)
        from emberge_data.steps.search.found_passages import FoundPassages, find_passages

        last = min(self.range[1] if self.range else self.count, len(arranged.documents))
        passages = self._passages(arranged)
        return FoundPassages.kept(
            workspace.work / "found" / str(number),
            lambda: find_passages(
                teacher.search(),
                arranged,
                last,
                positives=passages.positives,
                excluded=passages.excluded,
                prompts=teacher.prompts(arranged.dataset),
                show_progress=lambda done, total: workspace.progress(done, total, "passages"),
            ),
        )

    def _passages(self, arranged: ArrangedSet) -> Passages:
        from emberge_data.steps.negative_choice import passages_of

        return passages_of(arranged, keep_negatives=self.existing == "keep")

    @property
    def _choice(self) -> ChoiceOptions:
        return ChoiceOptions(count=self.count, margin=self.margin, ranks=self.range)

    def outcomes(
        self,
        number: int,
        arranged: ArrangedSet,
        spaces: Sequence[Space | FoundPassages],
        workspace: Workspace,
    ) -> Generator[Outcome, None, SetDescription]:
        from emberge_data.steps.kept_blocks import KeptBlocks
        from emberge_data.steps.mined_report import MinedSet
        from emberge_data.steps.negative_choice import choose

        passages = self._passages(arranged)
        choice = self._choice
        limits = self.limits(workspace)
        blocks = KeptBlocks(
            workspace.work / "mined" / str(number),
            len(arranged.queries),
            lambda queries: choose(spaces, queries, passages, choice, limits).places,
            lambda done, total: workspace.progress(done, total, "queries"),
        )
        if not any((block >= 0).any() for block in blocks):
            raise DataError(self._explain_nothing(arranged, spaces, passages))
        for row, example in enumerate(rows_of(arranged.dataset)):
            places = blocks[int(arranged.query_of[row])]
            texts = [arranged.documents[int(place)] for place in places if place >= 0]
            short = len(texts) < self.count
            shortage = "no negative" if self.count == 1 else f"fewer than {self.count} negatives"
            note = shortage if short else "negatives mined"
            existing_negatives = example.negatives if self.existing == "keep" else ()
            # Scores that negatives had are not those of a teacher that has mined others.
            mined_example = dataclasses.replace(
                example, negatives=(*existing_negatives, *texts), negative_scores=None
            )
            yield Outcome(row, example, mined_example, note)
        teachers = [str(teacher.model) for teacher in self.teachers]
        mined = MinedSet(arranged, spaces, teachers, passages, blocks)
        return self._describe_set(mined, limits, workspace)

    def _describe_set(
        self, mined: MinedSet, limits: SearchMemory, workspace: Workspace
    ) -> SetDescription:
        """Return the counts of mined negatives as sentences, and their cosines and examples as Markdown."""
        sentences = [
            mined.count_sentence(),
            *mined.describe_ranks(self._choice, limits, workspace.warn),
        ]
        lines = [
            f"## {prose(mined.arranged.name)}",
            "",
            *mined.describe_cosines(),
            "",
            "Some of the queries, with cosines by the first teacher:",
            "",
            *mined.describe_examples(),
            "",
        ]
        return SetDescription(sentences, lines)

    def _explain_nothing(
        self, arranged: ArrangedSet, spaces: Sequence[Space | FoundPassages], passages: Passages
    ) -> str:
        import numpy as np

        from emberge_data.steps.negative_choice import lowest_positives, nearest_passages

        queries = np.arange(min(SHOWN, len(arranged.queries)))
        best = nearest_passages(spaces, queries, 1, excluded=passages.excluded)
        seen = [
            f"{teacher.model} scores the lowest positives {describe_spread(lowest)} and the nearest "
            f"other passages {describe_spread(nearest_documents.scores)}"
            for teacher, nearest_documents, lowest in zip(
                self.teachers,
                best,
                (lowest_positives(space, queries, passages.positives) for space in spaces),
                strict=True,
            )
        ]
        return (
            f"dataset '{arranged.name}': no passage passes for any query ({'; '.join(seen)}); raise margin "
            f"({self.margin}), widen range, or name a corpus"
        )


def read_corpora(paths: Sequence[Path], readers: Sequence[Reader]) -> Iterator[str]:
    """Yield the passages of files in the layout of BEIR: `text`, after a `title` if there is one.

    Raises:
        DataError: if a row has no text, and, at the end, if two different passages have the same `_id`.
    """
    from emberge.data import read_document_rows
    from emberge.hashes import text_keys

    ids, texts, places = bytearray(), bytearray(), []
    for path in paths:
        for row in read_document_rows(path, readers):
            text = f"{row.title} {row.text}".strip()
            if not text:
                raise DataError(
                    f"{row.where}: the text is empty or only white space; fill or remove it"
                )
            if row.name is not None:
                ids += text_keys((row.name,))
                texts += text_keys((text,))
                places.append((path, row.number))
            yield text
    _refuse_clashes(ids, texts, places)


def _refuse_clashes(ids: bytearray, texts: bytearray, places: Sequence[tuple[Path, int]]) -> None:
    """Refuse an id that two different passages have."""
    import numpy as np

    if not places:
        return
    names: NDArray[Any] = np.frombuffer(bytes(ids), "V16")
    contents = np.frombuffer(bytes(texts), "V16")
    _, first, inverse = np.unique(names, return_index=True, return_inverse=True)
    clash = np.flatnonzero(contents != contents[first[inverse]])
    if len(clash):
        (first_path, first_row), (path, line) = places[first[inverse[clash[0]]]], places[clash[0]]
        raise DataError(
            f"{path.name}:{line}: the id was given to another passage before, at "
            f"{first_path.name}:{first_row} ({len(clash):,} such passages); give every passage an id of its "
            "own, or leave ids out"
        )
