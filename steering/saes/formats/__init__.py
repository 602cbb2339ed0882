"""One converter per format in which SAEs are published, from its files to the normal form."""
