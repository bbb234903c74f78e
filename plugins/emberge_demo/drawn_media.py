"""The `drawn_media` step: images and sounds from random numbers, with captions, to train and search."""

from __future__ import annotations

import io
import itertools
import math
import wave
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from emberge import Artifact, ArtifactKind, Count, NumberRange, Preflight, Problem, Step, Workspace
from emberge.data import even_place, write_entries, write_json_rows

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


SIDE = 64  # pixels: 2 by 2 patches of 32, which is 16 merged by two, or any power of two below
NUMBERS = ("one", "two", "three", "four")
_COLOURS: Mapping[str, tuple[int, int, int]] = {
    **{"red": (220, 40, 40), "green": (40, 170, 60), "blue": (50, 80, 220)},
    **{"yellow": (235, 205, 40), "purple": (150, 60, 180), "black": (20, 20, 20)},
}
_PAPER = 245
# Membership of points by their distances to the right and down of a shape's middle, and its radius.
# Whole numbers alone, so that all machines draw the same pixels.
_SHAPES: Mapping[str, Callable[[Any, Any, int], Any]] = {
    "circle": lambda x, y, r: x * x + y * y <= r * r,
    "square": lambda x, y, r: (8 * abs(x) <= 7 * r) & (8 * abs(y) <= 7 * r),
    "triangle": lambda x, y, r: (abs(y) <= r) & (2 * abs(x) <= y + r),
    "diamond": lambda x, y, r: abs(x) + abs(y) <= r,
}
RATE = 16_000
"""Samples a second."""
_PITCHES: Mapping[str, int] = {"deep": 200, "low": 320, "medium": 510, "high": 820, "shrill": 1300}
_RHYTHMS: Mapping[str, tuple[int, int]] = {  # samples of a beep, and from one to the next
    "quick": (RATE // 12, RATE // 8),
    "slow": (RATE // 6, RATE // 4),
}
_SOUNDS = ("soft", "harsh")  # a sine, and a square
_PERIOD = 4096  # entries of a sine's table
_FADE = 80  # samples in which a beep grows and ends
_COMMON = {"task": "retrieval", "language": "en", "instruction": ""}


@dataclass(frozen=True)
class RandomIntegers:
    """Source of random integers for one file, which depend on its key words alone on every machine."""

    words: tuple[str, ...]

    def pick(self, low: int, high: int, *name: object) -> int:
        """Return the integer from `low` to `high`, both included, that belongs to `name`."""
        return low + even_place(*self.words, *name) % (high - low + 1)


@dataclass(frozen=True, order=True)
class Drawing:
    """Content of an image: one to four shapes of one kind and colour, each in its own quarter."""

    number: int
    colour: str
    shape: str

    kind: ClassVar[str] = "image"
    ending: ClassVar[str] = "bmp"

    @classmethod
    def all(cls) -> Iterator[Drawing]:
        """Yield all 96 contents that an image can have."""
        for number, colour, shape in itertools.product(range(1, 5), _COLOURS, _SHAPES):
            yield cls(number, colour, shape)

    @property
    def caption(self) -> str:
        """Description of the image, such as "two red circles"."""
        return f"{NUMBERS[self.number - 1]} {self.colour} {self.shape}{'s' * (self.number > 1)}"

    def content(self, draws: RandomIntegers) -> bytes:
        """Return a file of the image, a BMP: compressed files differ with the release of zlib."""
        import io

        from PIL import Image

        buffer = io.BytesIO()
        Image.fromarray(self.pixels(draws)).save(buffer, "BMP")
        return buffer.getvalue()

    def pixels(self, draws: RandomIntegers) -> NDArray[np.uint8]:
        """Return the image [SIDE, SIDE, 3], with shapes of random sizes and places."""
        import numpy as np

        half_side = SIDE // 2
        image = np.full((SIDE, SIDE, 3), _PAPER, np.uint8)
        row_grid, column_grid = np.mgrid[:SIDE, :SIDE]
        quarters = sorted(range(4), key=lambda quarter: draws.pick(0, 2**32, "order", quarter))
        for quarter in quarters[: self.number]:
            radius = draws.pick(half_side // 4, half_side // 2 - 2, "radius", quarter)
            x, y = (
                corner * half_side + draws.pick(radius + 1, half_side - radius - 2, axis, quarter)
                for axis, corner in (("x", quarter % 2), ("y", quarter // 2))
            )
            image[_SHAPES[self.shape](column_grid - x, row_grid - y, radius)] = _COLOURS[
                self.colour
            ]
        return image


@dataclass(frozen=True, order=True)
class Tones:
    """Content of a clip: one to four beeps of one pitch, sound and rhythm within a second."""

    number: int
    rhythm: str
    sound: str
    pitch: str

    kind: ClassVar[str] = "audio"
    ending: ClassVar[str] = "wav"

    @classmethod
    def all(cls) -> Iterator[Tones]:
        """Yield all 80 contents that a clip can have."""
        for number, *properties in itertools.product(range(1, 5), _RHYTHMS, _SOUNDS, _PITCHES):
            yield cls(number, *properties)

    @property
    def caption(self) -> str:
        """Description of the clip, such as "three quick soft high beeps"."""
        words = (NUMBERS[self.number - 1], self.rhythm, self.sound, self.pitch)
        return f"{' '.join(words)} beep{'s' * (self.number > 1)}"

    def content(self, draws: RandomIntegers) -> bytes:
        """Return a WAV file of one channel and 16 bits."""
        buffer = io.BytesIO()
        with wave.open(buffer, "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(RATE)
            file.writeframes(self.samples(draws).astype("<i2").tobytes())
        return buffer.getvalue()

    def samples(self, draws: RandomIntegers) -> NDArray[np.int16]:
        """Return a second of samples, with random begin, loudness and exact pitch.

        Phases are integers, and the sine is looked up in a table, so that all machines make equal
        samples.
        """
        import numpy as np

        length, period = _RHYTHMS[self.rhythm]
        begin = draws.pick(0, RATE - 3 * period - length, "begin")
        # Of a period's table, steps a sample in 1/1000: 4 % around the pitch.
        step = _PITCHES[self.pitch] * _PERIOD * draws.pick(960, 1040, "pitch") // RATE
        places = np.arange(length) * step // 1000 % _PERIOD
        table = np.array([_compute_sample(self.sound, start) for start in range(_PERIOD)])
        grown = np.minimum(np.arange(length), length - 1 - np.arange(length)).clip(max=_FADE)
        loudness = draws.pick(50, 90, "loud")
        beep = table[places] * grown * loudness // (_FADE * 100)
        wave = np.zeros(RATE, np.int16)
        for number in range(self.number):
            start = begin + number * period
            wave[start : start + length] = beep
        return wave


def _compute_sample(sound: str, number: int) -> int:
    value = round(2**14 * math.sin(2 * math.pi * number / _PERIOD))
    return value if sound == "soft" else (9000 if value >= 0 else -9000)


_Content = Drawing | Tones
# By the name of a training set: what its media show, and the words for both sides in names of sets.
_SETS: Mapping[str, tuple[type[_Content], str]] = {
    "drawings": (Drawing, "images"),
    "tones": (Tones, "clips"),
}


@dataclass(frozen=True, kw_only=True)
class DrawnMedia(Step):
    """Drawn images and synthetic sounds with captions, from which a model can learn the meaning of words.

    `drawings` are images of one to four shapes of one colour ("two red circles"). `tones` are clips of a
    second with one to four beeps of one rhythm, sound and pitch ("three quick soft high beeps"). Sizes,
    places, loudness and the exact pitch are drawn from the recipe's seed, so files have the same bytes on
    every machine. A share `held_out` of all possible captions is in no training pair; both directions of
    search are tested on these: `images_to_texts`, `texts_to_images`, `clips_to_texts`, `texts_to_clips`.
    Images have 64 x 64 pixels.

    With `paired: false` the captions of the training pairs are shuffled among the media, and the tests do not
    change. This control shows the score of a model that has never seen a medium with its own caption.

    Example:
        drawn:
          drawn_media: {copies: 6}
    """

    copies: Count = 6
    """Images, and clips, of each caption that is trained on."""
    test_copies: Count = 2
    """Images, and clips, of each caption that is tested on."""
    held_out: Annotated[float, NumberRange(above=0, below=1)] = 0.25
    """Share of the captions that no training pair has."""
    paired: bool = True

    produces: ClassVar[ArtifactKind] = "data"

    def check(self, context: Preflight) -> Iterator[Problem]:
        if find_spec("PIL") is None:
            yield context.problem("images are drawn with Pillow: pip install pillow")

    def run(self, workspace: Workspace) -> Artifact:
        """Draw the media and write training pairs, evaluation sets and their catalogue."""
        catalogue: dict[str, Any] = {"train": [], "eval": []}
        for number, (name, (contents, word)) in enumerate(_SETS.items()):
            workspace.progress(number, len(_SETS), "sets", name)
            writer = _MediaWriter(self, workspace, word)
            train, test = self._split_contents(sorted(contents.all()))
            catalogue["train"].append(writer.training(name, train))
            catalogue["eval"] += writer.searches(test)
        write_entries(workspace.folder, catalogue)
        return Artifact(
            kind="data",
            size=sum(entry["rows"] for entry in catalogue["train"]),
            details={"rows": {entry["name"]: entry["rows"] for entry in catalogue["train"]}},
        )

    def _split_contents(
        self, contents: Sequence[_Content]
    ) -> tuple[list[_Content], list[_Content]]:
        """Return the contents to train on and those to test on, equal for every seed."""
        ordered_contents = sorted(contents, key=lambda one: even_place("held out", one.caption))
        held_out_count = min(
            len(ordered_contents) - 1, max(1, round(self.held_out * len(ordered_contents)))
        )
        return ordered_contents[held_out_count:], ordered_contents[:held_out_count]


@dataclass(frozen=True)
class _MediaWriter:
    """Writer of one kind of media into a step's folder."""

    options: DrawnMedia
    workspace: Workspace
    word: str

    def training(self, name: str, contents: Sequence[_Content]) -> Mapping[str, Any]:
        """Write the training pairs, and return their entry of the catalogue."""
        copies = [(content, copy) for copy in range(self.options.copies) for content in contents]
        captions = [content.caption for content, _ in copies]
        if not self.options.paired:
            captions = [captions[number] for number in self._shuffle_captions(len(captions))]
        rows = [
            {"query": self._write_media("train", content, copy), "pos": [caption], "neg": []}
            for (content, copy), caption in zip(copies, captions, strict=True)
        ]
        path = f"train/{name}.jsonl"
        count = write_json_rows(self.workspace.folder / path, rows)
        return {"name": name, "file": path, **_COMMON, "symmetric": True, "rows": count}

    def searches(self, contents: Sequence[_Content]) -> Iterator[Mapping[str, Any]]:
        """Write the evaluation set of each search direction, and yield its catalogue entry."""
        copies = [
            (content, copy) for content in contents for copy in range(self.options.test_copies)
        ]
        captions = {content: f"t{number}" for number, content in enumerate(contents)}
        media = {pair: f"{self.word[0]}{number}" for number, pair in enumerate(copies)}
        for name, query_side in (
            (f"{self.word}_to_texts", True),
            (f"texts_to_{self.word}", False),
        ):
            folder = f"eval/{name}"
            texts = [{"_id": captions[content], "text": content.caption} for content in contents]
            # Each set has its own files, so that its folder is all of it.
            files = [
                {"_id": media[content, copy], "text": self._write_media(folder, content, copy)}
                for content, copy in copies
            ]
            queries, corpus = (files, texts) if query_side else (texts, files)
            for stem, rows in (("queries", queries), ("corpus", corpus)):
                write_json_rows(self.workspace.folder / folder / f"{stem}.jsonl", rows)
            pairs = [(media[content, copy], captions[content]) for content, copy in copies]
            judgements = [
                f"{content}\t{two}\t1"
                for content, two in (p if query_side else p[::-1] for p in pairs)
            ]
            text = "\n".join(["query-id\tcorpus-id\tscore", *judgements, ""])
            path = self.workspace.folder / folder / "qrels.tsv"
            path.write_text(text, encoding="utf-8", newline="\n")
            counts = {"corpus": len(corpus), "queries": {"test": len(queries)}}
            yield {
                "name": name,
                "dir": folder,
                **_COMMON,
                "symmetric": False,
                "domain": "in",
                "metric": "ndcg_at_10",
                **counts,
                "qrels": {"test": len(judgements)},
            }

    def _write_media(self, folder: str, content: _Content, copy: int) -> Mapping[str, str]:
        """Write one image or clip, and return the cell of a row that names it."""
        half = "train" if folder == "train" else "test"
        draws = RandomIntegers((str(self.workspace.seed), half, content.caption, str(copy)))
        name = f"{self.word}/{content.caption.replace(' ', '_')}_{copy}.{content.ending}"
        path = self.workspace.folder / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.content(draws))
        return {content.kind: name}

    def _shuffle_captions(self, count: int) -> list[int]:
        seed = str(self.workspace.seed)
        return sorted(range(count), key=lambda row: even_place("unpaired", seed, str(row)))
