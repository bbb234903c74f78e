"""Bounds for merges: the headroom up to an ensemble, and comparisons with the linear merge."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberge import (
    Backbone,
    CheckpointError,
    Encoder,
    EncoderFacts,
    Evaluator,
    MediaFacts,
    Model,
    ModelRef,
    RecipeError,
    Similarity,
    TaskInfo,
    TaskScore,
    TokenisedText,
    Workspace,
)
from emberge.contracts import Embedded
from emberge.evaluating import Comparison, score_model

from emberge_evaluate.comparison import Judge
from emberge_evaluate.score_model import free_name
from emberge_evaluate.seed_groups import Arm, Scored

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Models = Mapping[str, tuple[Scored, Model]]
ENSEMBLE, ORACLE = "ensemble", "oracle (no model)"
HEADROOM = (ENSEMBLE, ORACLE)
TaskScores = Mapping[str, Mapping[str, TaskScore]]
Row = tuple[str, tuple[Scored, Model], Mapping[str, TaskScore]]


@dataclass(frozen=True, kw_only=True)
class Ensemble(Backbone):
    """Mean of members' embeddings before they are scaled to length 1 (deep ensembles, arXiv:1612.01474).

    To first order a merge of similar models computes this mean, so its score shows how much averaging can
    gain. All members read the tokens of the first member.

    Example:
        Ensemble(of=backbone, members=(first, second))
    """

    of: Backbone
    """The backbone that loads each member."""
    members: tuple[Path, ...] = field(repr=False)
    """Whole models' folders; scores are kept by the members' content."""

    def describe(self, checkpoint: Path, *, predicts: bool = False) -> EncoderFacts:
        """Return the facts of one member; it predicts no tokens."""
        return self.of.describe(checkpoint)

    def check_media(self, checkpoint: Path, media: MediaFacts) -> list[str]:
        return self.of.check_media(checkpoint, media)

    def load(self, checkpoint: Path, *, device: str, dtype: str, predicts: bool = False) -> Encoder:
        backbone = self.of
        if any(option.name == "normalize" for option in dataclasses.fields(backbone)):
            backbone = dataclasses.replace(backbone, **{"normalize": False})
        members = [backbone.load(folder, device=device, dtype=dtype) for folder in self.members]
        for folder, member in zip(self.members, members, strict=True):
            if member.tokenizer_fingerprint != members[0].tokenizer_fingerprint:
                raise CheckpointError(
                    f"{folder}: has another tokenizer than {self.members[0].name}, and members of an "
                    "ensemble read the same tokens; leave it out of 'headroom'"
                )
            if member.dimension != members[0].dimension:
                raise CheckpointError(
                    f"{folder}: has embeddings of {member.dimension} numbers and {self.members[0].name} of "
                    f"{members[0].dimension}, which have no mean; leave it out of 'headroom'"
                )
        return _Members(members)


class _Members:
    """Encoder of several members, which embeds a batch with each member in turn."""

    def __init__(self, members: Sequence[Encoder]) -> None:
        from torch import nn

        self._members = members
        self._modules = nn.ModuleList(member.module for member in members)

    @property
    def module(self) -> torch.nn.Module:
        return self._modules

    @property
    def dimension(self) -> int:
        return self._members[0].dimension

    @property
    def similarity(self) -> Similarity:
        return self._members[0].similarity

    @property
    def tokenizer_fingerprint(self) -> str:
        return self._members[0].tokenizer_fingerprint

    @property
    def prompts(self) -> Mapping[str, str]:
        return self._members[0].prompts

    def tokenise(
        self, texts: Sequence[str], *, prompt: str, max_length: int | None
    ) -> list[TokenisedText]:
        return self._members[0].tokenise(texts, prompt=prompt, max_length=max_length)

    def collate(self, texts: Sequence[TokenisedText]) -> Mapping[str, Tensor]:
        return self._members[0].collate(texts)

    def __call__(self, features: Mapping[str, Tensor], layers: Sequence[float] = ()) -> Embedded:
        embeddings = self._members[0](features).embeddings
        for member in self._members[1:]:
            embeddings = embeddings + member(features).embeddings
        return Embedded(embeddings / len(self._members))

    def stored_names(self) -> Mapping[str, str]:
        return {}

    def save(self, folder: Path) -> None:
        raise CheckpointError(
            "an ensemble is several models and is saved as none; merge its members"
        )


def linear_merges(models: Models) -> dict[str, str]:
    """Map each merge to the linear merge of the same members with the same share of the base.

    Both merges must be scored at the same size of embeddings and under the same seed of the evaluation. If
    there are several linear merges (with other weights), the first one counts.
    """
    first: dict[object, str] = {}
    merges = {
        name: merge
        for name, (scored, model) in models.items()
        if (merge := _describe_merge(scored, model)) is not None
    }
    for name, (merge_key, method) in merges.items():
        if method == "linear":
            first.setdefault(merge_key, name)
    return {
        name: first[merge_key]
        for name, (merge_key, _) in merges.items()
        if merge_key in first and first[merge_key] != name
    }


def _describe_merge(scored: Scored, model: Model) -> tuple[object, Any] | None:
    """Return (key that comparable merges share, the last link's method); None if it is not a merge."""
    details = model.details
    strategy, members = details.get("strategy"), details.get("models")
    if not strategy or not isinstance(members, Mapping):
        return None
    method = strategy[0] if len(strategy) == 1 else strategy
    if isinstance(method, Mapping) and "keep_base" in method:
        method = method["keep_base"].get("by", "linear")
    merge_key = (frozenset(members.values()), details.get("keep"), scored.size, scored.drawn)
    return merge_key, method


def against_linear(
    judge: Judge, linear: Mapping[str, str], groups: Sequence[str], arms: Sequence[Arm] = ()
) -> Iterator[Comparison]:
    """Yield the comparison of each merge or arm with its linear merge on each group of tasks."""
    arm_of = {model: arm.name for arm in arms for model in arm.members}
    pairs = {
        arm_of.get(merge, merge): arm_of.get(linear_merge, linear_merge)
        for merge, linear_merge in linear.items()
    }
    for on in groups:
        yield from (
            judge.compare(merge, linear_merge, on)
            for merge, linear_merge in pairs.items()
            if merge != linear_merge
        )


def headroom_problems(
    members: Sequence[ModelRef], evaluators: Sequence[Evaluator]
) -> Iterator[str]:
    """Yield a problem if there are too few members or an evaluator cannot score an ensemble."""
    if len(members) == 1 and not members[0].text.startswith("$"):
        yield "an ensemble and a choice take at least two members; name all"
    for evaluator in evaluators if members else ():
        if not isinstance(getattr(evaluator, "backbone", None), Backbone):
            yield (
                f"{type(evaluator).__name__} has no backbone that an ensemble could run by; put it into an "
                "evaluation of its own"
            )


def headroom_rows(
    members: Mapping[str, Model],
    evaluators: Sequence[Evaluator],
    tasks: Sequence[TaskInfo],
    scores: TaskScores,
    workspace: Workspace,
) -> Iterator[Row]:
    """Yield (name, facts, scores by task) of the members' ensemble, and of the best member for each task.

    Raises:
        RecipeError: if there are fewer than two members.
        CheckpointError: if the members' tokens or embedding sizes differ.
    """
    if len(members) < 2:
        raise RecipeError("'headroom' names one model; an ensemble and a choice take at least two")
    content = "\0".join(model.fingerprint for model in members.values())
    fingerprint = hashlib.sha256(content.encode()).hexdigest()
    with ExitStack() as stack:
        folders = [stack.enter_context(workspace.whole_model(model)) for model in members.values()]
        first = Model(ENSEMBLE, folders[0], f"{ENSEMBLE}-{fingerprint}")
        plans = [_plan_ensemble(evaluator, folders, workspace) for evaluator in evaluators]
        ensemble_scores = score_model(first, plans, workspace, name=ENSEMBLE)
    # Neither row is a model in a folder, so there is no size or cost to give.
    nowhere = workspace.work / "no model"
    named = {task.name: task for task in tasks}
    ensemble = {
        name: dataclasses.replace(task_score, task=named[name])
        for name, task_score in ensemble_scores.items()
    }
    best = {
        task.name: _choose_best([scores[name][task.name] for name in members]) for task in tasks
    }
    for row_name, row in zip(HEADROOM, (ensemble, best), strict=True):
        name = free_name([row_name, f"{row_name} of {len(members)}"], scores)
        model = Model(name, nowhere, f"{row_name}-{fingerprint}")
        yield name, (Scored(name, ModelRef(""), headroom=True), model), row


def _plan_ensemble(
    evaluator: Evaluator, folders: Sequence[Path], workspace: Workspace
) -> tuple[Evaluator, Sequence[TaskInfo]]:
    """Return the evaluator with the ensemble as its backbone, and its tasks."""
    backbone = getattr(evaluator, "backbone", None)
    assert isinstance(backbone, Backbone)  # `headroom_problems` refuses others
    changes = {"backbone": Ensemble(of=backbone, members=tuple(folders))}
    ensemble_evaluator = dataclasses.replace(evaluator, **changes)
    return ensemble_evaluator, ensemble_evaluator.plan(workspace)


def _choose_best(scores: Sequence[TaskScore]) -> TaskScore:
    choose = min if scores[0].task.less_is_better else max
    return choose(scores, key=lambda score: score.score)
