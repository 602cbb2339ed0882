"""Audio, images and videos: models, the durable queue of videos, and the process that runs the models.

``messages.py`` defines what the server and the worker process say to each other, ``client.py`` is the server's side, and
``worker/`` the process. It uses torch, transformers, diffusers and PyAV, and nothing of Django. Endpoints are in
``openai_api/media``.
"""
