"""A loss: pairs together, everything else apart."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import Embeddings, Loss

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Uniformity(Loss):
    """Alignment and uniformity on the sphere (Wang and Isola, 2020, arXiv:2005.10242)."""

    spread: float = 1.0
    """Weight of uniformity against alignment."""
    sharpness: float = 2.0
    """The t of the Gaussian that measures uniformity: high minds near neighbours alone."""

    def __call__(self, embeddings: Embeddings) -> "Tensor":
        from torch.nn.functional import normalize, pdist

        anchor = normalize(embeddings.anchor, dim=-1)
        positive = normalize(embeddings.positive, dim=-1)
        valid = embeddings.valid[:, : positive.shape[1]]
        loss = (anchor.unsqueeze(1) - positive).square().sum(-1)[valid].mean()
        if len(anchor) > 1:
            kernel = pdist(anchor).square().mul(-self.sharpness).exp()
            loss = loss + self.spread * kernel.mean().log()
        return loss
