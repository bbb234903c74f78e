"""The result of a search: the file of weights, a table, and the artifact."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from emberge import Artifact, Model, Workspace
from emberge.engine import FoundWeights, write_text

from emberge_weights.candidates import EQUAL
from emberge_weights.search import Search, member_values

__all__ = ["write_result"]

TABLE = "weights.md"


def write_result(
    workspace: Workspace, members: Sequence[Model], found: Search, seed: int
) -> Artifact:
    """Write the files of a search into the step's folder and return its artifact."""
    chosen, gain, means = found.choice.place, found.choice.gain, found.means
    best = int(means.argmax())
    facts: dict[str, Any] = {
        "predicted": float(means[chosen]),
        "equal": float(means[EQUAL]),
        "best_candidate": float(means[best]),
        "headroom": {"difference": gain.difference, "low": gain.low, "high": gain.high},
        "sets": {
            one.name: {
                "chosen": float(one.taken([chosen]).contributions().mean()),
                "equal": float(one.taken([EQUAL]).contributions().mean()),
                "units": len(one),
            }
            for one in found.scores
        },
    }
    FoundWeights(
        weights={
            model.fingerprint: float(weight)
            for model, weight in zip(members, found.weights[chosen], strict=True)
        },
        names={model.fingerprint: model.name for model in members},
        facts=facts,
    ).write(workspace.folder)
    lines = ["# Weights", ""]
    lines += [
        f"Held out, choosing gains {100 * gain.difference:+.2f} points [{100 * gain.low:+.2f}, "
        f"{100 * gain.high:+.2f}] over equal weights"
        + ("." if gain.clear else ": no more than chance, so weights are equal."),
        "",
        "| member | weight | worth | 95 % interval |",
        "|---|---|---|---|",
    ]
    for model, weight, value in zip(
        members, found.weights[chosen], member_values(found, seed), strict=True
    ):
        lines.append(
            f"| {model.name} | {weight:.3f} | {100 * value.difference:+.2f} | "
            f"{100 * value.low:+.2f} to {100 * value.high:+.2f} |"
        )
    write_text(workspace.folder / TABLE, "\n".join(lines) + "\n")
    return Artifact(
        kind="file",
        parents=tuple(model.fingerprint for model in members),
        details={"table": TABLE, **facts},
    )
