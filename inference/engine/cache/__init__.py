"""Keys and values of earlier tokens: who holds which blocks, and the tensors behind them.

Start with :mod:`~inference.engine.cache.policy`, the interface of the paged and the contiguous cache;
:mod:`~inference.engine.cache.plan` sizes one for a model.
"""
