"""Steering inside the forward pass: which edits apply to which token, and the tables that apply them.

Start with :mod:`~inference.engine.steering.table`.
"""
