"""Documents of people, as text, Markdown, web pages or code, cut into passages at headings."""
