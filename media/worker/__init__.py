"""The process that runs media models. Plain Python with torch, transformers, diffusers and PyAV; nothing of Django.

Start with ``process.py``. ``loading.py`` chooses the class for a model; one module per kind runs it.
"""
