"""Backbones of whole models of sentence-transformers: rerankers, sparse and multi-vector encoders."""
