"""Folders of sentence-transformers with an encoder for queries and one for documents."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from emberge import CheckpointError
from emberge.errors import UnsoundFileError
from emberge.model_folder import Checkpoint, JoinedFacts
from emberge_encoder import TextEncoder, read_routes
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Router


def opened(folder: Path) -> SentenceTransformer:
    return SentenceTransformer(str(folder), device="cpu", trust_remote_code=False)


def pair(queries: Path, documents: Path, folder: Path) -> Path:
    sides = [list(opened(model)) for model in (queries, documents)]
    model = SentenceTransformer(modules=[Router.for_query_document(*sides), Normalize()])
    model.save_pretrained(str(folder), create_model_card=False)
    return folder


def test_the_routes_of_a_router_are_read(bert: Path, berts: list[Path], tmp_path: Path) -> None:
    folder = pair(berts[0], bert, tmp_path / "pair")
    routes = read_routes(folder)
    assert routes is not None
    assert set(routes) == {"query", "document"}
    kinds = [module.kind for module in routes["query"]]
    assert kinds == [module.kind for module in Checkpoint(berts[0]).modules]
    assert read_routes(bert) is None
    (refusal,) = TextEncoder().describe(folder).problems
    assert "has an encoder for each kind of text" in refusal


def test_a_broken_router_is_refused(bert: Path, tmp_path: Path) -> None:
    folder = pair(bert, bert, tmp_path / "pair")
    path = folder / "router_config.json"
    whole = json.loads(path.read_text())
    mapped = {"route_mappings": {"(None, 'image')": "query"}}
    for change, place in (
        ({"structure": {"query": ["../a"]}}, "structure"),
        ({"structure": {"query": []}}, "structure"),
        ({"structure": []}, "structure"),
        ({"structure": {}}, "structure"),
        ({"parameters": mapped}, "route_mappings"),
    ):
        path.write_text(json.dumps({**whole, **change}))
        with pytest.raises(CheckpointError, match=rf"router_config\.json: .*{place}"):
            read_routes(folder)


def test_a_key_that_the_template_lacks_is_written_into_the_entry_of_its_module(
    bert: Path, tmp_path: Path
) -> None:
    folder = pair(bert, bert, tmp_path / "pair")
    other = shutil.copytree(folder, tmp_path / "other")
    entries = json.loads((other / "modules.json").read_text())
    entries[1]["kwargs"] = ["task"]  # of the Normalize after the router and its routes
    (other / "modules.json").write_text(json.dumps(entries))
    template = Checkpoint(folder)
    members = {"pair": template, "other": Checkpoint(other)}
    out = shutil.copytree(folder, tmp_path / "out")
    JoinedFacts.of(template, members, chosen=False).write(out, template)
    assert json.loads((out / "modules.json").read_text()) == entries


def test_a_link_out_of_a_route_is_refused(bert: Path, tmp_path: Path) -> None:
    folder = pair(bert, bert, tmp_path / "pair")
    secret = tmp_path / "secret.json"
    secret.write_text("{}")
    (folder / "query_0_Transformer" / "config.json").unlink()
    (folder / "query_0_Transformer" / "config.json").symlink_to(secret)
    with pytest.raises(UnsoundFileError, match=r"config\.json"):
        read_routes(folder)
