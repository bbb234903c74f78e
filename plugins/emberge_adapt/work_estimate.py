"""Time, memory and disk of an adaptation, from one measured training step of the base on the data."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberge.contracts import Rehearsal, is_sound_number
from emberge.errors import EmbergeError
from emberge.files import UnsoundFileError, read_json, write_json
from emberge.wording import human_size

from emberge_adapt.adapt_plan import AdaptPlan
from emberge_adapt.data_facts import DataFacts
from emberge_adapt.recipe_text import write_measurement
from emberge_adapt.small_model import TIMED_QUERIES, TIMED_ROUNDS, TIMED_TEXTS, StudentPlan

if TYPE_CHECKING:
    from emberge import Machine, Plugins

# A training step computes about three times what encoding the same texts computes.
_TRAINING_PASSES = 3
# Queries, documents and tokens of a text of the probe sets, all together.
_PROBE_TEXTS, _PROBE_TOKENS = 7 * 150, 30
# Merges that the search for weights really makes and scores.
_REAL_MERGES = 5
# Tokens of a vocabulary whose embeddings are a static student's start, between two special tokens each.
_VOCABULARY_TOKENS = 3 * 30_000
# Bytes that the optimizer moves for a parameter in a step, and bytes that a machine moves in a second, about.
# A static student computes little else.
_OPTIMIZER_BYTES, _BYTES_A_SECOND = 28, 4e9
# Seconds of a step without the work of its model: it imports, reads, hashes, writes and draws.
_SECONDS_A_STEP = 4.0
# Bytes of a parameter in a model, and in the state of the one training that is under way.
_MODEL_BYTES, _STATE_BYTES = 4, 12


@dataclass(frozen=True)
class MeasuredStep:
    """Speed of the base's training on this machine in tokens per second, and the process's peak memory.

    A ValueError is raised for numbers that no machine measures, as a file may have them.
    """

    tokens_per_second: float
    memory: int | None

    def __post_init__(self) -> None:
        measures = [self.tokens_per_second, *([] if self.memory is None else [self.memory])]
        if not all(is_sound_number(measure) and measure > 0 for measure in measures):
            raise ValueError(f"speed {self.tokens_per_second!r}, memory {self.memory!r}")

    @property
    def encoded_per_second(self) -> float:
        """Tokens per second that the base encodes, about."""
        return self.tokens_per_second * _TRAINING_PASSES


@dataclass(frozen=True)
class WorkEstimate:
    """Seconds, bytes of memory and bytes on disk that an adaptation is expected to need."""

    seconds: float
    memory: int | None
    disk: int

    @property
    def line(self) -> str:
        """The estimate as one line for the terminal."""
        parts = [f"about {format_minutes(self.seconds)}"]
        if self.memory is not None:
            parts.append(f"{human_size(self.memory)} of memory")
        parts.append(f"{human_size(self.disk)} on disk")
        return ", ".join(parts)


def format_minutes(seconds: float) -> str:
    """Return a duration in words, as exact as an estimate can be: `40 seconds`, `7 minutes`, `2.5 hours`."""
    if seconds < 90:
        return f"{max(10, round(seconds, -1)):.0f} seconds"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.1f} hours"


def measure_step(plan: AdaptPlan, plugins: Plugins, machine: Machine) -> MeasuredStep:
    """Train the base for two steps on rows of the data, drop the result, and return what was measured.

    Raises:
        EmbergeError: if the base cannot be trained on the data.
    """
    from emberge import parse_recipe
    from emberge.recipes import rehearse

    recipe = parse_recipe(write_measurement(plan), plugins)
    limits = Rehearsal(steps=2, rows=2 * plan.measured_batch)
    with tempfile.TemporaryDirectory(prefix="emberge-adapt-") as folder:
        steps, error = rehearse(
            recipe, plugins, Path(folder), machine=machine, limits=limits, quiet=True
        )
        if error is not None:
            raise error
        rates = list(
            _read_metric(Path(folder) / steps[-1].id / "metrics.jsonl", "tokens_per_second")
        )
    if not rates:
        raise EmbergeError("the measured training step left no speed; run the recipe of --print")
    return MeasuredStep(max(rates), steps[-1].memory)


def _read_metric(path: Path, name: str) -> Iterator[float]:
    for line in path.read_text("utf-8").splitlines():
        record = json.loads(line)
        if record["name"] == name:
            yield float(record["value"])


def estimate_work(
    plan: AdaptPlan, facts: DataFacts, parameters: int, measured: MeasuredStep
) -> WorkEstimate:
    """Return the expected time, memory and disk of the plan, for a base of so many parameters."""
    query, document = (
        min(lengths.mean, plan.training.max_length)
        for lengths in (facts.query_tokens, facts.document_tokens)
    )
    pair = query + document
    train_rows = plan.train_rows
    negatives = plan.training.hard_negatives if plan.mines or plan.has_negatives else 0
    trained = (
        sum(plan.member_shares) * train_rows * plan.training.epochs * (pair + negatives * document)
    )
    members = len(plan.member_shares)
    encoded = (
        train_rows * document if plan.learns_scores else 0.0
    )  # by the base, whose space is kept
    encoded += train_rows * pair if plan.mines else 0.0
    if plan.finds_weights:
        encoded += (members + 1 + _REAL_MERGES) * plan.dev_rows * pair
    encoded += (members + 2) * (plan.test_rows * pair + _PROBE_TEXTS * _PROBE_TOKENS)
    if plan.index is not None:
        encoded += 2 * train_rows * pair
    steps = 8 + 2 * members
    seconds = trained / measured.tokens_per_second + encoded / measured.encoded_per_second
    models = members + 1
    if plan.small is not None:
        seconds += _estimate_student(plan, plan.small, pair, document, parameters, measured)
        steps, models = steps + 2, models + 1
    return WorkEstimate(
        seconds=seconds + steps * _SECONDS_A_STEP,
        memory=measured.memory,
        disk=parameters * (_MODEL_BYTES * models + _STATE_BYTES),
    )


def _estimate_student(
    plan: AdaptPlan,
    small: StudentPlan,
    pair: float,
    document: float,
    parameters: int,
    measured: MeasuredStep,
) -> float:
    """Return the seconds of a distillation and its evaluation, for tokens of a pair and of a document."""
    texts = plan.train_rows * pair + small.documents * document
    encoded = texts + small.size * (plan.test_rows * pair + _PROBE_TEXTS * _PROBE_TOKENS)
    models = len(plan.member_shares) + 2 + small.size
    encoded += models * TIMED_ROUNDS * (TIMED_QUERIES * (pair - document) + TIMED_TEXTS * document)
    steps = small.epochs * -(-(plan.train_rows + small.documents) // small.batch_size)
    seconds = small.epochs * small.size * texts / measured.tokens_per_second
    if small.layers is None:
        encoded += _VOCABULARY_TOKENS
        seconds += steps * parameters * _OPTIMIZER_BYTES / _BYTES_A_SECOND
    return seconds + encoded / measured.encoded_per_second


def read_measured(path: Path, key: Mapping[str, Any]) -> MeasuredStep | None:
    """Return what an earlier call measured for the same work, from its file; None if there is nothing."""
    try:
        content = read_json(path)
        if content["key"] != dict(key):
            return None
        return MeasuredStep(**content["measured"])
    except (OSError, ValueError, KeyError, TypeError, UnsoundFileError):
        return None


def write_measured(path: Path, key: Mapping[str, Any], measured: MeasuredStep) -> None:
    """Write what was measured, so that the same command does not measure it again."""
    write_json(path, {"key": dict(key), "measured": asdict(measured)})
