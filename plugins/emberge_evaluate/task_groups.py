"""Groups of tasks that are scored together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from emberge import RecipeError, TaskInfo, TaskScore, suggest
from emberge.wording import join_some


@dataclass(frozen=True)
class TaskGroup:
    """Tasks that are scored together, with their names in a recipe, in results and in texts.

    `word` is a recipe's, `name` is that of comparisons (and of a domain in tasks), `mean` is the mean's name
    in `scores.json` and `title` its title. A group of one domain has the `domain` in plain English.
    """

    word: str
    name: str
    mean: str
    title: str
    domain: str = ""

    @property
    def phrase(self) -> str:
        """The mean in a sentence."""
        return f"the mean over tasks {self.domain}" if self.domain else f"the {self.title}"


# The mean of `kinds` is the mean of the means over each kind of task, as `Mean(TaskType)` in MTEB
# (Muennighoff et al., 2023, arXiv:2210.07316).
TASK_GROUPS = (
    TaskGroup("all", "all", "task", "mean over tasks"),
    TaskGroup("kinds", "type", "type", "mean over kinds of task"),
    TaskGroup("ind", "in", "in", "in-domain mean", "in domain"),
    TaskGroup("ood", "out", "out", "out-of-domain mean", "out of domain"),
    TaskGroup("elsewhere", "elsewhere", "elsewhere", "mean elsewhere", "elsewhere"),
)
# Groups of tasks by the words of a recipe.
GROUP_BY_WORD = {group.word: group.name for group in TASK_GROUPS}
# Domains in plain English by the words of a recipe.
DOMAIN_BY_WORD = {group.word: group.domain for group in TASK_GROUPS if group.domain}
# Names of means by their groups; the mean over one kind of task has the name of its group.
MEAN_BY_GROUP = {group.name: group.mean for group in TASK_GROUPS}
# Titles of the groups of one domain.
TITLE_BY_DOMAIN = {group.name: group.domain.capitalize() for group in TASK_GROUPS if group.domain}
# Titles of means in the order of display: domains first.
TITLE_BY_MEAN = {
    group.mean: group.title for group in sorted(TASK_GROUPS, key=lambda group: not group.domain)
}
# Prefix of the name of a group that is one kind of task, as a task may have the name of a kind.
_KIND_PREFIX = "kind:"


def read_group_kind(group: str) -> str | None:
    """Return the kind of task of a group such as `kind:retrieval`; None for other groups."""
    return group.removeprefix(_KIND_PREFIX) if group.startswith(_KIND_PREFIX) else None


def list_mean_groups(tasks: Sequence[TaskInfo]) -> list[str]:
    """Return the groups that have means: groups of `MEAN_BY_GROUP` with tasks, and kinds if there are two."""
    kinds = dict.fromkeys(task.kind for task in tasks)
    kind_groups = [f"{_KIND_PREFIX}{kind}" for kind in kinds] if len(kinds) > 1 else []
    return [*(group for group in MEAN_BY_GROUP if list_group_parts(tasks, group)), *kind_groups]


def _select_tasks(tasks: Sequence[TaskInfo], group: str) -> list[TaskInfo]:
    """Return the tasks of a group: all, or those of a domain ("in", "out", "elsewhere"), a name or a kind."""
    if group == "all":
        return list(tasks)
    if (kind := read_group_kind(group)) is not None:
        return [task for task in tasks if task.kind == kind]
    if group in TITLE_BY_DOMAIN:
        return [task for task in tasks if task.domain == group]
    named_tasks = [task for task in tasks if task.name == group]
    return named_tasks or [task for task in tasks if task.kind == group]


def list_group_parts(tasks: Sequence[TaskInfo], group: str) -> list[list[TaskInfo]]:
    """Return the tasks of a group in one list, or, for "type", one list for each kind of task.

    The group's score is the mean of the lists' means.
    """
    if group != "type":
        group_tasks = _select_tasks(tasks, group)
        return [group_tasks] if group_tasks else []
    by_kind: dict[str, list[TaskInfo]] = {}
    for task in tasks:
        by_kind.setdefault(task.kind, []).append(task)
    return list(by_kind.values())


def average_scores(tasks: Sequence[TaskInfo], scores: Mapping[str, TaskScore], group: str) -> float:
    """Return a model's mean over a group of tasks: over their kinds for "type", else over the tasks."""
    means = [
        sum(scores[task.name].score for task in part) / len(part)
        for part in list_group_parts(tasks, group)
    ]
    return sum(means) / len(means)


def find_required_tasks(word: str, tasks: Sequence[TaskInfo]) -> list[TaskInfo]:
    """Return the tasks that a word of a recipe means: those of a group, of a kind, or the one of this name.

    Raises:
        RecipeError: if there is no such task.
    """
    matching = [
        task for part in list_group_parts(tasks, GROUP_BY_WORD.get(word, word)) for task in part
    ]
    if matching:
        return matching
    if word in DOMAIN_BY_WORD:
        raise RecipeError(
            f"`tasks: {word}`: none of the tasks is {DOMAIN_BY_WORD[word]}; give `domain` in the catalogue"
        )
    names = dict.fromkeys([*GROUP_BY_WORD, *(t.kind for t in tasks), *(t.name for t in tasks)])
    # The names of development data have a suffix.
    completions = [name for name in names if name.startswith(word)]
    hint = f"; did you mean '{completions[0]}'?" if completions else suggest(word, names)
    ending = hint or f"; there are {join_some(names, 8)}"
    raise RecipeError(f"`tasks: {word}`: there is no such task or kind of task{ending}")
