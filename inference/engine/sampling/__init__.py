"""From logits to tokens: constraints, penalties, truncation and the draw.

Start with :mod:`~inference.engine.sampling.sampler`.
"""
