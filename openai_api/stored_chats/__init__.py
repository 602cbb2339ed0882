"""Chat completions that clients asked to keep (``store``).

Start at ``endpoints.py``; ``store.py`` holds the database access.
"""
