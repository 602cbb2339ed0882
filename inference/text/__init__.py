"""Text in and out of a model: chat templates, prompt encoding, grammars and dialects. No Django here.

Start with ``model_text.py``, the text functions of a loaded model.
"""
