"""Requests, items and bodies of /v1/responses.

Start at ``request.py``.
"""
