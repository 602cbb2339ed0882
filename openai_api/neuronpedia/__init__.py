"""Neuronpedia's API under /api, so that its Python library works with this server.

Start with `sources`, which maps Neuronpedia's names to models and SAEs. Requests run as those of /v1 do, with the same
keys, limits and log rows. docs/neuronpedia.md describes the endpoints.
"""
