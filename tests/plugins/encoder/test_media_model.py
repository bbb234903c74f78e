"""Encoders of text, images and clips give what transformers' own classes and processors give."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from emberge import CheckpointError, DataError, Media, join_parts
from emberge.encoding import TextEmbedder
from emberge.media import MediaFolder
from emberge_encoder.embedding_store import EmbeddingStore
from emberge_encoder.media.media_features import ImageReader
from emberge_encoder.text_encoder import TextEncoder

from tests.support import tiny
from tests.support.json_files import edit
from tests.support.media_models import (
    FAMILIES,
    KINDS,
    RATE,
    SIDE,
    Family,
    drawing,
    media_model,
    tone,
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {family: media_model(root / family, family) for family in FAMILIES}


@pytest.fixture
def folder(tmp_path: Path) -> MediaFolder:
    return MediaFolder(tmp_path / "media")


def load(path: Path, **options: Any) -> Any:
    return TextEncoder(**options).load(path, device="cpu", dtype="float32")


def embed(encoder: Any, texts: Sequence[str], **options: Any) -> np.ndarray:
    return TextEmbedder(encoder).embed(texts, **options)


def media_of(folder: MediaFolder, kind: str, seed: int = 0) -> Media:
    if kind == "image":
        return folder.add_image(drawing(seed, width=SIDE * (2 + seed), height=SIDE * 2))
    return folder.add_clip(tone(220 * (seed + 1), 0.7 + 0.6 * seed), RATE)


def stock_features(path: Path, family: str, parts: Sequence[str | Media]) -> dict[str, Any]:
    """Features of one input by the stock tokenizer, template, image processor and feature extractor."""
    from emberge_encoder.media.media_decoding import read_clip, read_image
    from transformers import AutoTokenizer, Qwen2VLImageProcessorPil, WhisperFeatureExtractor
    from transformers.models.qwen3_omni_moe.processing_qwen3_omni_moe import (
        _get_feat_extract_output_lengths,
    )

    tokenizer = AutoTokenizer.from_pretrained(path)
    content = [
        {"type": "text", "text": p} if isinstance(p, str) else {"type": p.kind} for p in parts
    ]
    whole = tokenizer.apply_chat_template([{"role": "user", "content": content}], tokenize=False)
    features: dict[str, Any] = {}
    images = [read_image(p) for p in parts if isinstance(p, Media) and p.kind == "image"]
    if images:
        processor = Qwen2VLImageProcessorPil.from_pretrained(path)
        features |= processor(images, return_tensors="pt")
        for grid in features["image_grid_thw"]:
            count = int(grid.prod()) // processor.merge_size**2
            whole = whole.replace("<|image_pad|>", "<>" * count, 1)
        whole = whole.replace("<>", "<|image_pad|>")
    clips = [read_clip(p).samples for p in parts if isinstance(p, Media) and p.kind == "audio"]
    if family == "qwen3_asr" and clips:
        from transformers.models.qwen3_asr.feature_extraction_qwen3_asr import (
            Qwen3ASRFeatureExtractor,
        )

        found = Qwen3ASRFeatureExtractor()(
            clips, sampling_rate=RATE, padding=True, return_attention_mask=True
        )
        features["input_features"] = found["input_features"]
        mask = features["input_features_mask"] = found["attention_mask"]
    elif clips:
        extractor = WhisperFeatureExtractor.from_pretrained(path)
        found = extractor(
            clips,
            sampling_rate=RATE,
            padding=True,
            truncation=False,
            return_attention_mask=True,
            return_tensors="pt",
        )
        features["input_features"] = found["input_features"]
        mask = features["feature_attention_mask"] = found["attention_mask"]
    for frames in mask.sum(-1).tolist() if clips else ():
        whole = whole.replace(
            "<|audio_pad|>", "<>" * int(_get_feat_extract_output_lengths(frames)), 1
        )
    whole = whole.replace("<>", "<|audio_pad|>")
    features |= tokenizer(whole, return_tensors="pt", return_token_type_ids=False)
    if family == "qwen3_vl":
        image = tokenizer.convert_tokens_to_ids("<|image_pad|>")
        features["mm_token_type_ids"] = (features["input_ids"] == image).long()
    return features


def stock_embedding(path: Path, family: str, parts: Sequence[str | Media]) -> np.ndarray:
    from transformers import AutoModel

    model = AutoModel.from_pretrained(path).eval()
    with torch.no_grad():
        states = model(**stock_features(path, family, parts)).last_hidden_state[0]
    pooled = states.mean(0)
    return (pooled / pooled.norm()).numpy()


@pytest.mark.parametrize("family", FAMILIES)
def test_embeddings_are_those_of_the_stock_classes(
    models: dict[str, Path], folder: MediaFolder, family: Family
) -> None:
    kinds = KINDS[family]
    one = [media_of(folder, kind, 1) for kind in kinds]
    inputs: list[list[str | Media]] = [
        ["the list of files"],
        [one[0]],
        ["a text ", one[0]],
        [*one, "is given"],
    ]
    found = embed(load(models[family]), [join_parts(parts) for parts in inputs])
    for row, parts in zip(found, inputs, strict=True):
        wanted = stock_embedding(models[family], family, parts)
        assert np.abs(row - wanted).max() < 1e-5, parts


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", FAMILIES)
def test_padding_and_neighbours_change_nothing(
    tmp_path: Path, folder: MediaFolder, family: Family, side: str
) -> None:
    model = media_model(tmp_path / "model", family, padding_side=side)
    encoder = load(model)
    texts = [
        join_parts(parts)
        for kind in KINDS[family]
        for parts in (
            [media_of(folder, kind, 0)],
            ["which list is it? ", media_of(folder, kind, 2), " the last"],
            [media_of(folder, kind, 1), media_of(folder, kind, 0)],
        )
    ]
    texts.append("only a text of some more words than one of the others has")
    whole = encoder.collate(encoder.tokenise(texts, prompt="", max_length=None))
    together = encoder(whole).embeddings
    for row, text in enumerate(texts):
        alone = encoder(encoder.collate(encoder.tokenise([text], prompt="", max_length=None)))
        # Sums of a few dozen float32 in another order.
        assert (together[row] - alone.embeddings[0]).abs().max() < 2e-6, text


def test_a_clip_shorter_than_half_a_second_is_padded(
    models: dict[str, Path], folder: MediaFolder
) -> None:
    short = tone(440, 0.2)
    texts = [
        join_parts([folder.add_clip(one, RATE)]) for one in (short, np.pad(short, (0, 8000 - 3200)))
    ]
    for family in ("qwen3_asr", "qwen3_omni_moe_thinker"):
        first, second = embed(load(models[family]), texts)
        assert np.array_equal(first, second)


def test_text_is_cut_and_media_are_not(models: dict[str, Path], folder: MediaFolder) -> None:
    encoder = load(models["qwen3_vl"])
    image = folder.add_image(drawing(0, width=2 * SIDE, height=2 * SIDE))
    text = join_parts(["the list of ", image, " is given"])
    whole, cut = (encoder.tokenise([text], prompt="", max_length=n)[0] for n in (None, 8))
    # The last word before the image and all behind it are gone; the image's four vectors are not.
    assert list(cut.ids) == [*whole.ids[:2], *whole.ids[3:9]]
    with pytest.raises(DataError, match=r"max_length"):
        encoder.tokenise([text], prompt="", max_length=5)


@pytest.mark.parametrize(
    ("family", "medium", "before", "fix"),
    [
        ("qwen3_vl", "image", "an <|image_pad|> ", "placeholder"),
        ("qwen3_vl", "large image", "", "shrink: true"),
        ("qwen3_vl", "clip", "", "audio"),
        ("qwen3_asr", "fast clip", "", "resample: true"),
        ("bert", "image", "", "text alone"),
    ],
)
def test_media_that_a_model_does_not_read_are_refused(
    family: str,
    medium: str,
    before: str,
    fix: str,
    models: dict[str, Path],
    folder: MediaFolder,
    tmp_path: Path,
) -> None:
    given = {
        "image": lambda: folder.add_image(drawing(0)),
        "large image": lambda: folder.add_image(drawing(0, width=12 * SIDE, height=12 * SIDE)),
        "clip": lambda: folder.add_clip(tone(440), RATE),
        "fast clip": lambda: folder.add_clip(tone(440, rate=44_100), 44_100),
    }[medium]()
    path = tiny.checkpoint(tmp_path / "bert") if family == "bert" else models[family]
    with pytest.raises(DataError, match=fix):
        embed(load(path), [join_parts([before, given] if before else [given])])


def test_another_sampling_rate_is_resampled_and_a_large_image_shrunk_if_asked(
    models: dict[str, Path], folder: MediaFolder
) -> None:
    text = join_parts([folder.add_clip(tone(440, rate=44_100), 44_100)])
    own = join_parts([folder.add_clip(tone(440), RATE)])
    found, wanted = embed(load(models["qwen3_asr"], resample=True), [text, own])
    assert found @ wanted > 0.99
    text = join_parts([folder.add_image(drawing(0, width=12 * SIDE, height=12 * SIDE))])
    (found,) = load(models["qwen3_vl"], shrink=True).tokenise([text], prompt="", max_length=None)
    assert len(found.ids) == 64 + 2


@pytest.mark.parametrize("family", FAMILIES)
def test_saved_models_open_again(
    models: dict[str, Path], folder: MediaFolder, tmp_path: Path, family: Family
) -> None:
    encoder = load(models[family])
    texts = ["a text", *(join_parts([media_of(folder, kind)]) for kind in KINDS[family])]
    encoder.save(tmp_path / "saved")
    assert np.array_equal(embed(load(tmp_path / "saved"), texts), embed(encoder, texts))
    names = {"processor_config.json", "chat_template.jinja", "sentence_bert_config.json"}
    assert names <= {path.name for path in (tmp_path / "saved").iterdir()}


def test_frozen_parts_have_no_gradient_and_unknown_ones_are_named(models: dict[str, Path]) -> None:
    path = models["qwen3_omni_moe_thinker"]
    encoder = load(path, freeze=("visual", "audio_tower"))
    trained = {n for n, p in encoder.module.named_parameters() if p.requires_grad}
    assert trained
    assert not any("visual" in name or "audio_tower" in name for name in trained)
    with pytest.raises(CheckpointError, match=r"'vision'.*language_model"):
        load(path, freeze=("vision",))
    with pytest.raises(CheckpointError, match="nothing is left to train"):
        load(path, freeze=("visual", "audio_tower", "language_model"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"config.json": {"image_token_id": None}}, "image_token_id"),
        ({"processor_config.json": {"image_processor": None}}, "image_processor"),
    ],
)
def test_a_folder_that_lacks_what_reading_takes_is_refused(
    tmp_path: Path, change: dict[str, dict[str, Any]], words: str
) -> None:
    path = media_model(tmp_path / "model", "qwen3_vl")
    for name, values in change.items():
        edit(path, name, **values)
    (problem,) = TextEncoder().describe(path).problems
    assert words in problem
    with pytest.raises(CheckpointError, match=words):
        load(path)


def test_features_are_kept_for_a_second_pass(
    models: dict[str, Path], folder: MediaFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    original = ImageReader.read

    def note(self: ImageReader, media: Media) -> Any:
        read.append(media.hash)
        return original(self, media)

    monkeypatch.setattr(ImageReader, "read", note)
    encoder = load(models["qwen3_vl"])
    texts = [join_parts([folder.add_image(drawing(seed))]) for seed in (0, 1)]
    tokens = encoder.tokenise(texts, prompt="", max_length=None)
    for _ in range(2):
        for one in tokens:
            encoder.collate([one])
    assert len(read) == len(set(read)) == 2


def test_embeddings_of_images_of_one_size_are_kept_apart(
    models: dict[str, Path], tmp_path: Path, folder: MediaFolder
) -> None:
    encoder = load(models["qwen3_vl"])
    texts = [join_parts([folder.add_image(drawing(seed))]) for seed in (0, 1)]
    tokens = encoder.tokenise(texts, prompt="", max_length=None)
    assert list(tokens[0].ids) == list(tokens[1].ids)
    wanted = embed(encoder, texts)
    assert np.abs(wanted[0] - wanted[1]).max() > 1e-3
    for number, given in enumerate(("embed", "embed_tokens")):
        store = EmbeddingStore(tmp_path / str(number), encoder, model_key="m")
        found = store.embed(texts) if given == "embed" else store.embed_tokens(tokens)
        assert np.allclose(found[np.arange(2)], wanted, atol=1e-6)
