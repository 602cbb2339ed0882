"""Fast kernels of a forward pass: attention over the cache, linear layers, fused layers, CUDA graphs.

Start with :mod:`~inference.engine.kernels.attention`; :mod:`~inference.engine.kernels.native` has the C++ kernels for
the CPU.
"""
