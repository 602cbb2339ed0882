"""The KV cache: which sequence holds which blocks, and the tensors.

Start with :mod:`~inference.engine.cache.policy`, the interface of the paged and the contiguous cache;
:mod:`~inference.engine.cache.plan` sizes one for a model.
"""
