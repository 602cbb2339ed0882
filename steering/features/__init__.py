"""Features of registered SAEs: labels, search, the logit lens, and their admin pages.

Start with :mod:`~steering.features.catalog` for look-ups, and :mod:`~steering.features.services` for writes.
"""
