"""Rank texts, images and clips by a question: ask_with_images_and_sound.py MODEL QUESTION... -- CANDIDATE...

Files are images or, ending in .wav, clips; other words are text. A question may have several parts.
"""

import sys
from pathlib import Path

from emberge import Media, join_parts, load_plugins, show_media
from emberge.encoding import TextEmbedder
from emberge.media import MediaFolder

model, *words = sys.argv[1:]
split = words.index("--")
files = MediaFolder()


def part(word: str) -> str | Media:
    """Return the reference to a file, or the word as it is."""
    if not Path(word).is_file():
        return word
    return files.add_file("audio" if word.endswith(".wav") else "image", word)


question = join_parts([part(word) for word in words[:split]])
candidates = [join_parts([part(word)]) for word in words[split + 1 :]]
backbone = load_plugins().find("text_encoder", "backbone").type()
encoder = backbone.load(Path(model), device="cpu", dtype="float32")
rows = TextEmbedder(encoder).embed([question, *candidates])  # of length one
for cosine, text in sorted(zip(rows[1:] @ rows[0], candidates, strict=True), reverse=True):
    print(f"{cosine:6.3f}  {show_media(text)}")
