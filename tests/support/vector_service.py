"""A server of embeddings on this machine, in three forms, which embeds by a function or answers otherwise."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.chat_server import AnsweringHandler, Wrong
from tests.support.served import served

Embed = Callable[[list[str]], Any]
PATHS = {"/v1/embeddings": "openai", "/embed": "tei", "/api/embed": "ollama"}


class VectorService(ThreadingHTTPServer):
    """Answers in the forms of `forms`; `requests` has the path and the fields of each request."""

    daemon_threads = True

    def __init__(self, embed: Embed, forms: Sequence[str]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.embed, self.forms = embed, forms
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.keys: Counter[str] = Counter()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *_: object) -> None:
        """Stay quiet about clients that went away."""


class _Handler(AnsweringHandler):
    server: VectorService

    def do_POST(self) -> None:
        fields = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((self.path, fields))
        self.server.keys[self.headers.get("Authorization", "")] += 1
        form = PATHS.get(self.path)
        if form not in self.server.forms:
            return self.answer(Wrong(404, b"no such page"))
        texts = fields["inputs" if form == "tei" else "input"]
        found = self.server.embed(texts)
        if not isinstance(found, Wrong):
            found = Wrong(body=write_answer(str(form), found))
        return self.answer(found)


def write_answer(form: str, vectors: Any) -> bytes:
    """The body with vectors as a server of this form writes it; OpenAI's has them in reverse order."""
    rows = vectors.tolist() if isinstance(vectors, np.ndarray) else vectors
    entries = [{"object": "embedding", "index": i, "embedding": row} for i, row in enumerate(rows)]
    content = {"openai": {"data": entries[::-1]}, "tei": rows, "ollama": {"embeddings": rows}}[form]
    return json.dumps(content).encode()


@contextmanager
def serving_vectors(
    embed: Embed, forms: Sequence[str] = ("openai", "tei", "ollama")
) -> Iterator[VectorService]:
    with served(VectorService(embed, forms)) as service:
        yield service


# ── faults, as stock sentence-transformers makes them ───────────────────────────────────────────


SINGLES = (
    *("prompt_missing", "prompt_doubled", "prompt_of_other_side", "pooling", "normalisation"),
    *("truncation_length", "truncation_side", "case", "prefix", "precision", "model"),
)
# Faults of one thing, which a server has once.
_SAME_THING = (
    {"prompt_missing", "prompt_doubled", "prompt_of_other_side"},
    {"normalisation", "precision"},  # codes have no length
    {"normalisation", "prefix"},  # the prefix here is scaled again
    {"truncation_length", "truncation_side", "case"},
)


def _all_pairs() -> list[tuple[str, str]]:
    pairs = itertools.combinations(SINGLES, 2)
    return [pair for pair in pairs if not any(set(pair) <= same for same in _SAME_THING)]


PAIRS = random.Random(0).sample(_all_pairs(), 20)


def open_stock(folder: Path) -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu", local_files_only=True)


def misconfigured(folder: Path, faults: Sequence[str], *, other: Path | None = None) -> Embed:
    """A function that embeds as a stock model with faults of its server does.

    The server adds the model's prompt for documents to each text, as a right one does for texts without it.
    """
    from sentence_transformers import quantize_embeddings
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

    assert "model" not in faults or other is not None
    model = open_stock(other if "model" in faults and other is not None else folder)
    prompts = dict(model.prompts)
    prompt = prompts.get("document") or ""
    if "prompt_missing" in faults:
        prompt = ""
    elif "prompt_doubled" in faults:
        prompt *= 2
    elif "prompt_of_other_side" in faults:
        prompt = prompts["query"]
    if "pooling" in faults:
        model[1] = Pooling(model.get_embedding_dimension(), "cls")
    if "normalisation" in faults:
        for place in [name for name, one in model.named_children() if isinstance(one, Normalize)]:
            del model._modules[place]
    if "truncation_length" in faults:
        model.max_seq_length = 32
    if "truncation_side" in faults:
        model.tokenizer.truncation_side = "left"
    if "case" in faults:
        from tokenizers import normalizers

        backend = model.tokenizer.backend_tokenizer
        backend.normalizer = normalizers.BertNormalizer(lowercase=False)
    if "tokenizer" in faults:
        assert other is not None
        length = model.max_seq_length
        model[0].processor = open_stock(other)[0].processor
        model.max_seq_length = length

    def embed(texts: list[str]) -> Any:
        rows = np.asarray(model.encode([prompt + text for text in texts], prompt=""), np.float64)
        if "prefix" in faults:
            rows = rows[:, : rows.shape[1] // 2]
            rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        if "precision" in faults:
            width = rows.shape[1]
            ranges = np.stack([np.full(width, -1.0), np.full(width, 1.0)]).astype(np.float32)
            return quantize_embeddings(rows.astype(np.float32), "int8", ranges=ranges)
        if "bits" in faults:
            return quantize_embeddings(rows.astype(np.float32), "ubinary")
        return rows

    return embed
