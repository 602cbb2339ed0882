"""Extract text from documents. Parsers run in a separate process with limits, without Django.

``formats.py`` has the parsers, ``process.py`` starts the process, ``__main__.py`` runs in it.
"""
