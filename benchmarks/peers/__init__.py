"""Comparison with other engines on the same prompts: ``python -m benchmarks.peers``.

``install`` makes the peers' environments. ``servers`` starts those that are servers, ``genai`` runs OpenVINO,
``in_process`` transformers, and ``comparison`` measures all in turns.
"""
