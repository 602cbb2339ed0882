"""Sparse autoencoders: reading their files safely, and their exact maths. Start with :mod:`~steering.saes.loader`.

Plain Python and torch, usable from a notebook::

    from steering.saes.loader import load_sae

    sae = load_sae(Path("my-sae"))
    activations = sae.encode(residuals)  # [tokens, d_sae]

Importing this package, :mod:`~steering.saes.files`, :mod:`~steering.saes.config` or :mod:`~steering.saes.preview`
does not import torch.
"""
