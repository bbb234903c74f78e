"""Rank texts, images and clips by a question: ask_with_images_and_sound.py MODEL QUESTION... -- CANDIDATE...

An argument that names a file is an image or, with the ending .wav, a clip; any other is text. A question of
several parts is one input: `photo.png "the same in blue"`.
"""

import sys
from pathlib import Path

from emberge import Media, join_parts, load_plugins, readable
from emberge.engine import MediaFolder, TextEmbedder

model, *words = sys.argv[1:]
split = words.index("--")
question, candidates = words[:split], words[split + 1 :]
files = MediaFolder()


def part(word: str) -> str | Media:
    """Return a reference to a file, or the word as it is."""
    if not Path(word).is_file():
        return word
    medium, _ = files.file("audio" if word.endswith(".wav") else "image", word)
    return medium


text_encoder = load_plugins().find("text_encoder", "backbone").type
embedder = TextEmbedder(text_encoder().load(Path(model), device="cpu", dtype="float32"))
inputs = [join_parts([part(word) for word in question])]
inputs += [join_parts([part(word)]) for word in candidates]
# Each is a row of length one, so products are cosines.
asked, *found = embedder.embed(inputs)
ranked = sorted(zip(found, inputs[1:], strict=True), key=lambda pair: -float(pair[0] @ asked))
print(readable(inputs[0]))
for row, text in ranked:
    print(f"{float(row @ asked):6.3f}  {readable(text)}")
