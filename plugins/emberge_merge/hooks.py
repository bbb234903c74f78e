"""Merging: every method as a strategy or transform, and the steps that merge models and adapters."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from emberge import ChainSpec, MergeStrategy, MergeTransform, hookimpl
from emberge.plugin_verbs import Verb


@hookimpl
def register_merge_transforms() -> Mapping[str, type[MergeTransform]]:
    from emberge_merge.methods import transforms

    return transforms()


@hookimpl
def register_merge_strategies() -> Mapping[str, type[MergeStrategy] | ChainSpec]:
    from emberge_merge.methods import strategies

    return strategies()


@hookimpl
def register_steps() -> Mapping[str, str]:
    return {
        "merge": "emberge_merge.steps.merge:Merge",
        "merge_adapters": "emberge_merge.steps.merge_adapters:MergeAdapters",
        "extract_lora": "emberge_merge.steps.extract_lora:ExtractLora",
    }


@hookimpl
def register_verbs() -> Mapping[str, Verb]:
    return {
        "merge": Verb(
            summary="merge models into one folder, or as a mergekit YAML asks",
            examples="emberge merge ./a ./b --strategy linear --out merged\n"
            "emberge merge ./a ./b --strategy slerp --set t=0.3 --out merged\n"
            "emberge merge ./a ./b --set missing=average_present --out merged\n"
            "emberge merge me/legal me/faq --base me/base --strategy ties --set density=0.5 --out merged\n"
            "emberge merge ./a ./b ./c --strategy linear --weight 0.5,0.3,0.2 --out merged\n"
            "emberge merge mergekit.yml --out merged",
            add_options=_add_merge_options,
            run="emberge_merge.merge_verb:run",
            machine=True,
            resumes=True,
        ),
    }


def _add_merge_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models",
        nargs="*",
        metavar="MODEL",
        help="./folder, owner/name@revision or pkg:module; or one mergekit YAML",
    )
    parser.add_argument("--strategy", metavar="NAME", help="default: that of the step `merge`")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the merged model")
    parser.add_argument("--base", metavar="MODEL", help="the models' common ancestor")
    parser.add_argument(
        "--template", metavar="MODEL", help="gives all but weights; default: the first model"
    )
    parser.add_argument(
        "--weight", action="append", default=[], metavar="W", help="one a model: 0.5,0.3,0.2"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="option=value",
        dest="overrides",
        help="of the strategy or of the step, which `emberge show merge` lists; may be given several times",
    )
    parser.add_argument("--dtype", metavar="NAME", help="of the merged weights")
