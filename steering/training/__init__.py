"""Training of SAEs on the activations of a model at one site.

Start with :mod:`steering.training.run`, which collects activations, trains and writes the SAE; it resumes after a
crash. :mod:`steering.training.jobs` runs it on a server.
"""
