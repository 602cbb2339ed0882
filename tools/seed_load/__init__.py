"""A large database of generated rows, to measure how pages and queries scale.

Start with `load`. Run by `manage.py seed_load`.
"""
