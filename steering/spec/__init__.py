"""The edits of a steering profile as plain dataclasses; no Django and no torch.

Start with :mod:`~steering.spec.edit`. :mod:`~steering.spec.units` defines what strengths mean,
:mod:`~steering.spec.parsing` reads JSON, :mod:`~steering.spec.rendering` writes it and computes the fingerprint.
"""
