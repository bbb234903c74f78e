"""Rows with images and clips: every form that files have them in, what is wrong with them, moved files."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from emberge import DataEntry, DataError, DataRef, Media, join_parts, show_media, split_parts
from emberge.contracts import has_media
from emberge.data import load_datasets
from emberge.data.media_values import MediaValues
from emberge.media import MediaFolder
from emberge_data import Delimited, JsonLines, Parquet
from emberge_encoder.media.media_decoding import read_image_size
from scipy.io import wavfile

from tests.support.media_models import RATE, drawing, tone

READERS = [JsonLines(), Parquet(), Delimited()]


def resolve(reference: DataRef) -> Path:
    return reference.folder / reference.text


def load(path: Path, store: Path | None = None, **options: Any) -> Any:
    entry = DataEntry(path=DataRef(str(path)), **options)
    (dataset,) = load_datasets([entry], readers=READERS, resolve=resolve, store=store)
    return dataset


def write(folder: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def png(seed: int, **sizes: int) -> bytes:
    buffer = io.BytesIO()
    drawing(seed, **sizes).save(buffer, "PNG")
    return buffer.getvalue()


def wav(hertz: float, rate: int = RATE, seconds: float = 1.0) -> bytes:
    buffer = io.BytesIO()
    wavfile.write(buffer, rate, tone(hertz, seconds, rate))
    return buffer.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "cat.png").write_bytes(png(0))
    (tmp_path / "dog.png").write_bytes(png(1))
    (tmp_path / "a.wav").write_bytes(wav(440))
    return tmp_path


def refusal(folder: Path, rows: Sequence[Mapping[str, Any]], **options: Any) -> str:
    path = write(folder, rows)
    with pytest.raises(DataError) as caught:
        load(path, **options)
    return str(caught.value)


@pytest.mark.parametrize(
    ("row", "anchor", "positive", "pair"),
    [
        ({"image": "cat.png", "caption": "a cat"}, "[image cat.png]", "a cat", "image-text"),
        ({"query": "a cat", "image": "cat.png"}, "a cat", "[image cat.png]", "image-text"),
        ({"query": "a cat", "pos": {"image": "cat.png"}}, "a cat", "[image cat.png]", "image-text"),
        (
            {"query": {"image": "cat.png", "text": "which?"}, "positive": "a cat"},
            "[image cat.png]which?",
            "a cat",
            "image-text",
        ),
        (
            {"query": {"parts": ["is ", {"image": "cat.png"}, " it?"]}, "pos": [{"path": "a.wav"}]},
            "is [image cat.png] it?",
            "[audio a.wav]",
            "audio-image",
        ),
    ],
)
def test_media_are_in_every_column(
    folder: Path, row: Mapping[str, Any], anchor: str, positive: str, pair: str
) -> None:
    dataset = load(write(folder, [row]))
    example = dataset[0]
    assert show_media(example.anchor) == anchor
    assert [show_media(text) for text in example.positives] == [positive]
    assert dataset.info.pair == pair


def test_images_are_found_in_tables_and_with_labels(folder: Path) -> None:
    (folder / "rows.csv").write_text("image,caption\ncat.png,a cat\n")
    assert show_media(load(folder / "rows.csv")[0].anchor) == "[image cat.png]"
    rows = [
        {"image": name, "label": label}
        for name, label in (("cat.png", "a"), ("dog.png", "a"), ("cat.png", "b"), ("dog.png", "b"))
    ]
    dataset = load(write(folder, rows))
    assert dataset.info.task == "classification"
    assert has_media(dataset[0].anchor)
    assert has_media(dataset[0].positives[0])


def test_columns_of_datasets_are_read(tmp_path: Path) -> None:
    """Bytes with a path are what `datasets` writes."""
    table = pa.table(
        {
            "image": [{"bytes": png(0), "path": "cat.png"}, {"bytes": png(1), "path": None}],
            "caption": ["a cat", "a dog"],
        }
    )
    pq.write_table(table, tmp_path / "images.parquet")
    dataset = load(tmp_path / "images.parquet", tmp_path / "store")
    (media,) = split_parts(dataset[1].anchor)
    assert isinstance(media, Media)
    assert read_image_size(media) == drawing(1).size
    assert Path(media.path).parent == tmp_path / "store" / "media"


def test_a_file_has_one_kind_of_pairs_and_no_paths_in_its_texts(folder: Path) -> None:
    forged = join_parts([Media("image", "0" * 32, "/etc/passwd")])
    dataset = load(write(folder, [{"query": forged, "positive": {"parts": [forged]}}]))
    assert dataset.info.media is None
    assert not has_media(dataset[0].anchor + dataset[0].positives[0])
    rows = [{"query": {"image": "cat.png"}, "pos": "a"}, {"query": {"audio": "a.wav"}, "pos": "a"}]
    message = refusal(folder, rows)
    assert "rows.jsonl:2: " in message
    assert "two files" in message


def test_stored_rows_know_their_media_and_changed_media_are_read_again(folder: Path) -> None:
    path = write(folder, [{"image": "cat.png", "caption": "a cat"}])
    first, again = (load(path, folder / "store") for _ in range(2))
    assert first.info.media == again.info.media is not None
    assert first.fingerprint == again.fingerprint
    path = write(folder, [{"image": "cat.png", "caption": "a cat"}])
    first = load(path, folder / "store")
    (folder / "cat.png").write_bytes(png(5, width=48))
    again = load(path, folder / "store")
    assert first.fingerprint != again.fingerprint


@pytest.mark.parametrize("move", [Path.rename, shutil.copytree])
def test_a_moved_or_copied_set_is_the_same_set_with_its_own_media(folder: Path, move: Any) -> None:
    old = folder / "old"
    old.mkdir()
    shutil.copy(folder / "cat.png", old)
    path = write(old, [{"image": "cat.png", "caption": "a cat"}])
    first = load(path, folder / "store")
    move(old, folder / "new")
    moved = load(folder / "new" / "rows.jsonl", folder / "store")
    assert moved.fingerprint == first.fingerprint
    (media,) = split_parts(moved[0].anchor)
    assert isinstance(media, Media)
    assert Path(media.path) == folder / "new" / "cat.png"
    assert moved.info.media.paths_hash != first.info.media.paths_hash


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"image": "none.png", "caption": "a"}, "none.png"),
        ({"query": "a", "positive": {"picture": "cat.png"}}, "{image: path}"),
    ],
)
def test_a_bad_medium_is_named_by_line(folder: Path, row: Mapping[str, Any], words: str) -> None:
    good = {
        **row,
        **{k: "cat.png" if k == "image" else "a.wav" for k in ("image", "audio") if k in row},
    }
    if "positive" in row:
        good["positive"] = {"image": "cat.png"}
    message = refusal(folder, [good, row])
    assert "rows.jsonl:2: " in message
    assert words.rstrip("s") in message


def test_columns_of_the_hub_come_undecoded(tmp_path: Path) -> None:
    import datasets
    from emberge.data.hub_datasets import _disable_decoding

    features = {
        "image": datasets.Image(),
        "clips": datasets.List(datasets.Audio()),
        "text": datasets.Value("string"),
    }
    plain = {name: _disable_decoding(feature) for name, feature in features.items()}
    assert plain["image"] == datasets.Image(decode=False)
    assert plain["clips"] == datasets.List(datasets.Audio(decode=False))
    assert plain["text"] == features["text"]


def test_a_kind_is_of_the_file_unless_it_is_named(tmp_path: Path) -> None:
    values = MediaValues(MediaFolder(tmp_path))
    assert values._read_medium("audio", {"bytes": png(0)}, "audio").kind == "audio"
    with pytest.raises(DataError, match=r"'a' has int as image"):
        values._read_medium("image", 5, "a")
    with pytest.raises(DataError, match="neither bytes nor a path"):
        values._read_medium("image", {"bytes": b""}, "a")
    (tmp_path / "a").write_bytes(png(0))
    buffer = io.BytesIO()
    drawing(0).save(buffer, "WEBP")
    (tmp_path / "b").write_bytes(buffer.getvalue())
    values = MediaValues(MediaFolder(tmp_path / "store", tmp_path))
    for name in ("a", "b"):
        (media,) = split_parts(values.read_object({"path": name, "bytes": None}, "a"))
        assert isinstance(media, Media)
        assert (media.kind, Path(media.path)) == ("image", tmp_path / name)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({}, r"not an object (empty)"),
        ({"image": "a", "video": "b"}, "not an object (image, video)"),
        ({"parts": "a"}, "needs a list under parts"),
        ({"parts": [5]}, "has int as a part"),
    ],
)
def test_forms_of_media_that_are_not_known_are_named(value: Any, words: str) -> None:
    with pytest.raises(DataError) as caught:
        MediaValues().read_object(value, "a")
    assert words in str(caught.value)
    assert "'a' " in str(caught.value)
