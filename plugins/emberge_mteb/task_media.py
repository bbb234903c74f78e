"""Media of tasks: modalities of a local set's sides, and inputs of a batch as texts with references."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, get_args

from emberge import DataError, Media, MediaKind, join_parts, split_parts
from emberge.contracts import list_media_kinds
from emberge.media import MediaFolder
from emberge_data import EvalData, RerankingData, RetrievalData, list_eval_texts

_KINDS: tuple[MediaKind, ...] = get_args(MediaKind)


class SideModalities(NamedTuple):
    """Modalities of queries and of documents, at least one each."""

    queries: list[str]
    documents: list[str]

    @property
    def modalities(self) -> list[str]:
        """Modalities of both sides, each once."""
        return list(dict.fromkeys([*self.queries, *self.documents]))

    @property
    def category(self) -> str | None:
        """Mteb's code for the two sides, such as "t2i"; None if it has none."""
        from mteb.abstasks.task_metadata import TaskCategory

        letters = ["".join(name[0] for name in side) for side in self]
        category = "2".join(letters)
        return category if category in get_args(TaskCategory) else None


def find_media_sides(data: EvalData) -> SideModalities | None:
    """Return the modalities of a retrieval or reranking set; None without media and for other kinds of sets.

    Mteb gives the texts of other kinds of sets to a model unchanged, so there the texts contain references to
    media.
    """
    if not isinstance(data, RetrievalData | RerankingData):
        return None
    if not list_media_kinds(text for _, text in list_eval_texts(data)):
        return None
    if isinstance(data, RetrievalData):
        queries: Iterable[str] = data.queries.values()
        documents: Iterable[str] = data.corpus.values()
    else:
        queries = data.queries
        both = (*data.positives, *data.negatives)
        documents = (text for texts in both for text in texts)
    sides = SideModalities(_list_modalities(queries), _list_modalities(documents))
    # Without a word for the pair mteb gives each side the columns of both.
    return sides if sides.category else SideModalities(sides.modalities, sides.modalities)


def _list_modalities(texts: Iterable[str]) -> list[str]:
    """Return the modalities of one side, media first, as mteb writes its pairs."""
    text_list = list(texts)
    worded = any(isinstance(part, str) for text in text_list for part in split_parts(text))
    return [*list_media_kinds(text_list), *(["text"] if worded else [])]


def read_batch_inputs(batch: Mapping[str, Any], folder: MediaFolder) -> list[str]:
    """Return the inputs of a batch with `image`, `audio` and `text`, or some of them, in that order.

    A column of media has Pillow images, `{array, sampling_rate}`, lists of these, or for a local set texts
    with references to media.

    Raises:
        DataError: if a batch has video.
    """
    if "video" in batch:
        raise DataError("a task of videos cannot be scored; leave it out")
    columns: list[Any] = [*_KINDS, "text"]
    present_columns = [column for column in columns if column in batch]
    rows = zip(*(batch[column] for column in present_columns), strict=True)
    return [
        join_parts(
            [
                part
                for column, value in zip(present_columns, row, strict=True)
                for part in _yield_parts(column, value, folder)
            ]
        )
        for row in rows
    ]


def _yield_parts(column: Any, value: Any, folder: MediaFolder) -> Iterator[str | Media]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Sequence):
        for part in value:
            yield from _yield_parts(column, part, folder)
    elif column == "image":
        yield folder.add_image(value)
    elif value is not None:
        yield folder.add_clip(value["array"], value["sampling_rate"])
