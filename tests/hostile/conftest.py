"""Fixtures of this folder: a hub to publish on, and merges with licences."""

from tests.support.publishing import hub, merged

__all__ = ["hub", "merged"]
