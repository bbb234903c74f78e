"""Vocabularies cut to what a corpus needs: kept tokens, tokenizer files, embedding rows, and the proof."""
