"""Features of media: patches of images and log-mel frames of clips, as the stock processors make them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from emberge import DataError, Media, MediaKind
from numpy.typing import NDArray

from emberge_encoder.media.media_decoding import (
    read_clip,
    read_image,
    read_image_size,
    resample_clip,
)
from emberge_encoder.media.media_support import MediaSupport

Array = NDArray[Any]
# Samples that Qwen3-ASR pads a shorter clip to, half a second at its rate.
SHORTEST_CLIP = 8000


class ImageReader:
    """Reader of images for a model: the number of their tokens from their size, and their patches.

    Pixels go only through the part of the stock processor that uses numpy and Pillow. With `shrink`, an image
    larger than the model's limit is made smaller, as the stock processor does.
    """

    def __init__(self, support: MediaSupport, *, shrink: bool) -> None:
        from transformers import Qwen2VLImageProcessorPil

        self._processor: Any = Qwen2VLImageProcessorPil.from_dict(dict(support.processors["image"]))
        self._shrink = shrink

    def count_media_tokens(self, media: Media) -> int:
        """Return the number of tokens of an image, from its header.

        Raises:
            DataError: if the image cannot be read, or is too large.
        """
        processor, (width, height) = self._processor, read_image_size(media)
        limit, patch = int(processor.size["longest_edge"]), processor.patch_size
        if not self._shrink and width * height > limit:
            raise DataError(
                f"{media.path}: an image of {width} x {height} pixels is larger than the model's limit of "
                f"{limit // patch**2} patches of {patch} x {patch}; make it smaller, or have that done with "
                "backbone: {text_encoder: {shrink: true}}"
            )
        try:
            patches = processor.get_number_of_image_patches(height, width)
        except ValueError as error:  # of one that is too narrow
            raise DataError(f"{media.path}: {error}; cut or replace the image") from error
        return int(patches // processor.merge_size**2)

    def read(self, media: Media) -> Mapping[str, Array]:
        """Return patches [p, d] of an image and its grid [1, 3]."""
        features = self._processor(read_image(media), return_tensors="np")
        return {
            "pixel_values": features["pixel_values"],
            "image_grid_thw": features["image_grid_thw"],
        }

    @staticmethod
    def join(images: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
        """Join the features of several images into one batch."""
        return {name: np.concatenate([image[name] for image in images]) for name in images[0]}


class ClipReader:
    """Reader of clips for a model: the number of their tokens from their length, and their log-mel frames.

    Frames are those of Whisper's extractor (Radford et al., 2022, arXiv:2212.04356). Each clip is read alone
    and padded afterwards, so that the other clips of a batch change nothing. A clip shorter than half a
    second is first padded with silence, as in Qwen3-ASR. With `resample`, a clip of another sampling rate is
    resampled.
    """

    def __init__(self, support: MediaSupport, *, resample: bool) -> None:
        from transformers import WhisperFeatureExtractor

        settings = {"feature_size": 128, **support.processors["audio"]}
        self._extractor: Any = WhisperFeatureExtractor.from_dict(settings)
        self._resample = resample
        audio = support.config.get("audio_config") or {}
        self._chunk = 2 * int(audio.get("n_window", 50))
        self._asr = support.family == "qwen3_asr"

    @property
    def rate(self) -> int:
        """The sampling rate that the model reads, in samples a second."""
        return int(self._extractor.sampling_rate)

    def count_media_tokens(self, media: Media) -> int:
        """Return the number of tokens of a clip.

        Raises:
            DataError: if the clip cannot be read, or has another sampling rate.
        """
        hop = int(self._extractor.hop_length)
        chunk_count, remainder = divmod(len(self._read_samples(media)) // hop, self._chunk)
        tokens_a_chunk = _count_convolved_frames(self._chunk)
        return chunk_count * tokens_a_chunk + _count_convolved_frames(remainder)

    def _read_samples(self, media: Media) -> NDArray[np.float32]:
        clip = read_clip(media)
        if clip.rate != self.rate and not self._resample:
            raise DataError(
                f"{media.path}: the clip has {clip.rate} samples a second, and the model reads {self.rate}; "
                "convert it, or have it resampled with backbone: {text_encoder: {resample: true}}"
            )
        samples = resample_clip(clip, self.rate).samples
        return np.pad(samples, (0, max(0, SHORTEST_CLIP - len(samples))))

    def read(self, media: Media) -> Mapping[str, Array]:
        """Return the log-mel frames [mel bins, frames] of a clip."""
        features = self._extractor(
            self._read_samples(media),
            sampling_rate=self.rate,
            padding=False,
            truncation=False,
            return_tensors="np",
        )
        return {"frames": features["input_features"][0]}

    def join(self, clips: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
        """Join the frames of several clips into one padded batch, with the mask of real frames."""
        frames = [clip["frames"] for clip in clips]
        longest = max(clip.shape[1] for clip in frames)
        if self._asr:  # its tower reads whole chunks
            longest = -(-longest // self._chunk) * self._chunk
        features = np.zeros((len(frames), frames[0].shape[0], longest), np.float32)
        mask = np.zeros((len(frames), longest), np.int64)
        for row, clip in enumerate(frames):
            features[row, :, : clip.shape[1]] = clip
            mask[row, : clip.shape[1]] = 1
        name = "input_features_mask" if self._asr else "feature_attention_mask"
        return {"input_features": features, name: mask}


def _count_convolved_frames(frames: int) -> int:
    """Return the number of frames after three convolutions of stride two."""
    for _ in range(3):
        frames = (frames - 1) // 2 + 1
    return frames


def pad_whole_chunks(
    tower: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the inputs of the thinker's audio tower, every chunk padded to full length.

    The tower itself pads chunks to the longest chunk of the batch: the features of a clip shorter than one
    chunk would then depend on the other clips. Qwen3-ASR's tower pads to whole chunks.
    """
    import torch
    from torch.nn.functional import pad

    frames, lengths = args[0], kwargs["feature_lens"].tolist()
    chunk = 2 * tower.n_window
    pieces, sizes = [], []
    for clip in frames.split(lengths, dim=1):
        for piece in clip.split(chunk, dim=1):
            sizes.append(piece.shape[1])
            pieces.append(pad(piece, (0, chunk - piece.shape[1])))
    chunk_frames = _count_convolved_frames(chunk)
    frame_counts = torch.tensor([_count_convolved_frames(size) for size in sizes])
    valid = (torch.arange(chunk_frames) < frame_counts[:, None]).flatten().nonzero()[:, 0]
    inputs = {
        "padded_feature": torch.stack(pieces),
        "chunk_lengths": torch.tensor(sizes, device=frames.device),
        "valid_indices": valid.to(frames.device),
    }
    return args, {**kwargs, **inputs}


def build_media_readers(
    support: MediaSupport, *, resample: bool, shrink: bool
) -> Mapping[MediaKind, ImageReader | ClipReader]:
    """Return the reader of each kind of media that a model reads."""
    readers: dict[MediaKind, ImageReader | ClipReader] = {}
    if "image" in support.kinds:
        readers["image"] = ImageReader(support, shrink=shrink)
    if "audio" in support.kinds:
        readers["audio"] = ClipReader(support, resample=resample)
    return readers
