"""Ollama's API: its requests run as those of /v1 and are answered in its form.

Start at ``routes.py``. ``conversion.py`` turns requests into ours, ``lines.py`` turns events into its lines.
"""
