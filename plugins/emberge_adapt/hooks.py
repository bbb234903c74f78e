"""One command from a team's own data to a better model: `emberge adapt`.

A line that writes the recipe of an adaptation, or reads its outcome, belongs here; what the recipe's steps do
belongs to their plugins.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from emberge import WholeNumber, hookimpl
from emberge.plugin_verbs import Verb, number_option


@hookimpl
def register_verbs() -> Mapping[str, Verb]:
    return {
        "adapt": Verb(
            summary="adapt a model to your own data: train, merge with the base, test, report",
            examples="emberge adapt pairs.csv --out out/faq\n"
            "emberge adapt pairs.csv --columns query=question,document=answer --out out/faq\n"
            "emberge adapt pairs.jsonl --documents docs.jsonl --test real_queries.csv --out out/faq\n"
            "emberge adapt ./handbook --model BAAI/bge-base-en-v1.5 --effort thorough --out out/handbook\n"
            "emberge adapt hub:sentence-transformers/natural-questions --effort quick --out out/nq\n"
            "emberge adapt pairs.csv --print > adapt.yaml",
            add_options=_add_options,
            run="emberge_adapt.adapt_run:run",
            machine=True,
            resumes=True,
        )
    }


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "data",
        metavar="DATA",
        help="a file of pairs (.csv, .tsv, .jsonl, .parquet), a folder of documents (.txt, .md, "
        ".html), a catalogue, or hub:owner/name",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="where results go")
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help="the base: ./folder, owner/name@revision or pkg:module (default: all-MiniLM-L6-v2)",
    )
    parser.add_argument(
        "--effort",
        default="normal",
        metavar="NAME",
        help=(
            "quick: one training; normal (default): one of two passes; thorough: three of 60 %% and one "
            "of all"
        ),
    )
    parser.add_argument(
        "--columns",
        action="append",
        default=[],
        metavar="PART=COLUMN",
        help="query=…,document=… (also negative, score, label), where names are unusual",
    )
    parser.add_argument(
        "--documents", metavar="FILE", help="further documents that the test searches through"
    )
    parser.add_argument(
        "--test",
        metavar="FILE",
        help="real queries and their documents, instead of a held-out part",
    )
    parser.add_argument(
        "--seed", type=number_option(WholeNumber), default=0, metavar="N", help="default: 0"
    )
    parser.add_argument(
        "--print", action="store_true", help="print the recipe, to keep and edit, and run nothing"
    )
