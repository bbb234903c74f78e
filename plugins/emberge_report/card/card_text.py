"""Section of a card on use: code that loads and calls the model, and a list of its parts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from emberge.documents import NAME_REMARK, CodeLines, Section, TextTable
from emberge.wording import Markdown, code_span, printable, prose

from emberge_report.model_facts import Anatomy


def python_text(text: str) -> str:
    """Return text as a Python string literal in one line."""
    return printable(json.dumps(text, ensure_ascii=False))


def options_as_yaml(options: Mapping[str, Any]) -> CodeLines:
    """Return options as a block of YAML, as in a recipe."""
    import yaml

    text = yaml.safe_dump(dict(options), sort_keys=False, allow_unicode=True, width=100).rstrip()
    return CodeLines(text, "yaml")


def usage_section(name: str, shape: Anatomy) -> Section:
    """Return the section on loading and calling the model, with its prompts."""
    cls = shape.purpose.cls
    lines = [f"from sentence_transformers import {cls}", ""]
    trusted = ", trust_remote_code=True" if shape.code else ""
    lines.append(f"model = {cls}({python_text(name)}{trusted}){NAME_REMARK}")
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
        option = f", prompt_name={python_text(prompt)}" if prompt else ""
        lines += [
            f'embeddings = model.encode(["how to sort a list", "sorted(items)"]{option})',
            "print(model.similarity(embeddings, embeddings))",
        ]
    snippet = CodeLines("\n".join(lines), "python")
    table = TextTable(["", ""], _list_facts(shape))
    return Section("Use", [snippet, *_name_code(shape), *_name_packages(shape), table])


def _name_packages(shape: Anatomy) -> Iterator[str]:
    """Yield a sentence on the package that sentence-transformers needs for a model which reads images."""
    if "image" in shape.reads:
        yield (
            "sentence-transformers needs torchvision to open it, for text too, as its processor of images "
            "does; emberge does not."
        )


def _name_code(shape: Anatomy) -> Iterator[str]:
    """Yield a sentence on the code that a model needs beside transformers."""
    if not shape.code:
        return
    repository, _, module = shape.code.rpartition("--")
    file = f"{module.partition('.')[0]}.py"
    code_location = (
        f"{code_span(file)} of {prose(repository)}"
        if repository
        else f"{code_span(file)} in this folder"
    )
    yield Markdown(
        f"Its class is none of transformers': it is {code_location}, which runs only with "
        "`trust_remote_code=True`. "
        "Read it before you do."
    )


def _describe_length(shape: Anatomy) -> str:
    if shape.endless:
        return "any"
    return f"{shape.max_length} tokens" if shape.max_length else "unknown"


def _list_facts(shape: Anatomy) -> list[list[str]]:
    architecture = [
        "Architecture",
        code_span(shape.architecture) if shape.architecture else "unknown",
    ]
    if shape.purpose.lines:
        return [architecture]  # the rest is for one vector a text
    rows: list[list[str]] = [
        architecture,
        *([["Reads", ", ".join(shape.reads)]] if shape.reads != ("text",) else []),
        ["Dimension", str(shape.dimension) if shape.dimension else "unknown"],
        ["Longest text", _describe_length(shape)],
        ["Pooling", ", ".join(shape.pooling) or "none"],
        ["Normalised", "yes" if shape.normalised else "no"],
        ["Similarity", shape.similarity],
    ]
    prompts: list[list[str]] = [
        [Markdown(f"Prompt {code_span(name)}"), code_span(text)]
        for name, text in shape.prompts.items()
        if text
    ]
    return rows + (prompts or [["Prompts", "none"]])
