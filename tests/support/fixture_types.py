"""Short names for the types of pytest's fixtures."""

from __future__ import annotations

import pytest

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch
