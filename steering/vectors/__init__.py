"""Steering vectors: reading them from files, computing them from pairs of prompts, and their admin pages.

Start with :mod:`~steering.vectors.services`; :mod:`~steering.vectors.extraction` is the job that computes vectors.
"""
