"""From a directory of weights to a module that the engine can run, checked against transformers.

Start with :mod:`~inference.engine.models.loader`.
"""
