"""A search by any kind of embedding: texts are cut, and read as queries or as documents."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from emberge.encoding import TextEmbedder, TextSearch
from emberge_encoder import MultiVector

from tests.support import tiny

LONG = "the list of files and rows of text"


@pytest.fixture(scope="module")
def colbert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.colbert(tmp_path_factory.mktemp("models") / "colbert")


def embedder(folder: Path, backbone: MultiVector) -> TextEmbedder:
    return TextEmbedder(backbone.load(folder, device="cpu", dtype="float32"))


def test_documents_and_queries_are_cut_to_the_searchs_length(colbert: Path) -> None:
    """Two texts that differ behind their third word are one to a search of five tokens."""
    documents = [LONG, LONG.replace("files", "weather")]
    for limit, alike in ((5, True), (None, False)):
        search = TextSearch(embedder(colbert, MultiVector()), max_length=limit)
        scores = search.score(search.embed_queries(["a list"]), documents)
        assert bool(np.isclose(scores[0, 0], scores[0, 1], rtol=0, atol=1e-6)) == alike
        asked = search.score(search.embed_queries(documents), ["a list"])
        assert bool(np.isclose(asked[0, 0], asked[1, 0], rtol=0, atol=1e-6)) == alike


def test_texts_of_several_chunks_have_the_scores_of_each_alone(colbert: Path) -> None:
    """Of texts that run together the longest decides their padding, which belongs to no text."""
    texts = [LONG, "a list", "rows of text", f"{LONG} and {LONG}", "a file"]
    loaded = embedder(colbert, MultiVector())
    for budget in (20, 2048):
        loaded.token_budget = budget
        search = TextSearch(loaded)
        asked = search.embed_queries(texts)
        alone = [search.score(asked, [text])[:, 0] for text in texts]
        np.testing.assert_allclose(search.score(asked, texts), np.stack(alone, axis=1), atol=1e-5)
