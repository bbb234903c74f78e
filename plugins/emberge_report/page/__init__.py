"""The report's page: sections and tables as HTML."""
