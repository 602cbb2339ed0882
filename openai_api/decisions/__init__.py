"""POST /v1/decisions: questions answered by the probabilities of labels, without generating text.

Start at ``endpoint.py``.
"""
