"""Whole models as files and as tensors, for tests of what goes in and what comes out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from emberge.merging import MergeInput, MergePlan, MergeRequest, plan_merge
from emberge_merge import Linear
from safetensors.torch import load_file
from torch import Tensor

from tests.support.json_files import changing
from tests.support.merges import merge_models

TEXTS = ["read the first file", "sort a list of names", "bank card"]


def merge(out: Path, *folders: Path, **settings: Any) -> Path:
    """The mean of models."""
    inputs = [MergeInput(f.name, f) for f in folders]
    merge_models(inputs, out=out, **{"strategy": [Linear()], **settings})
    return out


def plan(*folders: Path, **settings: Any) -> MergePlan:
    """The plan of their mean."""
    inputs = tuple(MergeInput(f.name, f) for f in folders)
    asked = {"inputs": inputs, "strategy": (Linear(),), "missing": "strict", **settings}
    return plan_merge(MergeRequest(**asked))


def problems(*folders: Path, **settings: Any) -> str:
    """What is wrong with it, a line each."""
    return "\n".join(map(str, plan(*folders, **settings).problems))


def files(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    found = (p for p in folder.rglob("*") if p.is_file())
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in found}


def tensors(folder: Path) -> dict[str, Tensor]:
    """Every tensor as `module folder/name`, `./name` in the root."""
    found: dict[str, Tensor] = {}
    for path in sorted(folder.rglob("*.safetensors")):
        part = path.parent.relative_to(folder).as_posix()
        found |= {f"{part}/{name}": tensor for name, tensor in load_file(path).items()}
    return found


def move_trunk(folder: Path) -> Path:
    """Move the transformer's files from a model's root into a folder of their own."""
    (folder / "0_Transformer").mkdir()
    stay = ("modules.json", "config_sentence_transformers.json")
    for path in [p for p in folder.iterdir() if p.is_file() and p.name not in stay]:
        path.rename(folder / "0_Transformer" / path.name)
    with changing(folder / "modules.json") as listed:
        listed[0]["path"] = "0_Transformer"
    return folder


def embed(folder: Path) -> Tensor:
    """Embeddings by the plain class."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu")
    return model.encode(TEXTS, convert_to_tensor=True)


def forward(folder: Path) -> Tensor:
    """Hidden states by the plain class."""
    from transformers import AutoModel

    with torch.no_grad():
        found: Tensor = AutoModel.from_pretrained(folder)(
            torch.arange(2, 12)[None]
        ).last_hidden_state
    return found


def state_prompts(state: str, one: Path, two: Path) -> None:
    """Let both, either or neither of two models state prompts: "equal", "only first", "differ", …."""
    prompts = {"one": {"query": "find: "}, "two": {"query": "q: "}}
    stated = {
        one: None if state == "only second" else prompts["one"],
        two: {"only first": None, "differ": prompts["two"]}.get(state, prompts["one"]),
    }
    for folder, value in stated.items():
        path = folder / "config_sentence_transformers.json"
        path.unlink(missing_ok=True)
        if value is not None:
            path.write_text(json.dumps({"prompts": value}))


STATES = ("equal", "only first", "only second", "differ")
