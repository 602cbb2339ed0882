"""A model's files: locating, downloading and checking them.

Start with ``sources.py``, which resolves a row's source (a directory or a Hub id) to a checked local directory.
"""
