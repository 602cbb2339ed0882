"""Embedding models and classifiers, which process a whole text in one forward pass.

Start with :mod:`~inference.engine.embedding.engine`.
"""
