"""Synthetic sounds and the captions that describe them: a number of beeps of one pitch and rhythm."""

from __future__ import annotations

import io
import itertools
import math
import wave
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from emberge_demo.drawings import NUMBERS, Draws

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


RATE = 16_000
"""Samples a second."""
_PITCHES: Mapping[str, int] = {"deep": 200, "low": 320, "medium": 510, "high": 820, "shrill": 1300}
_RHYTHMS: Mapping[str, tuple[int, int]] = {  # samples of a beep, and from one to the next
    "quick": (RATE // 12, RATE // 8),
    "slow": (RATE // 6, RATE // 4),
}
_SOUNDS = ("soft", "harsh")  # a sine, and a square
_PERIOD = 4096  # entries of a sine's table
_FADE = 80  # samples in which a beep grows and ends


@dataclass(frozen=True, order=True)
class Tones:
    """Clip's content: one to four beeps of one pitch, sound and rhythm within a second."""

    number: int
    rhythm: str
    sound: str
    pitch: str

    kind: ClassVar[str] = "audio"
    ending: ClassVar[str] = "wav"

    @classmethod
    def all(cls) -> Iterator[Tones]:
        """Yield all 80 contents that a clip can have."""
        for number, *rest in itertools.product(range(1, 5), _RHYTHMS, _SOUNDS, _PITCHES):
            yield cls(number, *rest)

    @property
    def caption(self) -> str:
        """Description of the clip, as "three quick soft high beeps"."""
        words = (NUMBERS[self.number - 1], self.rhythm, self.sound, self.pitch)
        return f"{' '.join(words)} beep{'s' * (self.number > 1)}"

    def content(self, draws: Draws) -> bytes:
        """Return a WAV file of one channel and 16 bits."""
        buffer = io.BytesIO()
        with wave.open(buffer, "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(RATE)
            file.writeframes(self.samples(draws).astype("<i2").tobytes())
        return buffer.getvalue()

    def samples(self, draws: Draws) -> NDArray[np.int16]:
        """Return a second of samples, of which begin, loudness and the exact pitch are drawn.

        Phases are whole numbers and the sine is a table of them, so that all machines make equal samples.
        """
        import numpy as np

        length, every = _RHYTHMS[self.rhythm]
        begin = draws.pick(0, RATE - 3 * every - length, "begin")
        # Of a period's table, steps a sample in 1/1000: 4 % around the pitch.
        step = _PITCHES[self.pitch] * _PERIOD * draws.pick(960, 1040, "pitch") // RATE
        places = np.arange(length) * step // 1000 % _PERIOD
        table = np.array([_entry(self.sound, place) for place in range(_PERIOD)])
        grown = np.minimum(np.arange(length), length - 1 - np.arange(length)).clip(max=_FADE)
        loud = draws.pick(50, 90, "loud")
        beep = table[places] * grown * loud // (_FADE * 100)
        found = np.zeros(RATE, np.int16)
        for number in range(self.number):
            place = begin + number * every
            found[place : place + length] = beep
        return found


def _entry(sound: str, place: int) -> int:
    value = round(2**14 * math.sin(2 * math.pi * place / _PERIOD))
    return value if sound == "soft" else (9000 if value >= 0 else -9000)
