"""Removal of rows that repeat other rows, exactly or nearly."""
