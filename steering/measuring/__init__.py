"""Measures an SAE on a corpus: how well it fits, and on which texts its features fire. Uses torch, but not Django.

Start with :func:`steering.measuring.measurement.measure_sae`.
"""
