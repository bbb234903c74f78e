"""Charts of the report as SVG."""
