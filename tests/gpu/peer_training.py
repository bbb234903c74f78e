"""sentence-transformers' own loss on the same pairs, in bfloat16: prints its speed, memory and losses.

    python -m tests.gpu.peer_training MODEL PAIRS DEVICE BATCH STEPS LONGEST

Texts are tokenised beforehand, so the peer gets its token ids for nothing.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch


def main(words: list[str]) -> None:
    """Train the peer and print one line of JSON."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.losses import MultipleNegativesRankingLoss

    folder, data, device, *numbers = words
    batch, steps, longest = map(int, numbers)
    model = SentenceTransformer(folder, device=device)
    model.max_seq_length = longest
    loss = MultipleNegativesRankingLoss(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, fused=True)
    rows = [json.loads(line) for line in Path(data).read_text("utf-8").splitlines()]
    batches = [_tokens(model, rows[i * batch : (i + 1) * batch], device) for i in range(steps)]
    told: dict[str, list[float]] = {"tokens_per_second": [], "loss": []}
    for columns in batches:
        count = sum(int(column["attention_mask"].sum()) for column in columns)
        began = time.perf_counter()
        with torch.autocast(torch.device(device).type, torch.bfloat16):
            value = loss([dict(column) for column in columns], None)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        told["loss"].append(float(value))  # waits for the device
        told["tokens_per_second"].append(count / (time.perf_counter() - began))
    if device.startswith("cuda"):
        told["gpu_memory_gib"] = [torch.cuda.max_memory_allocated(device) / 2**30]
    print(json.dumps(told))


def _tokens(model: Any, rows: list[dict[str, str]], device: str) -> list[dict[str, Any]]:
    """Tokenise anchors and positives; the method was renamed in release 6."""
    tokenise = getattr(model, "preprocess", None) or model.tokenize
    columns = [tokenise([row[key] for row in rows]) for key in ("anchor", "positive")]
    return [
        {k: v.to(device) if hasattr(v, "to") else v for k, v in column.items()}
        for column in columns
    ]


if __name__ == "__main__":
    main(sys.argv[1:])
