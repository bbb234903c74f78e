"""A small training as a process of its own, so that a test can kill it: `python killed_fit.py MODEL ROOT`."""

from __future__ import annotations

import sys
from pathlib import Path


def main(model: Path, root: Path) -> None:
    from emberge import PerDataset
    from emberge.training import FitOptions
    from emberge_encoder import TextEncoder
    from emberge_train import BatchShuffle, CoSENT, InfoNCE

    from tests.support.fitting import run_fit
    from tests.support.training_data import retrieval, similarity

    run_fit(
        backbone=TextEncoder(),
        checkpoint=model,
        datasets=[retrieval(), similarity()],
        sampler=(BatchShuffle(batch_size=PerDataset(default=8)),),
        losses=PerDataset(default=(InfoNCE(temperature=0.1),), by_task={"sts": (CoSENT(),)}),
        options=FitOptions(
            epochs=4, learning_rate=1e-3, token_budget=80, kept_tokens=80, save_steps=2, keep_last=2
        ),
        folder=root / "out",
        work=root / "work",
        seed=0,
        store=root / "store",
        progress=lambda done, *_: print(done, flush=True),
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
