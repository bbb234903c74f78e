"""The hub's models that shipped recipes name, without weights, and `emberge check` beside a hub of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support import model_headers, tiny

# By what their configs and tokenizer are like.
MODELS = {
    "sentence-transformers/all-MiniLM-L6-v2": "minilm",
    "sentence-transformers/all-mpnet-base-v2": "bge",
    "sentence-transformers/multi-qa-MiniLM-L6-cos-v1": "minilm",
    "nreimers/MiniLM-L6-H384-uncased": "minilm",
    "Qwen/Qwen3-4B": "qwen3",
    "BAAI/bge-large-zh-v1.5": "bge",
    "intfloat/multilingual-e5-large": "e5",
    "google-bert/bert-base-uncased": "bert",
    "google-bert/bert-large-uncased": "bert",
    "FacebookAI/xlm-roberta-base": "xlmr",
    "FacebookAI/xlm-roberta-large": "xlmr",
    "intfloat/e5-large-unsupervised": "minilm",
    "intfloat/multilingual-e5-small": "e5",
    "intfloat/e5-mistral-7b-instruct": "decoder",
    "BAAI/bge-m3": "e5",
    "BAAI/bge-reranker-v2-m3": "reranker",
    "NovaSearch/stella_en_1.5B_v5": "decoder",
    "Snowflake/snowflake-arctic-embed-l": "bge",
    "Snowflake/snowflake-arctic-embed-m-v1.5": "arctic",
    "ibm-granite/granite-embedding-english-r2": "granite",
}

# Those with their own configs.
REAL = tuple(model_headers.MODELS)


def write_hub(root: Path, work: Path) -> Path:
    """Fill `root` with every model but its weights; `work` is for building them."""
    built = {
        "minilm": tiny.minilm(),
        "qwen3": tiny.checkpoint(work / "qwen3", "qwen3", sentence_transformer=False),
        "decoder": tiny.checkpoint(work / "decoder", "qwen3"),
        "bge": tiny.checkpoint(work / "bge"),
        "arctic": tiny.checkpoint(work / "arctic", hidden_size=768),
        "granite": tiny.checkpoint(work / "granite", "modernbert", num_hidden_layers=22),
        "e5": tiny.checkpoint(work / "e5", "xlm-roberta"),
        "reranker": tiny.reranker(work / "reranker", architecture="xlm-roberta"),
        "bert": tiny.checkpoint(work / "bert", sentence_transformer=False),
        "xlmr": tiny.transformer(work / "xlmr", "AutoModelForMaskedLM", "xlm-roberta"),
    }
    for name, size in (("bge", 32), ("arctic", 768), ("granite", 32)):
        tiny.write_modules(built[name], size, pooling="cls")
    for model, kind in MODELS.items():
        ignored = shutil.ignore_patterns("*.safetensors", "*.bin")
        shutil.copytree(built[kind], root / model / "main", ignore=ignored)
    for model in REAL:
        model_headers.write_model(root / model / "main", model, weights=False)
    return root


# One process for all: most of a check's time is the import of transformers.
CHECK_ALL = """
import contextlib, io, json, sys
from emberge.cli.main import main
found = {}
for name in sys.argv[1:]:
    with io.StringIO() as said:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = main(["check", name, "--long"])
        found[name] = code, said.getvalue()
print(json.dumps(found))
"""


def check(names: Sequence[str], cache: Path, hub: str) -> dict[str, tuple[int, str]]:
    """Check recipes beside a hub in a process of their own; return each one's exit code and output."""
    # Sound of the hub is read with this package, without which check has an error of its own.
    package = cache.parent / "packages" / "torchcodec" / "__init__.py"
    package.parent.mkdir(parents=True, exist_ok=True)
    package.touch()
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(
            [str(package.parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        ),
        "HF_HOME": str(cache),
        "HF_HUB_OFFLINE": "0",
        "HF_DATASETS_OFFLINE": "1",  # that hub has models and no data
        "HF_ENDPOINT": hub,
    }
    command = [sys.executable, "-c", CHECK_ALL, *names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return {name: (code, said) for name, (code, said) in json.loads(done.stdout).items()}
