"""The request log: one row per request, its search, detail pages, export, retention and replay.

Start at ``entry.py`` (the outcome of a request and its row) and ``writer.py`` (the thread that stores it).
"""
