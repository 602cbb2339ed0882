"""Extract text from documents. Parsers run in a process of their own, with limits, and import no Django.

``formats.py`` has the parsers, ``process.py`` starts the process, ``__main__.py`` runs in it.
"""
