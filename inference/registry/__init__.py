"""Which models are registered and loaded, how they are loaded, and whether the next one fits in memory.

Start with ``registry.py``; requests look models up in the table of ``records.py`` and get a ``ReadyModel``.
"""
