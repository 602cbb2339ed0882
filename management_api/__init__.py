"""/api: the console's operations as a REST API (DRF), described by the OpenAPI document.

Start with `urls`. `resources` has one viewset per resource, `viewset` their base class.
"""
