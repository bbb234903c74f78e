from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from emberge import DataError, Example, PerDataset
from emberge.training import TextOptions
from emberge.training.text_windows import WindowTable, build_windows
from emberge_encoder import TextEncoder

from tests.support import tiny
from tests.support.training_data import InMemory, dataset

LONG = " ".join(tiny.WORDS[:50] + tiny.WORDS[:50])


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tiny.transformer(tmp_path_factory.mktemp("bert") / "m", "AutoModelForMaskedLM")
    return TextEncoder(pooling="mean").load(
        folder, device="cpu", dtype="float32", predicts_tokens=True
    )


def _cut(encoder: Any, root: Path, data: InMemory, **options: Any) -> WindowTable:
    given = TextOptions(**options)
    return build_windows(data, encoder, given, root, lambda *_: None)


def _words(encoder: Any, table: WindowTable) -> list[list[str]]:
    return [
        encoder._tokenizer.convert_ids_to_tokens(list(table.sequences[i].ids))
        for i in range(len(table.sequences))
    ]


def test_a_long_text_is_several_windows_with_the_special_tokens_of_one(
    encoder: Any, tmp_path: Path
) -> None:
    data = dataset("t", "text", [Example("the bank"), Example(LONG), Example("a card")])
    table = _cut(encoder, tmp_path, data, max_length=PerDataset(default=42))
    words = _words(encoder, table)
    assert [len(window) for window in words] == [4, 42, 42, 22, 4]
    assert {(window[0], window[-1]) for window in words} == {("[CLS]", "[SEP]")}
    assert [word for window in words[1:4] for word in window[1:-1]] == LONG.split()
    assert list(table.text_rows) == [0, 1, 1, 1, 2]
    assert table.info.size == 5
    assert table.info.tokens is not None
    assert list(table.info.tokens) == [4, 42, 42, 22, 4]


def test_the_models_own_limit_is_taken_where_none_is_given(encoder: Any, tmp_path: Path) -> None:
    table = _cut(encoder, tmp_path, dataset("t", "text", [Example(LONG)]))
    assert [len(window) for window in _words(encoder, table)] == [64, 40]


def test_a_prompt_comes_before_every_window(encoder: Any, tmp_path: Path) -> None:
    data = dataset("t", "text", [Example(LONG)], prompt="weather: ")
    table = _cut(encoder, tmp_path, data)
    words = _words(encoder, table)
    assert {tuple(window[:3]) for window in words} == {("[CLS]", "weather", "[UNK]")}
    assert {table.sequences[i].prompt_length for i in range(len(words))} == {3}
    assert [word for window in words for word in window[3:-1]] == LONG.split()


def test_windows_are_found_again_by_content(encoder: Any, tmp_path: Path) -> None:
    data = dataset("t", "text", [Example(LONG)])
    first = _cut(encoder, tmp_path, data)
    again = _cut(encoder, tmp_path, data)
    assert [p.name for p in (tmp_path / "tables").iterdir()] == [
        p.name for p in (tmp_path / "tables").iterdir()
    ]
    assert _words(encoder, first) == _words(encoder, again)
    _cut(encoder, tmp_path, data, max_length=PerDataset(default=9))
    assert len(list((tmp_path / "tables").iterdir())) == 2


def test_a_length_without_room_is_refused(encoder: Any, tmp_path: Path) -> None:
    data = dataset("t", "text", [Example("the bank")])
    with pytest.raises(DataError, match=r"'t': max_length 2 leaves no room .* are 2; raise it"):
        _cut(encoder, tmp_path, data, max_length=PerDataset(default=2))
