"""From tokens to what clients get: text, segments and scores.

Start with :mod:`~inference.engine.output.detokenizer`.
"""
