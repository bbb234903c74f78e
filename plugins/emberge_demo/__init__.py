"""Data without a download: functions and docstrings of installed packages, drawn images, synthetic sounds."""
