"""Steering inside the forward pass: which edits act on which token, and the tables that apply them.

Start with :mod:`~inference.engine.steering.table`.
"""
