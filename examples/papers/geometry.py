"""Geometry of models' tokens, as CoDiEmb's table 4 measures it (arXiv:2508.11442, section 4).

    python examples/papers/geometry.py TEXTS MODEL [MODEL ...]

TEXTS has a text a line, or a JSON object of texts a line (`{"sentence1": …, "sentence2": …}`); each text
counts once. Of each text, X [n, d] are the last hidden states of its tokens, special ones included, and
neither normalised nor centred. The table has, for each model, the means over the texts of

* the mean cosine of two tokens, × 100 (token similarity);
* the rank of X: the number of its singular values above max(n, d) · epsilon · the largest;
* its condition number: the largest singular value by the smallest, which counts as epsilon · the largest at
  least;
* the entropy of the shares of its squared singular values, in nats (SVD entropy).

Epsilon is that of float32, in which models compute; singular values are computed in float64. A higher rank
and entropy, and a lower similarity and condition number, are better. Texts of fewer than two tokens have no
geometry and are left out.

Measured for MiniLM trained in four ways (`emberge run codiemb/ablations`, seed 1, 4,512 texts of five sets,
means over the sets): CoDiEmb 39.7, condition number 227, entropy 2.28; mixed batches 41.8, 240, 2.21; InfoNCE
39.8, 354, 2.26; CoSENT 55.5, 461, 1.88. The rank is the same in all.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from emberge import load_plugins
from emberge.devices import find_machine
from emberge.encoding import compute_token_states
from torch import Tensor
from torch.nn.functional import normalize

MEASURES = ("token similarity × 100", "rank", "condition number", "SVD entropy")
EPSILON = float(np.finfo(np.float32).eps)


def read_texts(path: Path) -> list[str]:
    """Return the distinct texts of a file, in order."""
    texts: dict[str, None] = {}
    for line in path.read_text("utf-8").splitlines():
        if line.startswith("{"):
            texts.update(dict.fromkeys(v for v in json.loads(line).values() if isinstance(v, str)))
        elif line:
            texts[line] = None
    return [*texts]


def measure_states(states: Tensor) -> Tensor:
    """Return `MEASURES` [b, 4] of token matrices [b, n, d] with n of at least 2."""
    matrices = states.cpu().double()
    count = matrices.shape[1]
    rows = normalize(matrices, dim=-1)
    similarity = ((rows.sum(1) ** 2).sum(-1) - count) / (count * (count - 1))
    sigma = torch.linalg.svdvals(matrices)
    largest = sigma[:, 0]
    floor = EPSILON * largest
    shares = sigma**2 / (sigma**2).sum(-1, keepdim=True)
    rank = (sigma > max(matrices.shape[1:]) * floor[:, None]).sum(-1)
    entropy = -shares.xlogy(shares).sum(-1)
    condition = largest / sigma[:, -1].maximum(floor)
    return torch.stack([100 * similarity, rank.double(), condition, entropy], dim=-1)


def measure_model(folder: Path, texts: Sequence[str], device: str) -> tuple[int, Tensor]:
    """Return the number of texts with two tokens or more, and the means [4] of their measures.

    Raises:
        ValueError: if no text has two tokens.
    """
    backbone = load_plugins().find("text_encoder", "backbone").type()
    encoder = backbone.load(folder, device=device, dtype="float32")
    encoder.module.eval()
    measures = []
    with torch.inference_mode():
        for text in encoder.tokenise(texts, prompt="", max_length=None):
            states, _ = compute_token_states(encoder, [text])
            measures += [measure_states(states)] if states.shape[1] > 1 else []
    if not measures:
        raise ValueError(f"{folder}: no text has two tokens, and one alone has no geometry")
    joined = torch.cat(measures)
    return len(joined), joined.mean(0)


def main() -> None:
    """Print the table of all models."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("texts", type=Path)
    parser.add_argument("models", type=Path, nargs="+")
    options = parser.parse_args()
    texts, device = read_texts(options.texts), find_machine().device
    print("| model | texts |", " | ".join(MEASURES), "|")
    print("|---|---:|" + "---:|" * len(MEASURES))
    for folder in options.models:
        count, means = measure_model(folder, texts, device)
        print(f"| {folder} | {count:,} |", " | ".join(f"{mean:,.2f}" for mean in means), "|")


if __name__ == "__main__":
    main()
