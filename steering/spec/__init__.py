"""What a profile version says, in plain dataclasses; no Django and no torch.

:mod:`~steering.spec.edit` has the content, :mod:`~steering.spec.units` says what strengths mean,
:mod:`~steering.spec.parsing` reads JSON, :mod:`~steering.spec.rendering` writes it and computes the fingerprint.
"""
