"""A hub's address and cache set for huggingface_hub in this process, which else reads them once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from huggingface_hub import constants
from huggingface_hub.utils import close_session


@contextmanager
def hub_at(url: str, home: Path, *, offline: bool = False) -> Iterator[None]:
    """Have huggingface_hub ask the hub at `url`, and keep its files below `home`, inside the block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_PROXY", "127.0.0.1")
        patch.setattr(constants, "ENDPOINT", url)
        template = url + "/{repo_id}/resolve/{revision}/{filename}"
        patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        patch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
        patch.setattr(constants, "HF_HUB_OFFLINE", offline)
        patch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        patch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
        close_session()
        yield
    close_session()
