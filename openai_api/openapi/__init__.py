"""The OpenAPI document of /v1, built from the routes and the schemas that validate requests.

Start at ``document.py``.
"""
