"""A large database of made-up rows, to see how pages and queries bear it: `manage.py seed_load`."""
