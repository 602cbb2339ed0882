"""Measured effects of features on the model's output: output tokens, the calibrated strength, scores, fluency
and samples.

Start with ``job``; ``recipe`` and ``output_tokens`` describe what is measured, ``probe`` asks the engine, ``store``
keeps the results and ships them in files.
"""
