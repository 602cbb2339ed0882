"""Evaluation jobs: strength sweeps, calibration, and side-by-side comparison of profile versions.

Start with ``params`` for what a job takes and ``runner`` for how it generates and compares texts.
"""
