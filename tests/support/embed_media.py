"""Embeddings of texts, images, sound and mixtures by SentenceTransformer and by plain transformers.

`python -m tests.support.embed_media FOLDER:KINDS …` prints a line of JSON for each folder: by way and kind,
lists of embeddings. Its process has torchvision, which sentence-transformers demands for images and which
this one may lack: no index has a build of it for a torch without CUDA. The usual build loads beside one, if
the schemas of two operators, which only its binary part has, are defined first; its transforms of images need
neither. So that no other test meets such a build, `make` installs it into `beside` of the environment.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.places import ROOT

_BESIDE = Path(sys.prefix) / "beside"
ORDER: dict[str, tuple[str, ...]] = {
    **{kind: (kind,) for kind in ("text", "image", "audio")},
    "image and text": ("text", "image"),
    "all": ("text", "image", "audio"),
}
"""Parts of an input of each kind, in their order."""
TEXTS = ["a short text", "one that is a good deal longer than the other"]
PROMPT = "query: "
SEEN = "<|vision_start|><|image_pad|><|vision_end|>"
HEARD = "<|audio_start|><|audio_pad|><|audio_end|>"


def run_with_torchvision(*arguments: str) -> str:
    """Run this module with torchvision and return its output; skip the test without."""
    if importlib.util.find_spec("torchvision") is None and not (_BESIDE / "torchvision").is_dir():
        pytest.skip(
            f"needs torchvision: pip install --no-deps --target {_BESIDE} torchvision==0.28.0"
        )
    path = os.pathsep.join([str(ROOT), *sys.path, str(_BESIDE)])
    done = subprocess.run(
        [sys.executable, "-m", __name__, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def images() -> list[Any]:
    """Two drawings with sides that no processor resizes."""
    from PIL import Image

    random = np.random.default_rng(0)
    sizes = [(16, 24, 3), (32, 16, 3)]
    return [Image.fromarray(random.integers(0, 256, size, dtype=np.uint8)) for size in sizes]


def clips() -> list[np.ndarray]:
    """Two tones of one second and of 1.3; of less the stock class reads the end otherwise if it is alone."""
    times = [np.arange(int(16000 * seconds)) / 16000 for seconds in (1.0, 1.3)]
    return [np.sin(2 * np.pi * 440 * time).astype(np.float32) for time in times]


def inputs(kind: str) -> list[Any]:
    """Inputs of a kind as SentenceTransformer takes them, one after the other."""
    sounds = [{"array": clip, "sampling_rate": 16000} for clip in clips()]
    return {
        "text": lambda: [[text] for text in TEXTS],
        "image": lambda: [[image] for image in images()],
        "audio": lambda: [[sound] for sound in sounds],
        "image and text": lambda: [
            [{"text": t, "image": i}] for t, i in zip(TEXTS, images(), strict=True)
        ],
        "all": lambda: [
            [{"text": t, "image": i, "audio": s}]
            for t, i, s in zip(TEXTS, images(), sounds, strict=True)
        ],
    }[kind]()


def written(kind: str) -> list[dict[str, Any]]:
    """The same inputs as a processor of transformers takes them, with tokens written out."""
    found: list[dict[str, Any]] = []
    for text, image, clip in zip(TEXTS, images(), clips(), strict=True):
        found.append(
            {
                "text": {"text": [text]},
                "image": {"text": [SEEN], "images": [image]},
                "audio": {"text": [HEARD], "audio": [clip]},
                "image and text": {"text": [text + SEEN], "images": [image]},
                "all": {"text": [text + SEEN + HEARD], "images": [image], "audio": [clip]},
            }[kind]
        )
    return found


def plain(folder: Path, kind: str) -> list[list[float]]:
    """Mean-pooled unit vectors by AutoModel and AutoProcessor."""
    import torch
    from transformers import AutoModel, AutoProcessor

    processor, model = AutoProcessor.from_pretrained(folder), AutoModel.from_pretrained(folder)
    found = []
    for one in written(kind):
        # Qwen3-ASR's processor wants sound with every text.
        ready = processor.tokenizer if set(one) == {"text"} else processor
        with torch.no_grad():
            states = model(**ready(**one, return_tensors="pt")).last_hidden_state
        mean = states[0].mean(0)
        found.append((mean / mean.norm()).tolist())
    return found


def embeddings(folder: Path, kinds: list[str]) -> dict[str, Any]:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu")
    return {
        "modalities": [str(one) for one in model[0].modalities],
        "stock": {k: [model.encode(x)[0].tolist() for x in inputs(k)] for k in kinds},
        "plain": {kind: plain(folder, kind) for kind in kinds},
        "batch": model.encode(TEXTS).tolist(),
        "prompted": model.encode(TEXTS, prompt=PROMPT).tolist(),
        "written": model.encode([PROMPT + text for text in TEXTS]).tolist(),
    }


def define_operators() -> object:
    """Define the two operators that torchvision looks for while it is imported; keep what is returned."""
    import torch

    library = torch.library.Library("torchvision", "DEF")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    try:
        import torchvision
    except RuntimeError:  # a whole torchvision, whose binary part defines them
        library._destroy()
        import torchvision  # noqa: F401
    return library


if __name__ == "__main__":
    kept = define_operators()
    for argument in sys.argv[1:]:
        place, _, listed = argument.rpartition(":")
        print(json.dumps(embeddings(Path(place), listed.split(","))))
