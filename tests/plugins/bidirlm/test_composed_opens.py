"""SentenceTransformers opens a composed folder as one encoder for all that its parts read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emberge import join_parts
from emberge.encoding import TextEmbedder
from emberge.media import MediaFolder
from emberge_encoder import TextEncoder
from sentence_transformers import SentenceTransformer

from tests.support.embed_media import ORDER, TEXTS, clips, images, run_with_torchvision
from tests.support.tolerance import assert_same_pass

READS = {
    "both": ["text", "image", "audio", "image and text", "all"],
    "seen": ["text", "image", "image and text"],
    "heard": ["text", "audio"],
}


@pytest.fixture(scope="module")
def everything(made: dict[str, Path]) -> dict[str, dict[str, Any]]:
    """Embeddings of all folders from one process, which takes its time to start."""
    wanted = [f"{made[name]}:{','.join(kinds)}" for name, kinds in READS.items()]
    said = run_with_torchvision(*wanted)
    return dict(zip(READS, map(json.loads, said.splitlines()), strict=True))


@pytest.fixture(params=list(READS))
def embedded(
    request: pytest.FixtureRequest, everything: dict[str, dict[str, Any]]
) -> tuple[str, dict[str, Any]]:
    return request.param, everything[request.param]


@pytest.mark.slow
def test_embeddings_are_those_of_plain_transformers(
    embedded: tuple[str, dict[str, Any]],
) -> None:
    name, found = embedded
    for kind in READS[name]:
        stock, plain = (np.array(found[way][kind]) for way in ("stock", "plain"))
        assert np.abs(stock - plain).max() <= 1e-5, kind
        assert np.abs(stock[0] - stock[1]).max() > 1e-3, f"{kind}: two inputs are two embeddings"


@pytest.mark.slow
def test_embeddings_are_those_of_emberges_encoder(
    embedded: tuple[str, dict[str, Any]], made: dict[str, Path], tmp_path: Path
) -> None:
    name, found = embedded
    media = MediaFolder(tmp_path / "media")
    embedder = TextEmbedder(TextEncoder().load(made[name], device="cpu", dtype="float32"))
    for kind in READS[name]:
        inputs = []
        for text, image, clip in zip(TEXTS, images(), clips(), strict=True):
            parts = {
                "text": text,
                "image": media.add_image(image),
                "audio": media.add_clip(clip, 16000),
            }
            inputs.append(join_parts([parts[part] for part in ORDER[kind]]))
        assert np.abs(embedder.embed(inputs) - np.array(found["stock"][kind])).max() <= 1e-5, kind


def test_sound_and_text_need_no_torchvision(made: dict[str, Path]) -> None:
    model = SentenceTransformer(str(made["heard"]), device="cpu")
    trunk = SentenceTransformer(str(made["merged"]), device="cpu")
    assert_same_pass(model.encode(TEXTS), trunk.encode(TEXTS), made["merged"])
