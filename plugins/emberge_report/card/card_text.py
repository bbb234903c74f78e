"""Pieces of Markdown: escaped prose, tables, code."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from emberge_report.model_facts import Anatomy

__all__ = ["code", "grid", "prose", "usage", "yaml_block"]

_SPECIAL = re.compile(r"([\\`*{}\[\]<>#|]|(?<![^\W_])_|_(?![^\W_]))")


def prose(text: str) -> str:
    """Return plain text as Markdown that shows just that, in one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def code(text: str) -> str:
    """Return text as inline code, in one line, for use in a table."""
    flat = " ".join(text.split()).replace("|", "\\|")
    longest = max((len(run) for run in re.findall("`+", flat)), default=0)
    fence = "`" * (longest + 1)
    return f"{fence} {flat} {fence}" if longest else f"`{flat}`"


def grid(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a table of ready cells."""
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def yaml_block(value: Mapping[str, Any]) -> list[str]:
    """Return values in a block of code, as a recipe has them."""
    import yaml

    text = yaml.safe_dump(dict(value), sort_keys=False, allow_unicode=True, width=100).rstrip()
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}yaml", text, fence]


def usage(name: str, shape: Anatomy) -> list[str]:
    """Return lines on how to open the model and what to ask of it, with the prompts that it has."""
    cls = shape.purpose.cls
    lines = ["## Use", "", "```python", f"from sentence_transformers import {cls}", ""]
    trusted = ", trust_remote_code=True" if shape.code else ""
    lines.append(
        f"model = {cls}({_quoted(name)}{trusted})  # the path of this folder, or its hub id"
    )
    if shape.purpose.lines:
        lines += shape.purpose.lines
    elif shape.asymmetric:
        lines += [
            'queries = model.encode_query(["how to sort a list"])',
            'documents = model.encode_document(["sorted(items)", "open(path)"])',
            "print(model.similarity(queries, documents))",
        ]
    else:
        prompt = next((p for p in shape.prompts if shape.prompts[p]), None)
        option = f", prompt_name={_quoted(prompt)}" if prompt else ""
        lines += [
            f'embeddings = model.encode(["how to sort a list", "sorted(items)"]{option})',
            "print(model.similarity(embeddings, embeddings))",
        ]
    lines += ["```", "", *_trust(shape)]
    return [*lines, *_packages(shape), *grid(["", ""], _shape_rows(shape))]


def _packages(shape: Anatomy) -> list[str]:
    """Return a line on a package that sentence-transformers needs for a model which reads images."""
    if "image" not in shape.reads:
        return []
    return [
        "sentence-transformers needs torchvision to open it, for text too, as its processor of images does; "
        "emberge does not.",
        "",
    ]


def _trust(shape: Anatomy) -> list[str]:
    """Return a line on the code that a model needs beside transformers."""
    if not shape.code:
        return []
    place, _, module = shape.code.rpartition("--")
    file = f"{module.partition('.')[0]}.py"
    where = f"{code(file)} of {prose(place)}" if place else f"{code(file)} in this folder"
    return [
        f"Its class is none of transformers': it is {where}, which runs only with `trust_remote_code=True`. "
        "Read it before you do.",
        "",
    ]


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _shape_rows(shape: Anatomy) -> list[list[str]]:
    architecture = ["Architecture", code(shape.architecture) if shape.architecture else "unknown"]
    if shape.purpose.lines:
        return [architecture]  # the rest is for one vector a text
    rows = [
        architecture,
        *([["Reads", ", ".join(shape.reads)]] if shape.reads != ("text",) else []),
        ["Dimension", str(shape.dimension) if shape.dimension else "unknown"],
        ["Longest text", f"{shape.max_length} tokens" if shape.max_length else "unknown"],
        ["Pooling", ", ".join(shape.pooling) or "none"],
        ["Normalised", "yes" if shape.normalised else "no"],
        ["Similarity", shape.similarity],
    ]
    prompts = [[f"Prompt {code(name)}", code(text)] for name, text in shape.prompts.items() if text]
    return rows + (prompts or [["Prompts", "none"]])
