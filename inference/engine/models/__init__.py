"""Load a model from a directory for the engine, and check it against transformers.

Start with :mod:`~inference.engine.models.loader`.
"""
