"""Convert tokens to output: text, segments and scores.

Start with :mod:`~inference.engine.output.detokenizer`.
"""
