"""Measures what an SAE does on a corpus: how well it fits, and on which texts its features fire. Torch, and no Django.

Start with :func:`steering.measuring.measurement.measure_sae`.
"""
