"""The result of a judged mixture: the file of shares, a table, and figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from emberge import Artifact, Workspace
from emberge.files import write_text
from emberge.training import FoundMixture
from emberge.wording import join_some, table_lines

from emberge_weights.mixture.judge import Judgement
from emberge_weights.weights_table import show_change

TABLE = "mixture.md"


def write_mixture(
    judgement: Judgement,
    *,
    datasets: Mapping[str, Sequence[str]],
    rows: Mapping[str, int],
    steps: int,
    cpu_seconds: float,
    parents: tuple[str, ...],
    workspace: Workspace,
) -> Artifact:
    """Write the files into the step's folder and return its artifact.

    `datasets` and `rows` are those of each group; `steps` and `cpu_seconds` are of all short trainings.
    """
    facts: dict[str, Any] = {
        "given": dict(judgement.given_shares),
        "sets": list(judgement.set_names),
        "worth": {
            name: {
                **worth.plain(),
                "verdict": worth.verdict,
                "rows": rows[name],
                "by_set": [float(value) for value in by_set],
            }
            for (name, worth), by_set in zip(judgement.worth.items(), judgement.by_set, strict=True)
        },
        "base": judgement.base_score,
        "scale": judgement.scale,
        "merges": [asdict(one) for one in judgement.given],
        "merges_without_harm": [asdict(one) for one in judgement.kept],
        "confirmed": judgement.confirmed.plain() if judgement.confirmed is not None else None,
        "steps": steps,
        "cpu_seconds": round(cpu_seconds, 3),
    }
    FoundMixture(shares=judgement.shares, datasets=datasets, facts=facts).write(workspace.folder)
    write_text(workspace.folder / TABLE, "\n".join(_write_table(judgement, facts)) + "\n")
    return Artifact(
        kind="file",
        parents=parents,
        details={
            "table": TABLE,
            "shares": dict(judgement.shares),
            "harmful": judgement.harmful,
            "steps": steps,
            "cpu_seconds": facts["cpu_seconds"],
            "figures": _make_figures(judgement),
        },
    )


def _conclude(judgement: Judgement) -> str:
    """Return in plain words whether another mixture than the given one is better."""
    if not judgement.harmful:
        return "No dataset harms by more than chance: no mixture is known to be better than the given one."
    names = join_some(judgement.harmful)
    verb = "harms" if len(judgement.harmful) == 1 else "harm"
    gain = judgement.confirmed
    if gain is None:
        return "All datasets harm: the given mixture stays, and the base alone may be better than a training."
    shown = show_change(gain.plain())
    if not judgement.is_changed:
        return (
            f"{names} {verb} by the embeddings, and merged for real the mixture without gains {shown}: the "
            "given mixture stays."
        )
    have = "has" if verb == "harms" else "have"
    return (
        f"{names} {verb} and {have} no share: merged for real, the mixture without gains {shown}."
    )


def _write_table(judgement: Judgement, facts: Mapping[str, Any]) -> Iterator[str]:
    yield "# The worth of each dataset"
    yield ""
    yield _conclude(judgement)
    yield ""
    rows = [
        [
            name,
            f"{facts['worth'][name]['rows']:,}",
            f"{judgement.given_shares[name]:.3f}",
            f"{judgement.shares[name]:.3f}",
            show_change(worth.plain()),
            worth.verdict,
        ]
        for name, worth in judgement.worth.items()
    ]
    yield from table_lines(
        ["dataset", "rows", "given", "share", "worth", "verdict"], rows, "lrrrrl"
    )
    yield ""
    yield (
        "Worth is what the score of the mixture loses without the dataset, in points; all intervals together "
        "hold with 95 %."
    )
    yield ""
    yield "## Merged, in place of a training"
    yield ""
    merges = [
        [words, f"{one.scale:g}", f"{100 * one.foretold:.2f}", f"{100 * one.real:.2f}"]
        for words, table in (("as given", judgement.given), ("without harm", judgement.kept))
        for one in table
    ]
    base = [
        "the base alone",
        "",
        f"{100 * judgement.base_score:.2f}",
        f"{100 * judgement.base_score:.2f}",
    ]
    yield from table_lines(["mixture", "scale", "foretold", "real"], [base, *merges], "lrrr")
    yield ""
    yield (
        f"The merges are of one short training of each dataset. All took {facts['steps']:,} steps and "
        f"{facts['cpu_seconds'] / 60:,.1f} minutes of CPU time."
    )


def _make_figures(judgement: Judgement) -> list[dict[str, Any]]:
    """Return figures of a report: worth by set, shares, and merges by scale."""
    names = list(judgement.worth)
    series = {
        label: [100 * one.real for one in table]
        for label, table in (("as given", judgement.given), ("without harm", judgement.kept))
        if table
    }
    return [
        {
            "title": "What each dataset is worth",
            "heat_map": {
                "rows": names,
                "columns": ["all sets", *judgement.set_names],
                "values": [
                    [100 * worth.difference, *(100 * float(value) for value in by_set)]
                    for worth, by_set in zip(
                        judgement.worth.values(), judgement.by_set, strict=True
                    )
                ],
            },
            "caption": f"Points that the mixture's merge loses without the dataset. {_conclude(judgement)}",
        },
        {
            "title": "Shares of the mixture",
            "bars": {
                "x": "dataset",
                "y": "share",
                "labels": names,
                "series": {
                    "given": [float(judgement.given_shares[name]) for name in names],
                    "found": [float(judgement.shares[name]) for name in names],
                },
            },
        },
        {
            "title": "Merges of short trainings by scale",
            "lines": {
                "x": "scale",
                "y": "score (points)",
                "labels": [f"{one.scale:g}" for one in judgement.given],
                "series": {
                    **series,
                    "the base alone": [100 * judgement.base_score] * len(judgement.given),
                },
            },
            "caption": "Scores of real merges; the scale multiplies the step away from the base.",
        },
    ]
