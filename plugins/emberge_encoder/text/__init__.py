"""Parts of an encoder of texts: tokenizer, transformer, pooling, adapter, head."""
