"""API keys: authentication, scopes, limits, quotas and their admin pages.

Start at ``authentication.py``; writes go through ``services.py``.
"""
