"""Fixtures of this folder: a hub to publish on, and merges with licences, each made once."""

from tests.support.publishing import hub, kept_merges, merged

__all__ = ["hub", "kept_merges", "merged"]
