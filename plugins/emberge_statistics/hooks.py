"""Statistics of models (Fisher information, Gram matrices, norms of changes), and the verb `diff`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from emberge import hookimpl
from emberge.plugin_verbs import Verb


@hookimpl
def register_steps() -> Mapping[str, str]:
    return {"measure_statistics": "emberge_statistics.measure_statistics:MeasureStatistics"}


@hookimpl
def register_verbs() -> Mapping[str, Verb]:
    return {
        "diff": Verb(
            summary="compare two models' weights layer by layer: cosine, distance, changes, signs",
            examples="emberge diff ./a ./b\nemberge diff ./a ./b --base me/base",
            add_options=_add_diff_options,
            run="emberge_statistics.measure_weights:run_diff",
            machine=True,
        )
    }


def _add_diff_options(parser: argparse.ArgumentParser) -> None:
    for name in ("first", "second"):
        parser.add_argument(
            name, metavar="MODEL", help="./folder, owner/name@revision or pkg:module"
        )
    parser.add_argument("--base", metavar="MODEL", help="compare their changes from it, too")
