from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emberge.encoding import TextEmbedder
from emberge_encoder import EmbeddingStore, TextEncoder, embedding_store

from tests.support import tiny
from tests.support.tolerance import assert_same_pass

TEXTS = [" ".join(tiny.WORDS[i : i + 1 + i % 5]) for i in range(20)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "m"
    tiny.checkpoint(path)
    return path


@pytest.fixture(scope="module")
def encoder(folder: Path) -> Any:
    return TextEncoder().load(folder, device="cpu", dtype="float32")


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding_store, "SEGMENT", 4)


class KilledError(Exception):
    pass


def counted(encoder: Any, monkeypatch: pytest.MonkeyPatch, most: int = 10**9) -> list[str]:
    """Count the texts that an encoder is given, and kill after `most`."""
    seen: list[str] = []
    tokenise = type(encoder).tokenise

    def given(self: Any, texts: Sequence[str], **options: Any) -> Any:
        if len(seen) + len(texts) > most:
            raise KilledError
        seen.extend(texts)
        return tokenise(self, texts, **options)

    monkeypatch.setattr(type(encoder), "tokenise", given)
    return seen


def files(store: Path) -> dict[str, bytes]:
    return {str(p.relative_to(store)): p.read_bytes() for p in store.rglob("*.npy")}


def test_vectors_are_those_of_the_encoder_in_order(
    encoder: Any, folder: Path, tmp_path: Path
) -> None:
    texts = [*TEXTS, TEXTS[3], TEXTS[0]]
    vectors = EmbeddingStore(tmp_path, encoder, model_key="m").embed(texts, prompt="find: ")
    assert len(vectors) == len(texts)
    expected = TextEmbedder(encoder).embed(texts, prompt="find: ")
    assert_same_pass(vectors[:], expected, folder)
    places = np.array([21, 3, 3, 0])
    np.testing.assert_array_equal(vectors[places], vectors[:][places])


def test_a_list_is_embedded_once_for_a_model_and_a_prompt(
    encoder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = counted(encoder, monkeypatch)
    store = EmbeddingStore(tmp_path, encoder, model_key="m")
    first = store.embed([*TEXTS, *TEXTS])
    again = EmbeddingStore(tmp_path, encoder, model_key="m").embed([*TEXTS, *TEXTS])
    assert sorted(seen) == sorted(set(TEXTS))
    np.testing.assert_array_equal(first[:], again[:])
    store.embed(TEXTS[:2], prompt="find: ")
    store.embed(TEXTS[:2], max_length=4)
    EmbeddingStore(tmp_path, encoder, model_key="other").embed(TEXTS[:2])
    assert len(seen) == len(set(TEXTS)) + 6


@pytest.mark.parametrize("most", [0, 8])
def test_a_killed_embedding_ends_with_the_same_bytes(
    encoder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    EmbeddingStore(tmp_path / "whole", encoder, model_key="m").embed(TEXTS)
    with monkeypatch.context() as context:
        counted(encoder, context, most)
        with pytest.raises(KilledError):
            EmbeddingStore(tmp_path / "killed", encoder, model_key="m").embed(TEXTS)
    EmbeddingStore(tmp_path / "killed", encoder, model_key="m").embed(TEXTS)
    assert files(tmp_path / "killed") == files(tmp_path / "whole")


def test_no_texts_are_no_vectors(encoder: Any, tmp_path: Path) -> None:
    assert EmbeddingStore(tmp_path, encoder, model_key="m").embed([])[:].shape == (
        0,
        encoder.dimension,
    )
