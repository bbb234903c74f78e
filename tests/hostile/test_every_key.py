"""Whatever a key of a model's files is, a merge says what is wrong with it or writes a result."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from emberge.errors import EmbergeError

from tests.support.whole import merge, problems

GONE = object()
VALUES: tuple[Any, ...] = (
    *(GONE, None, True, 0, -1, 3.5, 10**7, 2**40, "", "x", "/etc/passwd"),
    *([], [1], ["a", "a"], {}, {"a": 1}),
)
FILES = (
    *("1_Pooling/config.json", "config.json", "config_sentence_transformers.json", "modules.json"),
    *("sentence_bert_config.json", "tokenizer.json", "tokenizer_config.json"),
)


def places(content: Any) -> Iterator[tuple[Any, str]]:
    """Each object of a file's top with each of its keys."""
    for owner in content if isinstance(content, list) else [content]:
        yield from ((owner, key) for key in [*owner])


def merge_or_refuse(model: Path, other: Path, out: Path) -> None:
    with contextlib.suppress(EmbergeError):
        if not problems(model, other):
            merge(out, model, other)


# Strides that share no factor with the number of values: every key meets values of many kinds.
@pytest.mark.parametrize(
    "step", [13, pytest.param(3, marks=pytest.mark.slow)], ids=["some", "many"]
)
@pytest.mark.parametrize("name", FILES)
def test_no_value_of_a_key_is_an_error_in_python(
    name: str, step: int, bert: Path, tmp_path: Path
) -> None:
    content = json.loads((bert / name).read_text())
    cases = [(n, value) for n, _ in enumerate(places(content)) for value in VALUES]
    for number, (place, value) in enumerate(cases[::step]):
        model = Path(shutil.copytree(bert, tmp_path / f"model{number}"))
        changed = json.loads((bert / name).read_text())
        owner, key = list(places(changed))[place]
        if value is GONE:
            del owner[key]
        else:
            owner[key] = value
        (model / name).write_text(json.dumps(changed))
        try:
            merge_or_refuse(model, bert, tmp_path / f"out{number}")
        except Exception as error:
            raise AssertionError(f"{name}: {key} = {value!r}: {error}") from error
        shutil.rmtree(model)
