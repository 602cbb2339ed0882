"""One module per resource: its serializers and its viewset.

Start with `profile`, the largest one.
"""
