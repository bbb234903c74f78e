"""Shares of a new model's gain that an index of the old model keeps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from emberge import Model
from emberge.evaluating import GROUP_OF, GainKept, Verdict

from emberge_evaluate.comparison import Judge
from emberge_evaluate.requirements import Requirement
from emberge_evaluate.seed_groups import Arm, Scored

Models = Mapping[str, tuple[Scored, Model]]


def gains_kept(
    models: Models, arms: Sequence[Arm], judge: Judge, groups: Sequence[str]
) -> Iterator[GainKept]:
    """Yield the share of each arm on each index, over groups of tasks, where the old model is scored.

    An arm on an index is compared with the same models on their own index, and with the index's model.
    """
    arm_of = {model: arm.name for arm in arms for model in arm.members}
    own: dict[tuple[str, int | None], str] = {}
    for name, (scored, _) in models.items():
        if scored.index is None:
            own.setdefault((scored.reference.text, scored.size), arm_of[name])
    done = set()
    for name, (scored, _) in models.items():
        old = own.get((scored.index_of or "", scored.size))
        new = own[scored.reference.text, scored.size]
        if old is None or arm_of[name] in done:
            continue
        done.add(arm_of[name])
        for group in groups:
            yield judge.gain_kept(arm_of[name], new, old, group)


def judged_gains(
    require: Sequence[Requirement], models: Models, arms: Sequence[Arm], judge: Judge
) -> Iterator[Verdict]:
    """Yield the verdict on every requirement about an index, once for an arm and at each size."""
    arm_of = {model: arm.name for arm in arms for model in arm.members}
    by_reference = {(s.reference.text, s.size, s.index): arm_of[n] for n, (s, _) in models.items()}
    indexes = {s.index: s.index_of or "" for s, _ in models.values() if s.index is not None}
    done = set()
    for requirement in require:
        if requirement.on_index_of is None or requirement.model is None:
            continue
        label, on = (
            requirement.index_label(indexes),
            GROUP_OF.get(requirement.tasks, requirement.tasks),
        )
        text, old = requirement.model.text, requirement.on_index_of.text
        for size in dict.fromkeys(scored.size for scored, _ in models.values()):
            three = [(text, size, label), (text, size, None), (old, size, None)]
            mixed, new, old_arm = (by_reference[place] for place in three)
            key = (mixed, on, requirement.gain_kept, requirement.confidence)
            if key not in done:
                done.add(key)
                yield judge.judge_gain(requirement, mixed, new, old_arm, on)
