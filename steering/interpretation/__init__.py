"""Automatic labels of features: explain each from its top examples, and score the explanation by detection.

Start with ``job``; ``prompts`` has what the model is asked, ``answers`` what counts as a label.
"""
