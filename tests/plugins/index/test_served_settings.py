"""A model's own vectors under the settings of a server: how long texts are cut, and which are not tried."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from emberge_encoder import TextEncoder
from emberge_index.served.settings import OwnVectors, ServedSetting, UntriedError

from tests.support import tiny
from tests.support.vector_service import open_stock

LONG = [
    " ".join([first, *["merge vector the data cat sat on"] * 9]) for first in ("who", "the mat")
]


def test_texts_that_lose_their_beginning_are_those_of_stock_transformers(bert: Path) -> None:
    own = OwnVectors([bert], TextEncoder())
    model = open_stock(bert)
    model.tokenizer.truncation_side = "left"
    for length in (16, 33):
        model.max_seq_length = length
        found = own.embed(LONG, ServedSetting("", length=length, cuts_left=True))
        np.testing.assert_allclose(found, model.encode(LONG), atol=1e-5)
    short = ["the cat sat"]
    cut = own.embed(short, ServedSetting("", length=16, cuts_left=True))
    np.testing.assert_array_equal(cut, own.embed(short, ServedSetting("")))


@pytest.mark.parametrize(("architecture", "limit"), [("bert", 64), ("xlm-roberta", 64)])
def test_a_model_reads_no_more_tokens_than_it_has_positions(
    tmp_path: Path, architecture: str, limit: int
) -> None:
    """XLM-RoBERTa has two more, which no token can have."""
    folder = tiny.checkpoint(tmp_path / "model", architecture)
    (folder / "sentence_bert_config.json").write_text(json.dumps({"do_lower_case": False}))
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_max_length": 1 << 20}))
    own = OwnVectors([folder], TextEncoder())
    assert own.limit == limit
    assert np.isfinite(own.embed(LONG, ServedSetting("", length=limit))).all()
    with pytest.raises(UntriedError, match="reads no 65 tokens"):
        own.embed(LONG, ServedSetting("", length=limit + 1))
