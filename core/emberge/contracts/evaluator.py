"""Evaluators, which score models on tasks and return what a statistical comparison of two models needs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from emberge.contracts.dataset import Split
from emberge.contracts.option import WholeNumber
from emberge.contracts.reference import FileRef, ModelRef
from emberge.contracts.stored_form import StoredForm

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from emberge.contracts.dataset import Domain
    from emberge.contracts.result import Model
    from emberge.contracts.search_stack import SearchStack
    from emberge.contracts.step import Preflight, Workspace
    from emberge.errors import Problem


# Metrics where less is better.
LESS_IS_BETTER = frozenset({"loss", "nats/token"})
Statistic = Literal["mean", "ratio", "spearman", "average_precision", "macro_f1"]
Side = Literal["query", "document"]


@dataclass(frozen=True, slots=True)
class Units:
    """The values behind a score, unit by unit, so that a paired bootstrap can resample them.

    `statistic` is "mean" (of `values`), "ratio" (the sum of `values` over the sum of `gold`), "spearman" or
    "average_precision" (of `values` against `gold`), or "macro_f1" (`values` are the predicted numbers of
    classes, `gold` the right ones). `unit` is the word for one unit: query, pair, text. Units come in the
    same order for every model. With `groups`, one label per unit, the statistic is computed inside each group
    and averaged over the groups (a task of several subsets).
    """

    unit: str
    statistic: Statistic
    values: Sequence[float]
    gold: Sequence[float] | None = None
    groups: Sequence[int] | None = None


@dataclass(frozen=True, kw_only=True)
class KeptIndex:
    """An index of documents embedded by `model`, searched with the queries of another model.

    `translations` are results of `translate` steps, which may translate the index's vectors. The translation
    from `model` to the scored model is used or, if there is none, the shortest sequence of translations
    between the two. If `anew` is not 0, the scored model embeds the first `anew` documents that each query
    finds, and orders them by its own embeddings. `name` is the index's name in tables.
    """

    model: ModelRef
    translations: tuple[FileRef, ...] = ()
    anew: WholeNumber = 0
    name: str | None = None

    @property
    def label(self) -> str:
        """The name in tables: `name`, or a name built from `model` and `translations`."""
        if self.name is not None:
            return self.name
        steps = dict.fromkeys(_shorten_reference(translation) for translation in self.translations)
        steps_text = f" by {' or '.join(steps)}" if steps else ""
        return f"{_shorten_reference(self.model)}{steps_text}{f', {self.anew} anew' if self.anew else ''}"


def _shorten_reference(reference: FileRef | ModelRef) -> str:
    """Return a short name for a reference: a step's id without `foreach` variables, or a path's last part."""
    if reference.step is not None:
        return reference.step.partition(".")[0]
    return reference.text.rstrip("/").rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """One task: its name, kind of task, main metric, languages, and domain relative to the training.

    The domain "elsewhere" is unlike anything in the training: on its tasks, a model can only lose abilities
    of its base. `metric` is one of `LESS_IS_BETTER` for a loss. `note` is for readers of the score (for
    example, that the corpus was cut). `fingerprint` hashes all that the score depends on except the model:
    data, options, versions; if it is empty, scores are not reused. `split` is the half of the data that is
    scored, or None if the evaluator does not know. `form` is the form of embeddings that is scored, if it is
    another than the model's own; the task's name then ends with it: `STS12@256`. `seed` is the seed of an
    evaluation that draws random numbers, such as a fine-tuning; the task's name then ends with the seed:
    `xnli#1`. `index` is the label of the `KeptIndex` that is searched, and `index_of` is the text of the
    reference to that index's model; both are None if a model searches its own documents.
    """

    name: str
    kind: str
    metric: str
    languages: tuple[str, ...] = ()
    domain: Domain | None = None
    note: str = ""
    fingerprint: str = ""
    split: Split | None = None
    form: StoredForm | None = None
    seed: int | None = None
    index: str | None = None
    index_of: str | None = None

    def on_index(self, index: KeptIndex, content: str) -> TaskInfo:
        """Return a copy of the task that searches a kept index, with its own name and fingerprint.

        `content` identifies the index: the fingerprint of its model, and those of its translations.
        """
        text = f"{self.fingerprint}\0index {content} {index.anew}".encode()
        fingerprint = hashlib.sha256(text).hexdigest() if self.fingerprint else ""
        return replace(
            self,
            name=f"{self.name} on {index.label}",
            index=index.label,
            index_of=index.model.text,
            fingerprint=fingerprint,
        )

    @property
    def name_without_index(self) -> str:
        """Name without the index, if any: `search` for `search on old`."""
        return self.name if self.index is None else self.name.removesuffix(f" on {self.index}")

    @property
    def plain_name(self) -> str:
        """Name without the index, the form and the seed, if any."""
        without_seed = replace(self, name=self.name_without_seed)
        return replace(without_seed, name=without_seed.name_without_form).name_without_index

    def at_seed(self, seed: int) -> TaskInfo:
        """Return a copy of the task that is run with a seed, with its own name and fingerprint."""
        content = f"{self.fingerprint}\0seed {seed}".encode()
        fingerprint = hashlib.sha256(content).hexdigest() if self.fingerprint else ""
        return replace(self, name=f"{self.name}#{seed}", seed=seed, fingerprint=fingerprint)

    @property
    def name_without_seed(self) -> str:
        """Name without the seed, if any: `xnli` for `xnli#1`."""
        return self.name if self.seed is None else self.name.removesuffix(f"#{self.seed}")

    @property
    def less_is_better(self) -> bool:
        """True if lower scores are better, as for a loss."""
        return self.metric in LESS_IS_BETTER

    def in_form(self, form: StoredForm) -> TaskInfo:
        """Return a copy of the task on embeddings in this form, with its own name and fingerprint."""
        content = f"{self.fingerprint}\0{form.label}".encode()
        fingerprint = hashlib.sha256(content).hexdigest() if self.fingerprint else ""
        return replace(self, name=f"{self.name}@{form.label}", form=form, fingerprint=fingerprint)

    @property
    def name_without_form(self) -> str:
        """Name without the form of embeddings, if any: `STS12` for `STS12@256`."""
        return self.name if self.form is None else self.name.removesuffix(f"@{self.form.label}")


@dataclass(frozen=True, slots=True)
class TaskScore:
    """A model's main score on one task, and the evaluator's own full result.

    The score is a share (0 to 1), and higher is better. If the metric is in `LESS_IS_BETTER`, the score is
    the loss.
    """

    task: TaskInfo
    score: float
    units: Units | None = None
    result: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Evaluator:
    """An evaluator, which scores models on tasks.

    The calling step stores each score under the model's content hash and the task's fingerprint, and asks
    only for scores that it does not have.
    """

    def plan(self, workspace: Workspace) -> Sequence[TaskInfo]:
        """Return the tasks that can be scored, in order, without loading a model.

        Raises:
            DataError: if the data cannot be used.
        """
        raise NotImplementedError

    def check(self, context: Preflight) -> Iterable[Problem]:
        """Return problems that can be found before a run."""
        return ()

    def check_model(self, checkpoint: Path, context: Preflight) -> Iterable[str]:
        """Return reasons why the evaluator cannot score the checkpoint, from configs alone."""
        return ()

    def check_kind(self, context: Preflight, checkpoint: Path | None) -> Iterable[str]:
        """Return reasons why the evaluator cannot score models of the kind of its backbone.

        `checkpoint` is the model to score, which must be trained for that kind; None if it does not exist
        yet.
        """
        return ()

    def check_stack(self, stack: SearchStack, context: Preflight) -> Iterable[str]:
        """Return reasons why the evaluator cannot score a whole search."""
        return (
            f"is a whole search, and {type(self).__name__} scores a model alone; score it with the evaluator "
            "mteb, on retrieval tasks",
        )

    def check_together(self, checkpoints: Sequence[Path]) -> Iterable[str]:
        """Return reasons why the scores of these checkpoints are not comparable, for notes on the scores."""
        return ()

    def preview(self, context: Preflight) -> Sequence[TaskInfo] | None:
        """Return the tasks known before a run; None if they are unknown or `check` finds faults.

        Names, kinds, metrics and splits are those that `plan` will return; domains and fingerprints may be
        missing.
        """
        return None

    def evaluate(
        self, model: Model, tasks: Sequence[TaskInfo], workspace: Workspace
    ) -> Iterator[TaskScore]:
        """Yield the scores of one model on some tasks, one by one, and report progress.

        The model is complete: the folder of an adapted model contains the base with the adapter applied.
        """
        raise NotImplementedError

    def figures(self, scores: Mapping[str, Mapping[str, TaskScore]]) -> list[dict[str, Any]]:
        """Return figures of scores, given by model and task, in the form of an artifact's `figures`."""
        return []

    def texts(self, task: TaskInfo, workspace: Workspace) -> Iterable[tuple[Side, str]] | None:
        """Return the texts of a task, as queries or documents; None if they are not available.

        All texts of tasks without documents, such as pairs of sentences, count as queries. Texts that a
        classifier is fitted on are not returned. A text may be returned more than once.

        Raises:
            DataError: if the data cannot be read.
        """
        return None

    def load_embedder(
        self, model: Model, workspace: Workspace
    ) -> Callable[[Sequence[str], Side], Sequence[NDArray[Any]]] | None:
        """Load a model and return the function that embeds texts of one side, each as an index has it.

        An embedding is a vector [d], or vectors of tokens [t, d], or the entries of a sparse vector with
        their places, as a structured array. Each call runs tokenizer and model, as `evaluate` does where it
        finds nothing stored, so that its time is the model's. It is None for an evaluator that does not embed
        `texts`, or a model that embeds none.
        """
        return None

    def load_pair_scorer(
        self, model: Model, workspace: Workspace
    ) -> Callable[[str, Sequence[str]], NDArray[Any]] | None:
        """Load a reranker and return the function that scores a query with each of some documents.

        Each call runs tokenizer and model, so that its time is the model's. It is None for a model that
        scores no pairs.
        """
        return None
