"""Vector indexes that survive a change of the model, by translation, bridges and comparisons.

A step or verb that reads, writes or compares the vectors of two models belongs here.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from emberge import Count, Positive, Step, hookimpl
from emberge.plugin_verbs import Verb, number_option, output_file

if TYPE_CHECKING:
    from emberge import Artifact, Plugins


@hookimpl
def register_steps() -> Mapping[str, type[Step] | str]:
    return {
        "bridge": "emberge_index.translation.bridge_step:Bridge",
        "refresh": "emberge_index.refresh_step:Refresh",
        "thresholds": "emberge_index.thresholds_step:Thresholds",
        "translate": "emberge_index.translation.translate_step:Translate",
    }


@hookimpl
def complete_result(folder: Path, artifact: Artifact) -> Mapping[str, str]:
    if artifact.kind != "model":
        return {}
    from emberge_index.space import result_passport

    return result_passport(folder)


@hookimpl
def complete_publication(folder: Path, plugins: Plugins) -> Mapping[str, str]:
    from emberge_index.space import published_passport

    return published_passport(folder, plugins)


@hookimpl
def register_verbs() -> Mapping[str, Verb]:
    return {
        "diff-queries": Verb(
            summary="show which queries find other documents under a new model, the worst first",
            examples="emberge diff-queries ./old ./new --queries log.txt --documents texts.jsonl\n"
            "emberge diff-queries ./old ./new --queries log.txt --documents texts.jsonl --page diff.html\n"
            "emberge diff-queries ./old ./new --queries log.txt --documents texts.jsonl --topics 12",
            add_options=_add_diff_options,
            run="emberge_index.diff_queries:run",
            machine=True,
        ),
        "space": Verb(
            summary="tell whether two models' vectors may be mixed, or whether a server's are the model's",
            examples="emberge space ./old ./new\n"
            "emberge space ./old ./new --texts texts.txt --vectors index.npy --json space.json\n"
            "emberge space kept/space.json ./new\n"
            "emberge space ./model --endpoint http://localhost:8080   (0: same, 4: different, and why)\n"
            "emberge space kept/space.json --endpoint http://localhost:11434 --api ollama --served-as boom\n"
            "emberge space ./model --texts texts.jsonl --vectors index.npy   (which rows are not its?)\n"
            "emberge space ./model   (writes its passport)\n"
            "emberge space owner/name --json space.json   (writes it there)",
            add_options=_add_space_options,
            run="emberge_index.space_verb:run",
            machine=True,
        ),
        "thresholds": Verb(
            summary="map thresholds of cosine from an old model to a new one at equal false positives",
            examples="emberge thresholds ./old ./new --at 0.7,0.8\n"
            "emberge thresholds ./old ./new --texts texts.txt --json thresholds.json\n"
            "emberge thresholds ./model ./model --new-as binary --texts texts.txt --at 0.7   (bits)",
            add_options=_add_threshold_options,
            run="emberge_index.thresholds_verb:run",
            machine=True,
        ),
        "refresh": Verb(
            summary="list the documents of a translated index that are best embedded anew first",
            examples="emberge refresh vectors.npy --by out/map --out first.npy\n"
            "emberge refresh vectors.npy --by out/map --queries log.npy --out first.npy\n"
            "emberge refresh codes.npy --ranges ranges.npz --by out/map --out first.npy   (int8)\n"
            "emberge refresh vectors.npy --bits bits.npy --by out/map --queries log.npy --out first.npy",
            add_options=_add_refresh_options,
            run="emberge_index.refresh_verb:refresh",
        ),
        "translate": Verb(
            summary="rewrite a file of vectors by a translation, from an old model's space to a new one's",
            examples="emberge translate vectors.npy --by out/map --out new.npy\n"
            "emberge translate passages.parquet --column embedding --by out/map --out new.parquet\n"
            "emberge translate hnsw.faiss --by out/map --out new.faiss\n"
            "emberge translate codes.npy --ranges ranges.npz --by out/map --out new.npy   (int8)\n"
            "emberge translate vectors.npy --by out/map --as binary --out bits.npy",
            add_options=_add_translate_options,
            run="emberge_index.vectors.translate_verb:translate",
            resumes=True,
        ),
    }


def _add_space_options(parser: argparse.ArgumentParser) -> None:
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
        help="vectors of those texts by A: .npy, .safetensors, .parquet, .faiss",
    )
    parser.add_argument(
        "--json",
        type=output_file,
        metavar="FILE",
        help="write all numbers there; of one model, its passport",
    )
    server = parser.add_argument_group("a server of embeddings, checked beside A")
    server.add_argument(
        "--endpoint",
        metavar="URL",
        help="its address: OpenAI's form, Text Embeddings Inference, or Ollama",
    )
    server.add_argument(
        "--api",
        choices=("openai", "tei", "ollama"),
        help="its form; by default the first that answers",
    )
    server.add_argument("--served-as", metavar="NAME", help="the model's name there; by default A")
    server.add_argument(
        "--key",
        metavar="NAME",
        help="environment variable that has the key, such as OPENAI_API_KEY",
    )
    server.add_argument(
        "--timeout",
        type=number_option(Positive),
        default=30.0,
        metavar="SECONDS",
        help="longest wait for an answer (30)",
    )
    server.add_argument(
        "--send-prompts",
        action="store_true",
        help="send A's prompt before each text, as clients may do",
    )
    check = parser.add_argument_group("a server, or stored --vectors of --texts, checked beside A")
    check.add_argument(
        "--queries", action="store_true", help="check texts as queries, not as documents"
    )
    check.add_argument(
        "--candidates",
        nargs="+",
        default=[],
        metavar="MODEL",
        help="other models that may have made the vectors",
    )
    check.add_argument(
        "--sample",
        type=number_option(Count),
        metavar="N",
        help="stored rows to embed again, spread evenly (1,000)",
    )
    check.add_argument(
        "--ranges",
        type=Path,
        metavar="FILE",
        help="ranges of stored int8 vectors, as of `translate`",
    )


def _add_threshold_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("old", metavar="OLD", help="the model that thresholds were chosen for")
    parser.add_argument("new", metavar="NEW", help="the model that takes its place")
    parser.add_argument(
        "--texts",
        type=Path,
        metavar="FILE",
        help="texts of your own: lines, or .jsonl with text; by default a few of Python's help",
    )
    parser.add_argument(
        "--at",
        action="append",
        default=[],
        metavar="COSINES",
        help="thresholds between two documents, to map: 0.7,0.8",
    )
    parser.add_argument("--json", type=output_file, metavar="FILE", help="write the map there")
    for side in ("old", "new"):
        parser.add_argument(
            f"--{side}-as",
            choices=("float32", "int8", "binary"),
            default="float32",
            help=f"form in which the {side} model's vectors are compared",
        )
        parser.add_argument(
            f"--{side}-ranges",
            type=Path,
            metavar="FILE",
            help="ranges of these int8 codes; by default those of the texts",
        )


def _add_diff_options(parser: argparse.ArgumentParser) -> None:
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


def _add_vector_options(parser: argparse.ArgumentParser) -> None:
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
    parser.add_argument(
        "--ranges",
        type=Path,
        metavar="FILE",
        help="ranges of int8 vectors: npz with `ranges`, the least and greatest of each dimension",
    )


def _add_translate_options(parser: argparse.ArgumentParser) -> None:
    _add_vector_options(parser)
    parser.add_argument(
        "--as",
        dest="form",
        choices=("int8", "binary"),
        help="write codes or bits (.npy); by default in the form of the old vectors",
    )
    parser.add_argument(
        "--new-ranges",
        type=Path,
        metavar="FILE",
        help="ranges of the new int8 vectors; by default of a sample, written beside OUT",
    )
    parser.add_argument("--quiet", action="store_true", help="print errors and results only")


def _add_refresh_options(parser: argparse.ArgumentParser) -> None:
    _add_vector_options(parser)
    parser.add_argument(
        "--queries", type=Path, metavar="FILE", help="vectors of logged queries by the new model"
    )
    parser.add_argument(
        "--bits",
        type=Path,
        metavar="FILE",
        help="bits (.npy) that were made of VECTORS, if the index has these",
    )
