"""`python -m emberge` is the command `emberge`."""

from __future__ import annotations

import sys

from emberge.cli.main import main

sys.exit(main())
