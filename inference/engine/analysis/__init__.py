"""Analyses on the engine thread: logit lenses and attributions, in small units between the steps of the batch.

Start with ``queue.py``; ``layers.py`` runs a model's layers one by one, with gradients.
"""
