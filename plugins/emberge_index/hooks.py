"""Vector indexes that survive a change of the model: what is translated, bridged, compared and refused.

A step or verb that reads, writes or compares the vectors of two models belongs here.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from emberge import Step, hookimpl
from emberge.plugin_verbs import Verb

from emberge_index.space.options import (
    add_diff_options,
    add_space_options,
    add_threshold_options,
)

if TYPE_CHECKING:
    from emberge import Artifact, Plugins


@hookimpl
def register_steps() -> Mapping[str, type[Step] | str]:
    return {
        "bridge": "emberge_index.translation.bridge_step:Bridge",
        "refresh": "emberge_index.refreshing.refresh_step:Refresh",
        "thresholds": "emberge_index.thresholds.thresholds_step:Thresholds",
        "translate": "emberge_index.translation.translate_step:Translate",
    }


@hookimpl
def complete_result(folder: Path, artifact: Artifact) -> Mapping[str, str]:
    if artifact.kind != "model":
        return {}
    from emberge_index.space.passport_of_result import result_passport

    return result_passport(folder)


@hookimpl
def complete_publication(folder: Path, plugins: Plugins) -> Mapping[str, str]:
    from emberge_index.space.passport_of_result import published_passport

    return published_passport(folder, plugins)


@hookimpl
def register_verbs() -> Mapping[str, Verb]:
    return {
        "diff-queries": Verb(
            summary="show which queries find other documents under a new model, the worst first",
            examples="emberge diff-queries ./old ./new --queries log.txt --documents texts.jsonl\n"
            "emberge diff-queries ./old ./new --queries log.txt --documents texts.jsonl --page diff.html\n"
            "emberge diff-queries ./old ./new --queries log.txt --documents texts.jsonl --topics 12",
            add_options=add_diff_options,
            run="emberge_index.changes.diff_queries:run",
            machine=True,
        ),
        "space": Verb(
            summary="tell whether two models' vectors may be mixed, translated, or neither",
            examples="emberge space ./old ./new\n"
            "emberge space ./old ./new --texts texts.txt --vectors index.npy --json space.json\n"
            "emberge space kept/space.json ./new\n"
            "emberge space ./model   (writes its passport)",
            add_options=add_space_options,
            run="emberge_index.space.one_space:run",
            machine=True,
        ),
        "thresholds": Verb(
            summary="map thresholds of cosine from an old model to a new one at equal false positives",
            examples="emberge thresholds ./old ./new --at 0.7,0.8\n"
            "emberge thresholds ./old ./new --texts texts.txt --json thresholds.json",
            add_options=add_threshold_options,
            run="emberge_index.thresholds.one_map:run",
            machine=True,
        ),
        "refresh": Verb(
            summary="list the documents of a translated index that are best embedded anew first",
            examples="emberge refresh vectors.npy --by out/bridge --out first.npy\n"
            "emberge refresh vectors.npy --by out/bridge --queries log.npy --out first.npy",
            add_options=_refresh,
            run="emberge_index.refreshing.refresh_verb:refresh",
        ),
        "translate": Verb(
            summary="rewrite a file of vectors by a translation, from an old model's space to a new one's",
            examples="emberge translate vectors.npy --by out/bridge --out new.npy\n"
            "emberge translate passages.parquet --column embedding --by out/bridge --out new.parquet\n"
            "emberge translate hnsw.faiss --by out/bridge --out new.faiss",
            add_options=_translate,
            run="emberge_index.vectors.translate_verb:translate",
        ),
    }


def _vectors(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "vectors",
        type=Path,
        metavar="VECTORS",
        help="of the old model: .npy, .safetensors, .parquet, .faiss or .index",
    )
    parser.add_argument(
        "--by", type=Path, required=True, metavar="DIR", help="result of a step `translate`"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the new file")
    parser.add_argument("--column", metavar="NAME", help="of a parquet file, or a tensor's name")
    parser.add_argument(
        "--any-model", action="store_true", help="take vectors that look like another model's"
    )


def _translate(parser: argparse.ArgumentParser) -> None:
    _vectors(parser)
    parser.add_argument("--quiet", action="store_true", help="print errors and results only")


def _refresh(parser: argparse.ArgumentParser) -> None:
    _vectors(parser)
    parser.add_argument(
        "--queries", type=Path, metavar="FILE", help="vectors of logged queries by the new model"
    )
