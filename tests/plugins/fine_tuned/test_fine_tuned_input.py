"""Tasks that cannot be fine-tuned on are refused before any work, with place and remedy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from emberge import Plugins, RecipeError, check_recipe, parse_recipe
from emberge_fine_tuned.hub_tasks import COLLECTIONS, list_hub_tasks, read_hub_tasks

from tests.support.tuned_sets import rows, write_sets


@pytest.fixture
def problems(plugins: Plugins, tmp_path: Path, bert: Path) -> Callable[..., list[str]]:
    """The errors of an evaluation with one task of its own, and other options."""
    write_sets(tmp_path)

    def found(model: Path = bert, tasks: str = "", **options: Any) -> list[str]:
        task = {"name": "subject", "train": "./train.jsonl", "test": ["./test.jsonl"], **options}
        more = task.pop("more", {})
        evaluator = {"data": [task], **more} if not tasks else {"tasks": tasks}
        steps = {
            "scores": {
                "evaluate": {"models": [str(model)], "evaluators": {"fine_tuned": evaluator}}
            }
        }
        text = json.dumps({"steps": steps}, indent=1)
        try:
            recipe = parse_recipe(text, plugins, path=tmp_path / "recipe.yaml")
        except RecipeError as error:
            return [str(problem) for problem in error.problems]
        return [str(problem) for problem in check_recipe(recipe, plugins).errors]

    return found


def write(folder: Path, name: str, *changes: dict[str, Any]) -> str:
    lines = [row | change for row, change in zip(rows(40, 9), [*changes] * 40, strict=False)]
    (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return f"./{name}"


def test_a_sound_task_has_no_problems(problems: Callable[..., list[str]]) -> None:
    assert problems() == []


def test_rows_that_do_not_fit_are_named_with_their_line(
    problems: Callable[..., list[str]], tmp_path: Path
) -> None:
    (first,) = problems(text="sentence")
    assert "train.jsonl:1: " in first
    assert "`text`" in first
    assert " rows: 1, 2, 3, 4, 5, …" in first
    (short, *_) = problems(
        head="tokens", text="words", label="tags", test=write(tmp_path, "a.jsonl", {"tags": ["O"]})
    )
    assert "a.jsonl:1: " in short
    (flat, *_) = problems(head="tokens", label="tags")
    assert "head: tokens" in flat
    (secret, *_) = problems(test=write(tmp_path, "b.jsonl", {"label": -1}))
    assert "b.jsonl:1: " in secret
    assert "another split" in secret
    (word, *_) = problems(head="regression")
    assert "train.jsonl:1: " in word
    moved = {"answers": {"text": ["bank"], "answer_start": [900]}}
    span = {"head": "span", "text": "other", "second": "text", "label": "answers"}
    assert problems(**span) == []
    (answer, *_) = problems(**span, test=write(tmp_path, "c.jsonl", moved))
    assert "c.jsonl:1: " in answer
    assert "900" in answer
    (tmp_path / "empty.jsonl").write_text("\n")
    (empty,) = problems(dev="./empty.jsonl")
    assert "empty.jsonl" in empty


def test_a_class_that_a_set_lacks_is_named(
    problems: Callable[..., list[str]], tmp_path: Path
) -> None:
    (strange,) = problems(dev=write(tmp_path, "b.jsonl", {}, {"label": "art"}))
    assert "b.jsonl: " in strange
    assert "art" in strange
    (lacking,) = problems(labels=["code", "money", "art"])
    assert "train.jsonl: " in lacking
    assert "art" in lacking
    (one,) = problems(train=write(tmp_path, "c.jsonl", {"label": "code"}), test="./c.jsonl")
    assert "c.jsonl: " in one
    tags = {"head": "tokens", "text": "words", "label": "tags"}
    few = {"words": ["the", "bank"], "tags": ["O", "B-1"]}
    assert problems(**tags, test=write(tmp_path, "d.jsonl", few)) == [], "a language may lack one"


def test_more_labels_than_the_head_has_are_named(problems: Callable[..., list[str]]) -> None:
    assert problems(labels=["money", "code"]) == []
    (first, *_) = problems(labels=["code", "art"])
    assert "train.jsonl:2: " in first
    assert "money" in first
    assert "`labels`" in first


def test_options_that_contradict_each_other_are_refused(problems: Callable[..., list[str]]) -> None:
    assert "macro_f1" in problems(metric="spearman")[0]
    assert "`second`" in problems(head="span", label="answers")[0]
    assert "'other'" in problems(start="other")[0]
    for option, value in (
        ("learning_rate", []),
        ("learning_rate", [0.0]),
        ("seeds", [1, 1]),
        ("steps", 0),
        ("warmup", 1.0),
        ("patience", 0),
    ):
        (found,) = problems(more={option: value})
        assert option in found
    (near,) = problems(tasks="xnly")
    assert "'xnli'" in near


def test_rows_of_the_hub_are_not_looked_at_before_the_run(
    problems: Callable[..., list[str]], tmp_path: Path
) -> None:
    hub = str(write_sets(tmp_path))
    sets = {"train": {"hub": hub}, "test": [{"hub": hub, "split": "test", "name": "one"}]}
    assert problems(**sets, text="sentence") == []


def test_tasks_of_the_hub_are_whole() -> None:
    tasks = read_hub_tasks()
    for entry in tasks.values():
        assert entry.start is None or tasks[entry.start].start is None
        names = [one.name for one in entry.test]
        assert len(set(names)) == len(names)
    assert {name for names in COLLECTIONS.values() for name in names} == set(tasks)
    assert [entry.name for entry in list_hub_tasks(["rte", "mnli"])] == ["mnli", "rte"]
    sizes = {name: len(tasks[name].test) for name in ("xnli", "paws_x", "pan_x", "udpos")}
    assert sizes == {"xnli": 15, "paws_x": 7, "pan_x": 40, "udpos": 33}, "languages of XTREME"
