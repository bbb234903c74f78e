"""Arguments of the verb `space`."""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["add_space_options"]


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
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers there")
