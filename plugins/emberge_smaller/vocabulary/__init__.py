"""Vocabularies cut to what a corpus needs: kept tokens, tokenizer files, rows, and the check of texts."""
