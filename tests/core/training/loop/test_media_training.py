"""Trainings over texts, images and clips: one run, the same bytes, frozen towers, errors before work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge import DataError, Example, MediaKind, PerDataset, join_parts
from emberge.contracts import DatasetMediaFacts
from emberge.media import MediaFolder
from emberge.training import BatchPlan, FitOptions
from emberge_codiemb import Mixed
from emberge_encoder import TextEncoder
from emberge_train import BatchShuffle, InfoNCE
from safetensors import safe_open

from tests.support import tiny
from tests.support.fitting import run_fit
from tests.support.media_models import RATE, SIDE, drawing, media_model, tone
from tests.support.training_data import InMemory, dataset

TOWERS = ("visual", "audio_tower")
BATCHES = BatchShuffle(batch_size=PerDataset(default=5))

WORDS = ("list", "file", "path", "name", "value", "text", "string", "number", "table", "row")


def media_set(name: str, kind: MediaKind, folder: Path, rows: int = 10) -> InMemory:
    """Pairs of a medium and its caption."""
    place = MediaFolder(folder)
    examples = []
    for row in range(rows):
        if kind == "image":
            media = place.add_image(drawing(row, width=SIDE * (2 + row % 3), height=SIDE * 2))
        else:
            media = place.add_clip(tone(200 + 90 * row, 0.6 + 0.3 * (row % 3)), RATE)
        examples.append(Example(join_parts([media]), (f"the {WORDS[row % 10]} {row}",)))
    found = dataset(name, "retrieval", examples)
    facts = DatasetMediaFacts(f"{kind}-text", (kind,), f"{name}:1")
    return replace(found, info=replace(found.info, media=facts), fingerprint=f"{name} {rows}")


def text_set(name: str = "words", rows: int = 10) -> InMemory:
    """Pairs of texts."""
    examples = [
        Example(f"find the {WORDS[row % 10]}", (f"a {WORDS[row % 10]} {row}",))
        for row in range(rows)
    ]
    return dataset(name, "retrieval", examples)


def three_kinds(folder: Path, rows: int = 10) -> list[InMemory]:
    """A set of texts, one of images and one of clips."""
    pictures = media_set("pictures", "image", folder, rows)
    return [text_set(rows=rows), pictures, media_set("tones", "audio", folder, rows)]


@pytest.fixture(scope="module")
def omni(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return media_model(tmp_path_factory.mktemp("models") / "omni", "qwen3_omni_moe_thinker")


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("media")


def arguments(model: Path, media: Path, **more: Any) -> dict[str, Any]:
    options: dict[str, Any] = {
        **{"epochs": 1, "learning_rate": 1e-3, "token_budget": 64, "save_steps": 2},
        **{"keep_last": 2, "logging_steps": 1},
    }
    given = {name: more.pop(name) for name in [*more] if name in ("kept_tokens", "epochs")}
    return {
        "backbone": TextEncoder(freeze=TOWERS),
        "checkpoint": model,
        "datasets": three_kinds(media),
        "sampler": (BATCHES,),
        "losses": PerDataset(default=(InfoNCE(temperature=0.1),)),
        "options": FitOptions(**{**options, **given}),
        "seed": 0,
        **more,
    }


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    with safe_open(folder / "model.safetensors", "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def places(root: Path) -> Mapping[str, Any]:
    return {"folder": root / "out", "work": root / "work"}


@pytest.mark.slow
def test_three_kinds_are_learned_in_one_run_and_towers_stay(
    omni: Path, media: Path, tmp_path: Path
) -> None:
    losses: dict[str, list[float]] = {}

    def metric(name: str, value: float, step: int) -> None:
        losses.setdefault(name, []).append(value)

    result = run_fit(**arguments(omni, media, epochs=6), **places(tmp_path), metric=metric)
    assert result.rows_by_dataset == {"words": 10, "pictures": 10, "tones": 10}
    assert sum(losses["loss"][-6:]) < 0.8 * sum(losses["loss"][:6])
    before, after = tensors(omni), tensors(tmp_path / "out")
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        frozen = name.startswith(TOWERS)
        equal = torch.equal(tensor.view(torch.uint8), after[name].view(torch.uint8))
        assert equal == frozen, name


def test_frozen_parts_keep_their_own_dtype(tmp_path: Path) -> None:
    """Towers of a checkpoint in bfloat16 are saved byte for byte by a training in float32."""
    path = media_model(tmp_path / "model", "qwen3_vl")
    from safetensors.torch import save_file

    half = {name: tensor.bfloat16() for name, tensor in tensors(path).items()}
    save_file(half, path / "model.safetensors", metadata={"format": "pt"})
    encoder = TextEncoder(freeze=("visual",)).load(path, device="cpu", dtype="float32")
    encoder.save(tmp_path / "saved")
    for name, tensor in tensors(tmp_path / "saved").items():
        frozen = name.startswith("visual.")
        assert tensor.dtype == (torch.bfloat16 if frozen else torch.float32)
        assert not frozen or torch.equal(tensor, half[name])


def test_media_for_a_model_of_text_are_refused(media: Path, tmp_path: Path) -> None:
    model = tiny.checkpoint(tmp_path / "bert")
    with pytest.raises(DataError, match=r"has media, and the model in .* reads text alone"):
        run_fit(**arguments(model, media, backbone=TextEncoder()), **places(tmp_path))
    assert not (tmp_path / "out").exists()


def test_a_batch_of_several_kinds_is_refused(media: Path) -> None:
    pool = {one.info: range(len(one)) for one in three_kinds(media)}
    mixed = Mixed(batch_size=PerDataset(default=6), draws=3)
    with pytest.raises(DataError, match=r"Mixed .*batch_shuffle"):
        BatchPlan(pool, (mixed,), seed=0)[0]
    tones = next(info for info in pool if info.name == "tones")
    alike = {replace(tones, name=f"tones {n}"): range(10) for n in (1, 2, 3)}
    assert len(BatchPlan(alike, (mixed,), seed=0))
