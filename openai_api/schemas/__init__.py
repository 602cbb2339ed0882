"""Requests as pydantic models and response bodies as typed dicts, one module for each resource.

Start at ``base.py``: strictness, and which fields are honoured, ignored or refused.
"""
