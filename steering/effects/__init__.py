"""Measured effects of features on the model's output: the calibrated strength, output score, fluency and samples.

Start with ``job``; ``recipe`` describes what is measured, ``probe`` asks the engine, ``files`` ships the results.
"""
