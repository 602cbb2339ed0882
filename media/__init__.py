"""Audio, images and videos: models, the durable queue of videos, and the process that runs the models.

``messages.py`` defines the messages between the server and the worker process, ``client.py`` is the server's side, and
``worker/`` the process, which uses torch, transformers, diffusers and PyAV, but not Django. Endpoints are in
``openai_api/media``.
"""
