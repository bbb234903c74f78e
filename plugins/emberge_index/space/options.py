"""Arguments of the verbs that compare two models' spaces."""

from __future__ import annotations

import argparse
from pathlib import Path

from emberge import Count
from emberge.plugin_verbs import number_option, output_file


def add_space_options(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    parser.add_argument("first", metavar="A", help="a model, or the space.json that an index kept")
    parser.add_argument("second", metavar="B", nargs="?", help="the model to compare it with")
    parser.add_argument(
        "--texts",
        type=Path,
        metavar="FILE",
        help="texts to try a fit on: lines, or .jsonl with text",
    )
    parser.add_argument(
        "--vectors",
        type=Path,
        metavar="FILE",
        help="vectors of those texts by A: .npy, .safetensors",
    )
    parser.add_argument("--json", type=output_file, metavar="FILE", help="write all numbers there")


def add_threshold_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `thresholds` to its parser."""
    parser.add_argument("old", metavar="OLD", help="the model that thresholds were chosen for")
    parser.add_argument("new", metavar="NEW", help="the model that takes its place")
    parser.add_argument(
        "--texts", type=Path, metavar="FILE", help="texts of your own: lines, or .jsonl with text"
    )
    parser.add_argument(
        "--at", action="append", default=[], metavar="COSINES", help="thresholds to map: 0.7,0.8"
    )
    parser.add_argument("--json", type=output_file, metavar="FILE", help="write the map there")


def add_diff_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `diff-queries` to its parser."""
    parser.add_argument("old", metavar="OLD", help="the model of today")
    parser.add_argument("new", metavar="NEW", help="the model that takes its place")
    for name in ("queries", "documents"):
        parser.add_argument(
            f"--{name}",
            type=Path,
            required=True,
            metavar="FILE",
            help="texts: lines, or .jsonl with text",
        )
    parser.add_argument(
        "--topics",
        type=number_option(Count),
        metavar="N",
        help="group the queries into N topics, the worst first",
    )
    parser.add_argument("--json", type=output_file, metavar="FILE", help="write all changes there")
    parser.add_argument(
        "--page", type=output_file, metavar="FILE", help="write them as one HTML file"
    )
