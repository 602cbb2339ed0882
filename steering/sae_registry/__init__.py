"""SAEs registered on this server: finding their files, checking and adding them, measuring them, and their admin pages.

Start with :mod:`~steering.sae_registry.registration`; file formats and the maths are in :mod:`steering.saes`.
"""
