"""Does a server of embeddings give the vectors that a passport (space.json) has? No package is needed.

    python check_space.py space.json http://localhost:8080/v1/embeddings --model boom
    python check_space.py space.json http://localhost:8080/embed          (Text Embeddings Inference)
    python check_space.py space.json http://localhost:11434/api/embed --model boom          (Ollama)

Exit codes: 0 the same, 4 different, 1 no answer that can be compared. Copy this file to wherever a server
starts. `emberge space space.json --endpoint URL` says more, and with the model in place of space.json why.
"""

import argparse
import base64
import json
import math
import os
import struct
import sys
import urllib.request

SAME = (
    0.0632  # the largest distance of two vectors of length one that is rounding: a cosine of 0.998
)
BATCH = 8


def main() -> int:
    """Print the outcome and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("passport", help="space.json of a model, with canaries")
    parser.add_argument(
        "endpoint", help="the whole address, which ends in /embeddings, /embed or /api/embed"
    )
    parser.add_argument("--model", default="", help="the model's name there")
    parser.add_argument("--key", metavar="NAME", help="environment variable that has the key")
    parser.add_argument(
        "--queries", action="store_true", help="check texts as queries, not as documents"
    )
    parser.add_argument(
        "--send-prompts", action="store_true", help="send the prompt before each text"
    )
    options = parser.parse_args()
    try:
        distance = measure(options)
    except (OSError, ValueError, KeyError, TypeError, struct.error) as error:
        print(f"no answer that can be compared: {error}", file=sys.stderr)
        return 1
    is_same = distance <= SAME
    print(
        f"{'same' if is_same else 'different'}: at most {distance:.2%} of a vector's length apart"
    )
    return 0 if is_same else 4


def measure(options: argparse.Namespace) -> float:
    """Return the largest distance of a canary's two vectors, each scaled to length one."""
    with open(options.passport, encoding="utf-8") as file:
        passport = json.load(file)
    prompts, canaries = passport["prompts"], passport.get("canaries")
    if not canaries:
        raise ValueError(f"{options.passport} has no canaries; `emberge space MODEL` writes them")
    side = "query" if options.queries and prompts["query"] != prompts["document"] else "document"
    texts = [*canaries["texts"], *canaries["long_texts"]]
    own = [
        row
        for name, count in (
            (side, len(canaries["texts"])),
            (f"long {side}", len(canaries["long_texts"])),
        )
        for row in unpack(canaries["float16"][name], count)
    ]
    sent = prompts[side] if options.send_prompts else ""
    served = []
    for start in range(0, len(texts), BATCH):
        served += ask(options, [sent + text for text in texts[start : start + BATCH]])
    return max(map(distance_of, own, served))


def unpack(packed: str, count: int) -> list[list[float]]:
    """Return `count` vectors from base64 of little-endian float16."""
    content = base64.b64decode(packed)
    numbers = struct.unpack(f"<{len(content) // 2}e", content)
    width = len(numbers) // count
    return [list(numbers[place * width : (place + 1) * width]) for place in range(count)]


def ask(options: argparse.Namespace, texts: list[str]) -> list[list[float]]:
    """Return the server's vectors of texts."""
    is_tei = options.endpoint.endswith("/embed") and not options.endpoint.endswith("/api/embed")
    fields = (
        {"inputs": texts, "truncate": True} if is_tei else {"input": texts, "model": options.model}
    )
    headers = {"Content-Type": "application/json"}
    if options.key:
        headers["Authorization"] = f"Bearer {os.environ[options.key]}"
    request = urllib.request.Request(options.endpoint, json.dumps(fields).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as response:
        answer = json.load(response)
    if isinstance(answer, dict) and "data" in answer:
        vectors = [one["embedding"] for one in sorted(answer["data"], key=lambda one: one["index"])]
    else:
        vectors = answer if is_tei else answer["embeddings"]
    if len(vectors) != len(texts):
        raise ValueError(f"{len(texts)} texts were answered by {len(vectors)} vectors")
    return vectors


def distance_of(first: list[float], second: list[float]) -> float:
    """Return the distance of two vectors, each scaled to length one."""
    if len(first) != len(second):
        raise ValueError(f"its vectors have {len(second)} numbers, and the model's {len(first)}")
    lengths = [math.sqrt(sum(number * number for number in row)) for row in (first, second)]
    if not all(math.isfinite(length) and length > 0 for length in lengths):
        raise ValueError("a vector is zero or not finite")
    return math.dist(
        *([x / length for x in row] for row, length in zip((first, second), lengths, strict=True))
    )


if __name__ == "__main__":
    sys.exit(main())
