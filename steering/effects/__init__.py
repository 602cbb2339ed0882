"""Measured effects of features on the model's output: the calibrated strength, scores, fluency and samples.

Start with ``job``; ``recipe`` describes what is measured, ``probe`` asks the engine, ``files`` ships the results.
"""
