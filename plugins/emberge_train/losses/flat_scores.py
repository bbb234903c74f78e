"""Warnings of temperatures and scales under which all texts look alike to a loss."""

from __future__ import annotations


def temperature_warnings(
    temperature: float, name: str = "temperature", *, most: float = 1.0
) -> list[str]:
    """Return a warning for a temperature above `most`.

    Cosines lie from -1 to 1, so that over a temperature T no two texts are further apart than 2 / T.
    """
    if temperature <= most:
        return []
    return [
        f"{name} {temperature:g}: cosines divided by it differ by {2 / temperature:.2g} at most, so that "
        f"nothing is learned; from 0.01 to 0.1 is usual, and a scale of {temperature:g} is the "
        f"temperature {1 / temperature:.3g}"
    ]


def scale_warnings(scale: float) -> list[str]:
    """Return a warning for a scale below 1, which looks like a temperature."""
    if scale >= 1:
        return []
    return [
        f"scale {scale:g}: cosines times it differ by {2 * scale:.2g} at most, so that nothing is learned; "
        f"20 is usual, and a temperature of {scale:g} is the scale {1 / scale:.3g}"
    ]
