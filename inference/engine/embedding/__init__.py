"""Embedding models and classifiers, which read a whole text in one forward pass.

Start with :mod:`~inference.engine.embedding.engine`.
"""
