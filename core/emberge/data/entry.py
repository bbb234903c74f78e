"""The entries of `data` in a recipe, and of a catalogue."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path

from emberge.contracts import AnyNumber, Count, DataOrigin, DataRef, Negatives, Positive, TaskKind
from emberge.yaml_nodes import Fields


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The column of a file for each part of an example; by default, the usual names are recognised.

    If any column is named, `negative`, `score` and `label` are read only if they are named too. A name with
    dots is a field in a column of records (`translation.en`), or an entry of a list (`texts.0`). Names joined
    by `+` are one text, a line for each column (`instruction+query`).
    """

    anchor: str | None = None
    positive: str | None = None
    negative: str | None = None
    """Column of a hard negative, or of a list of them."""
    score: str | None = None
    """Column of a number: how alike anchor and positive are."""
    label: str | None = None
    """Column of the class of the anchor."""


@dataclass(frozen=True, kw_only=True)
class DataEntry:
    """One entry of `data`: a file, a catalogue (its training sets, or those in `only`), a hub dataset.

    `limit` keeps an even sample that depends only on the dataset's name; the rows under a smaller limit are
    among those under a larger limit. `first` is the number of rows to read, from the start: a hub dataset is
    then streamed, and only these rows are downloaded. `score_range` is the lowest and the highest score that
    the file may have; they become 0 and 1. For a catalogue, the entry's options apply to each of its sets.

    `prompt` is the text put before anchors, and before every text of a `symmetric` set; by default, the
    model's prompts are used. In a prompt, `{instruction}` stands for the set's instruction, and `{prompt}`
    for the prompt in its catalogue or, if there is none, the prompt made from the instruction.

    `split` is the split of a hub dataset, or `dev` or `test` for these parts of a catalogue. `folder` is the
    folder of a hub dataset whose files have the rows, if the dataset has no subset for them. `documents` is a
    subset with the columns `id` and `text`, if rows name their positives and negatives by id; for a file in a
    catalogue it is a file of further documents that an evaluation searches.

    `negatives` decides whether other rows' texts are negatives (`in_batch`, `hard_only`), unless the training
    decides it; `auto` depends on the kind of task. `ind_tasks` are evaluation tasks from the same source,
    which are therefore in domain for every model trained on this data; an empty list means that there are
    none. `language` is the language of a set, from its catalogue. `source` states the set's licence and
    origin, which a trained model's card names.
    """

    path: DataRef | None = None
    """A file, a folder of documents, a catalogue, or a step that makes data."""
    hub: str | None = None
    """A dataset of the hub, `owner/name`, in place of `path`."""
    name: str | None = None
    subset: str | None = None
    folder: str | None = None
    documents: str | None = None
    split: str = "train"
    revision: str | None = None
    columns: Columns = field(default_factory=Columns)
    """Names of columns; if any is named, `negative`, `score` and `label` are read only if they are named."""
    task: TaskKind | None = None
    instruction: str = ""
    prompt: str | None = None
    symmetric: bool | None = None
    """True if both sides are the same kind of text; `prompt` then stands before all texts."""
    weight: Positive = 1.0
    """Factor of the number of batches that `proportional` draws of the set."""
    limit: Count | None = None
    first: Count | None = None
    score_range: tuple[AnyNumber, AnyNumber] | None = None
    only: tuple[str, ...] = ()
    """The training sets of a catalogue to use, by name; by default all."""
    negatives: Negatives = "auto"
    ind_tasks: tuple[str, ...] | None = None
    language: str | None = None
    source: DataOrigin = field(default_factory=DataOrigin)

    def __post_init__(self) -> None:
        low, high = self.score_range or (0.0, 1.0)
        if not -math.inf < low < high < math.inf:
            raise ValueError("score_range is [lowest, highest], both finite")

    @property
    def origin(self) -> DataOrigin:
        """Stated facts of the source, and the page of a hub dataset."""
        if self.hub is None or self.source.url is not None:
            return self.source
        return replace(self.source, url=f"https://huggingface.co/datasets/{self.hub}")


@dataclass(frozen=True)
class ListedEvalSet:
    """An evaluation set of a catalogue, whose `facts` are read by what scores it."""

    folder: Path
    facts: Fields


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """A `datasets.yaml`: training entries, entries of the parts `dev` and `test`, and evaluation sets."""

    path: Path
    train: tuple[DataEntry, ...] = ()
    dev: tuple[DataEntry, ...] = ()
    test: tuple[DataEntry, ...] = ()
    eval: tuple[ListedEvalSet, ...] = ()
