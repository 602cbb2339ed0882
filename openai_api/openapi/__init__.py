"""The OpenAPI document of /v1, built from the schemas that validate the requests.

Start at ``document.py``.
"""
