"""Canary texts, whose vectors identify a space of embeddings, and texts for a trial fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from emberge import Encoder
    from numpy.typing import NDArray

    Matrix = NDArray[np.float32]


Canaries = dict[str, "Matrix"]

CANARIES = (
    "The cat sat on the mat.",
    "How do I reset my password?",
    "Paris is the capital of France.",
    "def add(a, b):\n    return a + b",
    "Der schnelle braune Fuchs springt über den faulen Hund.",
    "SELECT name, price FROM products WHERE price > 100 ORDER BY price DESC;",
    "The patient was given 20 mg of the drug twice a day for six weeks.",
    "¿Dónde está la estación de tren más cercana?",
    "Quarterly revenue rose by 12 % while costs stayed flat.",
    "Photosynthesis turns light, water and carbon dioxide into sugar and oxygen.",
    "The tenant shall pay the rent on the first day of each month.",
    "bonjour",
    "What is the weather like in Tokyo in April?",
    "A quantum computer uses qubits, which can be in a superposition of states.",
    "Fehler 404: Die Seite wurde nicht gefunden.",
    "She opened the letter with trembling hands and began to read.",
    "Bake at 180 °C for 40 minutes, until a skewer comes out clean.",
    "for i in range(10): print(i)",
    "Le chat dort sur le canapé.",
    "The team won the match in the last minute of extra time.",
    "best laptop for students under 500",
    "In 1969 two people walked on the Moon for the first time.",
    "Please find the signed contract attached.",
    "今天天气很好。",
    "Interest rates were raised by a quarter of a point to slow inflation.",
    "git commit -m 'fix a typo'",
    "The river has flooded the road to the village again.",
    "Wie hoch ist der Mount Everest?",
    "An apple a day keeps the doctor away.",
    "TypeError: unsupported operand type(s) for +: 'int' and 'str'",
    "Any act or omission that causes loss gives rise to a duty to repair it, unless the person who caused it "
    "proves that neither intent nor negligence was involved, or that the loss would have come about anyway.",
    "1234567890",
)
LONG_CANARIES = ("\n".join(CANARIES), "\n".join(CANARIES[::-1] * 3))
"""Texts that are longer than many servers read: which part of them a server reads can be told."""


def embed_canaries(encoder: Encoder, name: str = "the model") -> Canaries:
    """Return the canaries' vectors [32, d] as documents, and as queries if these have another prompt.

    Those of the long canaries [2, d] are under `long document` and `long query`.

    Raises:
        CheckpointError: if vectors are not finite; the message has the model's `name`.
    """
    from emberge.encoding import TextEmbedder

    embedder = TextEmbedder(encoder, model=name)
    query, document = prompts_of(encoder.prompts)
    prompts = {"document": document, **({"query": query} if query != document else {})}
    vectors = {}
    for side, prompt in prompts.items():
        rows = embedder.embed((*CANARIES, *LONG_CANARIES), prompt=prompt)
        vectors[side] = rows[: len(CANARIES)]
        vectors[f"long {side}"] = rows[len(CANARIES) :]
    return vectors


def prompts_of(prompts: Mapping[str, str]) -> tuple[str, str]:
    """Return a model's (query prompt, document prompt), each empty if it has none."""
    return prompts.get("query", ""), prompts.get("document", prompts.get("passage", ""))


def probe_texts(count: int = 256) -> Sequence[str]:
    """Return paragraphs of Python's help, which depend on Python's release alone."""
    from pydoc_data.topics import topics

    paragraphs: dict[str, None] = {}
    for topic in sorted(topics):
        for paragraph in topics[topic].split("\n\n"):
            words = paragraph.split()
            if 8 <= len(words) <= 30:
                paragraphs[" ".join(words)] = None
    step = max(1, len(paragraphs) // count)
    return list(paragraphs)[::step][:count]
