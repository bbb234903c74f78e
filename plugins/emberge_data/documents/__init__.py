"""Documents of people, as text, Markdown, web pages, code or PDF, cut into passages at headings."""
