"""Drawn images and tones show what their captions have, are the same bytes anywhere, and keep tests apart."""

from __future__ import annotations

import hashlib
import io
import json
from collections import Counter
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from emberge import DataEntry, DataRef, Problem, Workspace, split_parts
from emberge.data import load_datasets, load_eval_set, pick_eval_sets
from emberge_data import JsonLines
from emberge_demo.drawn_media import RATE, Drawing, DrawnMedia, RandomIntegers, Tones
from scipy import ndimage
from scipy.io import wavfile

SETS = ["images_to_texts", "texts_to_images", "clips_to_texts", "texts_to_clips"]
SMALL = {"copies": 1, "test_copies": 1}


class Place:
    """As much of a workspace as the step asks for."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.seed = folder, seed
        folder.mkdir(parents=True)

    def progress(self, *_: object) -> None:
        """Go on."""


class Look:
    """As much of a preflight as the step asks for."""

    def problem(self, message: str, option: str = "") -> Problem:
        return Problem(message, option)


def drawn(folder: Path, seed: int = 0, **options: Any) -> Path:
    step = DrawnMedia(**{**SMALL, **options})
    step.run(cast("Workspace", Place(folder, seed)))
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def captions(folder: Path, name: str) -> list[str]:
    lines = (folder / "train" / f"{name}.jsonl").read_text().splitlines()
    return [json.loads(line)["pos"][0] for line in lines]


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return drawn(tmp_path_factory.mktemp("drawn") / "one")


@pytest.mark.slow
def test_one_seed_gives_the_same_bytes_and_another_does_not(one: Path, tmp_path: Path) -> None:
    again, other = (drawn(tmp_path / str(seed), seed) for seed in (0, 1))
    assert content(one) == content(again)
    assert content(one).keys() == content(other).keys()
    media = [name for name in content(one) if name.endswith((".bmp", ".wav"))]
    assert not any(content(one)[name] == content(other)[name] for name in media)


def test_the_bytes_are_those_of_every_machine() -> None:
    draws = RandomIntegers(("0", "train", "caption", "0"))
    found = [
        hashlib.sha256(file).hexdigest()[:16]
        for file in (
            Drawing(3, "blue", "triangle").content(draws),
            Tones(3, "quick", "soft", "high").content(draws),
        )
    ]
    assert found == ["98eba778ad4c9d74", "f0783efa4fd54f03"]


@pytest.mark.parametrize("drawing", list(Drawing.all()), ids=lambda one: one.caption)
def test_an_image_has_as_many_shapes_as_its_caption_counts(drawing: Drawing) -> None:
    pixels = drawing.pixels(RandomIntegers((drawing.caption,)))
    _, count = ndimage.label((pixels != pixels[0, 0]).any(axis=2))
    assert count == drawing.number
    colours = np.unique(pixels.reshape(-1, 3), axis=0)
    assert len(colours) == 2  # the shapes' and the paper's


def test_shapes_of_one_size_and_place_differ() -> None:
    same = RandomIntegers(("same",))
    shapes = ("circle", "square", "triangle", "diamond")
    assert len({Drawing(1, "red", shape).pixels(same).tobytes() for shape in shapes}) == 4


@pytest.mark.parametrize("tones", list(Tones.all())[::7], ids=lambda one: one.caption)
def test_a_clip_has_as_many_beeps_of_its_pitch_as_its_caption_counts(tones: Tones) -> None:
    rate, samples = wavfile.read(io.BytesIO(tones.content(RandomIntegers((tones.caption,)))))
    assert (rate, samples.shape, samples.dtype) == (RATE, (RATE,), np.int16)
    loud = ndimage.maximum_filter1d(np.abs(samples.astype(int)), RATE // 100) > 200
    _, count = ndimage.label(loud)
    assert count == tones.number
    spectrum = np.abs(np.fft.rfft(samples))
    pitch = {"deep": 200, "low": 320, "medium": 510, "high": 820, "shrill": 1300}[tones.pitch]
    # 4 % around the pitch are drawn, and beeps one after another widen the peak by some hertz.
    assert abs(int(spectrum.argmax()) - pitch) <= 0.04 * pitch + 15


def test_captions_of_the_tests_are_in_no_training_pair(one: Path) -> None:
    trained = {*captions(one, "drawings"), *captions(one, "tones")}
    assert len(trained) == 72 + 60
    for eval_set in pick_eval_sets(one):
        data = cast("Any", load_eval_set(eval_set, readers=[JsonLines()]))
        texts = data.queries if eval_set.name.startswith("texts") else data.corpus
        assert texts
        assert not trained & set(texts.values())
    # What a caption is made of was seen.
    words = {word for caption in trained for word in caption.split()}
    both = [*Drawing.all(), *Tones.all()]
    assert words == {word for one in both for word in one.caption.split()}


def test_sets_are_read_as_media_in_both_directions(one: Path) -> None:
    assert [eval_set.name for eval_set in pick_eval_sets(one)] == SETS
    for eval_set in pick_eval_sets(one):
        data = cast("Any", load_eval_set(eval_set, readers=[JsonLines()]))
        for query, judged in data.relevant.items():
            (document,) = judged
            ((medium,), (caption,)) = sorted(
                (split_parts(data.queries[query]), split_parts(data.corpus[document])),
                key=lambda parts: isinstance(parts[0], str),
            )
            assert Path(medium.path).stem == f"{caption.replace(' ', '_')}_0"
    entry = DataEntry(path=DataRef(str(one)))
    datasets = load_datasets([entry], readers=[JsonLines()], resolve=lambda ref: Path(ref.text))
    assert [(dataset.info.name, len(dataset)) for dataset in datasets] == [
        ("drawings", 72),
        ("tones", 60),
    ]
    assert datasets[0][0].positives[0] in captions(one, "drawings")


def test_the_control_has_the_same_media_with_captions_of_others(one: Path, tmp_path: Path) -> None:
    control = drawn(tmp_path / "control", paired=False)
    same, other = content(one), content(control)
    rows = {"train/drawings.jsonl", "train/tones.jsonl"}
    assert {name for name in same if same[name] != other[name]} == rows
    for name in ("drawings", "tones"):
        right, wrong = captions(one, name), captions(control, name)
        assert Counter(right) == Counter(wrong)
        # About one of 60 stays by chance.
        assert sum(map(str.__eq__, right, wrong)) < len(right) / 10
