"""A model's files: where they come from, what they hold, and whether this server can serve them.

Start with ``sources.py``, which turns a row's source (a directory or a Hub id) into a checked local directory.
"""
