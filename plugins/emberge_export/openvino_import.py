"""The import of OpenVINO, which would tell its makers of it, and of each conversion, over the network."""

from __future__ import annotations

import sys


def keep_to_ourselves() -> None:
    """Keep OpenVINO, which is imported after this, from its telemetry, as if that package were missing."""
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
