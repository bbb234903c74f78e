"""Steps of `bidirlm/tiny`: drawn images and tones with captions, random towers, draw_order towers."""

from __future__ import annotations

import io
import itertools
import json
import math
import wave
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from emberge import (
    Artifact,
    CheckpointError,
    ModelRef,
    Step,
    WholeNumber,
    Workspace,
    draw_order,
    hash_evenly,
    hookimpl,
    make_seed,
)
from emberge.model_folder import Checkpoint, copy_model
from emberge_data import write_entries, write_json_rows
from emberge_encoder import load_tokenizer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# ── media ───────────────────────────────────────────────────────────────────────────────────────

COPIES, TEST_COPIES = 6, 2  # images, and clips, of each caption
HELD_OUT = 0.25  # share of the captions that no training pair has
NUMBERS = ("one", "two", "three", "four")
SIDE, PAPER = 64, 245  # pixels
COLOURS: Mapping[str, tuple[int, int, int]] = {
    **{"red": (220, 40, 40), "green": (40, 170, 60), "blue": (50, 80, 220)},
    **{"yellow": (235, 205, 40), "purple": (150, 60, 180), "black": (20, 20, 20)},
}
# Membership of points by their distances to the right and down of a shape's middle, and its radius.
# Whole numbers alone, so that all machines draw the same pixels.
SHAPES = {
    "circle": lambda x, y, r: x * x + y * y <= r * r,
    "square": lambda x, y, r: (8 * abs(x) <= 7 * r) & (8 * abs(y) <= 7 * r),
    "triangle": lambda x, y, r: (abs(y) <= r) & (2 * abs(x) <= y + r),
    "diamond": lambda x, y, r: abs(x) + abs(y) <= r,
}
RATE = 16_000  # samples a second
PITCHES = {"deep": 200, "low": 320, "medium": 510, "high": 820, "shrill": 1300}
RHYTHMS = {"quick": (RATE // 12, RATE // 8), "slow": (RATE // 6, RATE // 4)}  # a beep, a period
PERIOD, FADE = 4096, 80  # entries of a sine's table, samples in which a beep grows and ends
COMMON = {"task": "retrieval", "language": "en", "instruction": ""}


@dataclass(frozen=True)
class Draws:
    """Random integers for one file, which depend on its key words alone on every machine."""

    words: tuple[str, ...]

    def pick(self, low: int, high: int, *name: object) -> int:
        """Return the integer from `low` to `high`, both included, that belongs to `name`."""
        return low + hash_evenly(*self.words, *name) % (high - low + 1)


def draw_image(draws: Draws, number: int, colour: str, shape: str) -> bytes:
    """Return a BMP of shapes, each in its own quarter; compressed files differ with the release of zlib."""
    import numpy as np
    from PIL import Image

    half = SIDE // 2
    image = np.full((SIDE, SIDE, 3), PAPER, np.uint8)
    rows, columns = np.mgrid[:SIDE, :SIDE]
    quarters = sorted(range(4), key=lambda quarter: draws.pick(0, 2**32, "order", quarter))
    for quarter in quarters[:number]:
        radius = draws.pick(half // 4, half // 2 - 2, "radius", quarter)
        x, y = (
            corner * half + draws.pick(radius + 1, half - radius - 2, axis, quarter)
            for axis, corner in (("x", quarter % 2), ("y", quarter // 2))
        )
        image[SHAPES[shape](columns - x, rows - y, radius)] = COLOURS[colour]
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "BMP")
    return buffer.getvalue()


def draw_clip(draws: Draws, number: int, rhythm: str, sound: str, pitch: str) -> bytes:
    """Return a WAV of a second; phases are integers, so that all machines make equal samples."""
    import numpy as np

    length, period = RHYTHMS[rhythm]
    begin = draws.pick(0, RATE - 3 * period - length, "begin")
    # Of a period's table, steps a sample in 1/1000: 4 % around the pitch.
    step = PITCHES[pitch] * PERIOD * draws.pick(960, 1040, "pitch") // RATE
    sine = [round(2**14 * math.sin(2 * math.pi * place / PERIOD)) for place in range(PERIOD)]
    table = np.array(sine if sound == "soft" else [9000 if value >= 0 else -9000 for value in sine])
    grown = np.minimum(np.arange(length), length - 1 - np.arange(length)).clip(max=FADE)
    beep = table[np.arange(length) * step // 1000 % PERIOD] * grown
    beep = beep * draws.pick(50, 90, "loud") // (FADE * 100)
    samples: NDArray[np.int16] = np.zeros(RATE, np.int16)
    for start in range(begin, begin + number * period, period):
        samples[start : start + length] = beep
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(samples.astype("<i2").tobytes())
    return buffer.getvalue()


@dataclass(frozen=True, order=True)
class Content:
    """What an image or a clip shows: "two red circles", "three quick soft high beeps"."""

    number: int
    words: tuple[str, ...]
    noun: str = ""

    @property
    def caption(self) -> str:
        words = (NUMBERS[self.number - 1], *self.words, *([self.noun] if self.noun else []))
        return " ".join(words) + "s" * (self.number > 1)

    def render(self, draws: Draws) -> bytes:
        """Return the content of a file that shows it."""
        return (draw_clip if self.noun else draw_image)(draws, self.number, *self.words)


@dataclass(frozen=True, kw_only=True)
class DrawnMedia(Step):
    """Drawn images (`drawings`) and synthetic sounds (`tones`) with captions, to train and to search.

    Sizes, places, loudness and the exact pitch are drawn from the recipe's seed. A quarter of the captions is
    in no training pair; both directions of search are tested on these.
    """

    produces = "data"

    paired: bool = True
    """False shuffles the captions of the training pairs among the media."""

    def run(self, workspace: Workspace) -> Artifact:
        drawings = itertools.product(range(1, 5), itertools.product(COLOURS, SHAPES))
        tones = itertools.product(
            range(1, 5), itertools.product(RHYTHMS, ("soft", "harsh"), PITCHES)
        )
        catalogue: dict[str, list[Mapping[str, Any]]] = {"train": [], "eval": []}
        size = 0
        for name, kind, word, contents in (
            ("drawings", "image", "images", [Content(*one) for one in drawings]),
            ("tones", "audio", "clips", [Content(*one, noun="beep") for one in tones]),
        ):
            ordered = sorted(sorted(contents), key=lambda one: hash_evenly("held out", one.caption))
            count = round(HELD_OUT * len(ordered))
            writer = MediaWriter(workspace, kind, word)
            rows = self._pair(workspace, writer, ordered[count:])
            file = f"train/{name}.jsonl"
            size += write_json_rows(workspace.folder / file, rows)
            catalogue["train"].append({"name": name, "file": file, **COMMON, "symmetric": True})
            catalogue["eval"] += writer.write_searches(ordered[:count])
        write_entries(workspace.folder, catalogue)
        return Artifact(kind="data", size=size)

    def _pair(
        self, workspace: Workspace, writer: MediaWriter, contents: list[Content]
    ) -> list[Mapping[str, Any]]:
        copies = [(content, copy) for copy in range(COPIES) for content in contents]
        order = list(range(len(copies)))
        if not self.paired:
            order.sort(key=lambda row: hash_evenly("unpaired", str(workspace.seed), str(row)))
        return [
            {"query": writer.write("train", *one), "pos": [copies[row][0].caption], "neg": []}
            for one, row in zip(copies, order, strict=True)
        ]


@dataclass(frozen=True)
class MediaWriter:
    """Writer of one kind of media into a step's folder."""

    workspace: Workspace
    kind: str
    word: str

    def write(self, folder: str, content: Content, copy: int) -> Mapping[str, str]:
        """Write one image or clip, and return the cell of a row that names it."""
        half = "train" if folder == "train" else "test"
        draws = Draws((str(self.workspace.seed), half, content.caption, str(copy)))
        ending = "wav" if content.noun else "bmp"
        name = f"{self.word}/{content.caption.replace(' ', '_')}_{copy}.{ending}"
        path = self.workspace.folder / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.render(draws))
        return {self.kind: name}

    def write_searches(self, contents: list[Content]) -> Iterator[Mapping[str, Any]]:
        """Write the evaluation set of each search direction, and yield its catalogue entry."""
        copies = [(content, copy) for content in contents for copy in range(TEST_COPIES)]
        texts: list[Mapping[str, Any]] = [
            {"_id": f"t{i}", "text": one.caption} for i, one in enumerate(contents)
        ]
        ids = [f"{self.word[0]}{number}" for number in range(len(copies))]
        pairs = [(one, f"t{number // TEST_COPIES}") for number, one in enumerate(ids)]
        for name in (f"{self.word}_to_texts", f"texts_to_{self.word}"):
            folder = f"eval/{name}"
            cells = (self.write(folder, *one) for one in copies)
            files: list[Mapping[str, Any]] = [
                {"_id": one, "text": cell} for one, cell in zip(ids, cells, strict=True)
            ]
            by_media = name.startswith(self.word)
            queries, corpus = (files, texts) if by_media else (texts, files)
            write_json_rows(self.workspace.folder / folder / "queries.jsonl", queries)
            write_json_rows(self.workspace.folder / folder / "corpus.jsonl", corpus)
            lines = [f"{a}\t{b}\t1" for a, b in (one if by_media else one[::-1] for one in pairs)]
            text = "\n".join(["query-id\tcorpus-id\tscore", *lines, ""])
            path = self.workspace.folder / folder / "qrels.tsv"
            path.write_text(text, encoding="utf-8", newline="\n")
            facts = {"symmetric": False, "domain": "in", "metric": "ndcg_at_10"}
            yield {"name": name, "dir": folder, **COMMON, **facts}


# ── towers ──────────────────────────────────────────────────────────────────────────────────────

# Qwen's own tokens; those of speech models come after those of vision models, so that no id has two.
VISION = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
AUDIO = ("<|audio_start|>", "<|audio_end|>", "<|audio_pad|>")
LARGEST = 256  # an image's largest area, in areas of the smallest
ASR_PROCESSOR = {
    "feature_extractor": {
        **{"feature_extractor_type": "Qwen3ASRFeatureExtractor", "feature_size": 128},
        **{"hop_length": 160, "n_fft": 400, "sampling_rate": 16000, "chunk_length": 30},
        **{"padding_side": "right", "padding_value": 0.0, "return_attention_mask": True},
        **{"n_window": 50, "min_length": 8000, "dither": 0.0},
    },
    "processor_class": "Qwen3ASRProcessor",
}


@dataclass(frozen=True, kw_only=True)
class RandomTower(Step):
    """A Qwen3-VL (`vision`) or Qwen3-ASR (`audio`) of a Qwen3's trunk and a tower with random weights.

    `vision` and `audio` are the tower's part of config.json. The special tokens come after the tokenizer's
    own tokens, so the model's embeddings need rows for them.
    """

    produces = "model"

    model: ModelRef
    vision: dict[str, Any] | None = None
    audio: dict[str, Any] | None = None
    seed: WholeNumber | None = None

    def run(self, workspace: Workspace) -> Artifact:
        import torch
        from transformers import AutoModel

        model = workspace.model(self.model)
        with workspace.whole_model(model) as folder:
            checkpoint = Checkpoint(folder)
            tokenizer = load_tokenizer(folder)
            tokens = VISION if self.vision is not None else (*VISION, *AUDIO)
            tokenizer.add_special_tokens({"additional_special_tokens": list(tokens)})
            if len(tokenizer) > checkpoint.config["vocab_size"]:
                raise CheckpointError(f"{folder}: give it a vocab_size of {len(tokenizer)} or more")
            ids = {token: tokenizer.convert_tokens_to_ids(token) for token in tokens}
            with torch.random.fork_rng():
                torch.manual_seed(make_seed(workspace.seed, "random_tower"))
                built = self._build(dict(checkpoint.config), ids)
            trunk = AutoModel.from_pretrained(
                str(checkpoint.trunk),
                local_files_only=True,
                trust_remote_code=False,
                dtype="float32",
            )
            built.model.language_model.load_state_dict(trunk.state_dict())
        built.save_pretrained(workspace.folder)
        tokenizer.save_pretrained(workspace.folder)
        for name, content in self._describe_processors(built.config).items():
            text = json.dumps(content, indent=2) + "\n"
            (workspace.folder / name).write_text(text, encoding="utf-8")
        return Artifact(
            kind="model",
            size=model.size,
            parents=(self.model.text,),
            details={"made_by": "adding a random tower to", "seed": workspace.seed},
        )

    def _build(self, text: dict[str, Any], ids: Mapping[str, int]) -> Any:
        """Return the model, with weights drawn from torch's generator."""
        from transformers import (
            Qwen3ASRConfig,
            Qwen3ASRForConditionalGeneration,
            Qwen3VLConfig,
            Qwen3VLForConditionalGeneration,
        )

        text.pop("architectures", None)
        width, is_tied = text["hidden_size"], bool(text.get("tie_word_embeddings"))
        if self.audio is not None:
            asr: Any = Qwen3ASRConfig(
                text_config=text,
                audio_config={"output_dim": width, **self.audio},
                audio_token_id=ids["<|audio_pad|>"],
                tie_word_embeddings=is_tied,
            )
            return Qwen3ASRForConditionalGeneration(asr)
        half = int(text["head_dim"]) // 2
        side = half * 3 // 8  # height and width, of each 3/8 of the turned pairs, as in Qwen3-VL
        sections = {"mrope_interleaved": True, "mrope_section": [half - 2 * side, side, side]}
        del text["model_type"]
        vl: Any = Qwen3VLConfig(
            text_config={**text, "rope_parameters": {**text["rope_parameters"], **sections}},
            vision_config={"out_hidden_size": width, **(self.vision or {})},
            image_token_id=ids["<|image_pad|>"],
            video_token_id=ids["<|video_pad|>"],
            vision_start_token_id=ids["<|vision_start|>"],
            vision_end_token_id=ids["<|vision_end|>"],
            tie_word_embeddings=is_tied,
        )
        return Qwen3VLForConditionalGeneration(vl)

    def _describe_processors(self, config: Any) -> Mapping[str, Any]:
        """Return the contents of the processors' files by name, as in released specialists."""
        if self.audio is not None:
            return {"processor_config.json": ASR_PROCESSOR}
        tower = config.vision_config
        smallest = (tower.patch_size * tower.spatial_merge_size) ** 2
        common = {
            "patch_size": tower.patch_size,
            "temporal_patch_size": tower.temporal_patch_size,
            "merge_size": tower.spatial_merge_size,
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
            "size": {"shortest_edge": smallest, "longest_edge": LARGEST * smallest},
            "processor_class": "Qwen3VLProcessor",
        }
        image = {**common, "image_processor_type": "Qwen2VLImageProcessorFast"}
        video = {**common, "video_processor_type": "Qwen3VLVideoProcessor"}
        return {"preprocessor_config.json": image, "video_preprocessor_config.json": video}


@dataclass(frozen=True, kw_only=True)
class ShuffledParts(Step):
    """A control that keeps the size of some parts of a model and nothing they learned.

    The numbers of each row of their tensors are put in a random order; a vector is one row.
    """

    produces = "model"

    model: ModelRef
    parts: tuple[str, ...]
    """Beginnings of tensor names up to a dot, such as `visual`."""
    seed: WholeNumber | None = None

    def run(self, workspace: Workspace) -> Artifact:
        import torch
        from safetensors.torch import load, save_file

        model = workspace.model(self.model)
        with workspace.whole_model(model) as folder:
            copy_model(folder, workspace.folder)
        for file in Checkpoint(workspace.folder).trunk.glob("*.safetensors"):
            tensors = load(file.read_bytes())
            for name, tensor in tensors.items():
                if any(f".{part}." in f".{name}." for part in self.parts):
                    rows = tensor.view(1 if tensor.ndim == 1 else len(tensor), -1)
                    for number, row in enumerate(rows):
                        order = draw_order(len(row), make_seed(workspace.seed, name, number))
                        rows[number] = row[torch.from_numpy(order)]
            save_file(tensors, file, metadata={"format": "pt"})
        details = {"made_by": "shuffling the weights of", "seed": workspace.seed}
        return Artifact("model", size=model.size, parents=(self.model.text,), details=details)


@hookimpl
def register_steps() -> Mapping[str, type[Step]]:
    """Return the steps by their names."""
    return {
        "drawn_media": DrawnMedia,
        "random_tower": RandomTower,
        "shuffled_parts": ShuffledParts,
    }
