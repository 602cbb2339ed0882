"""The request log: one row per request, its search, detail pages, export, retention and replay.

Start at ``entry.py`` (the row while the request runs) and ``writer.py`` (the thread that stores it).
"""
