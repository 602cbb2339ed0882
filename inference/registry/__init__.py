"""Registered models, loaded models, and the memory they share.

Start with ``registry.py``. Requests look models up in the table of ``records.py`` and get a ``ModelCard``.
"""
