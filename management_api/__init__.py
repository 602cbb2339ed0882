"""/api: the console's operations as a REST API (DRF), described by the OpenAPI document.

Start with `urls`; `resources` holds one viewset per resource, `viewset` what they share.
"""
