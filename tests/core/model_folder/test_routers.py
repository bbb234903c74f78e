"""Folders of sentence-transformers with an encoder for queries and one for documents."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from emberge.model_folder import Checkpoint, JoinedFacts
from emberge_encoder import MultiVector, TextEncoder
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Router

from tests.support.json_files import changing


def opened(folder: Path) -> SentenceTransformer:
    return SentenceTransformer(str(folder), device="cpu", trust_remote_code=False)


def pair(queries: Path, documents: Path, folder: Path) -> Path:
    sides = [list(opened(model)) for model in (queries, documents)]
    model = SentenceTransformer(modules=[Router.for_query_document(*sides), Normalize()])
    model.save_pretrained(str(folder), create_model_card=False)
    return folder


def test_a_folder_with_two_encoders_is_refused_as_one(bert: Path, tmp_path: Path) -> None:
    folder = pair(bert, bert, tmp_path / "pair")
    for backbone in (TextEncoder(), MultiVector()):
        (refusal,) = backbone.describe(folder).problems
        assert "has an encoder for each kind of text" in refusal


def test_a_key_that_the_template_lacks_is_written_into_the_entry_of_its_module(
    bert: Path, tmp_path: Path
) -> None:
    folder = pair(bert, bert, tmp_path / "pair")
    other = shutil.copytree(folder, tmp_path / "other")
    with changing(other / "modules.json") as entries:
        entries[1]["kwargs"] = ["task"]  # of the Normalize after the router and its routes
    template = Checkpoint(folder)
    members = {"pair": template, "other": Checkpoint(other)}
    out = shutil.copytree(folder, tmp_path / "out")
    JoinedFacts.of(template, members, chosen=False).write(out, template)
    assert json.loads((out / "modules.json").read_text()) == entries
