"""Text in and out of a model: chat template, prompt encoding, grammars, and the dialect of its answers. No Django here.

Start with ``model_text.py``, the text side of one loaded model.
"""
