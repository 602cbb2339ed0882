"""One module per published SAE format, each converting its files to the normal form.

A new format subclasses ``SAEFormat`` (:mod:`~steering.saes.formats.format`) and is listed in
:mod:`~steering.saes.formats.registry`.
"""
