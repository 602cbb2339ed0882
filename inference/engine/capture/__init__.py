"""Activations captured inside the forward pass.

Start with :mod:`~inference.engine.capture.table`, the hooks; :mod:`~inference.engine.capture.step` is one forward
pass.
"""
