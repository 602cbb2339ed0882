"""POST /v1/residuals: the residuals of a model at chosen sites, as JSON, safetensors or npz.

Start at ``endpoint.py``; ``formats.py`` writes the bodies.
"""
