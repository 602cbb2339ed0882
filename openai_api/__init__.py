"""The OpenAI API under /v1: HTTP, keys, generation, endpoints and the request log.

Start at ``routes.py`` for what is served, and at ``http/endpoint.py`` for what happens around every handler.
"""

VERSION = "0.1.0"  # of the server, as in pyproject.toml
V1_ROOTS = ("/v1", "/openai/v1", "/ollama/v1")  # where all routes are: OpenAI's, Azure OpenAI's and Ollama's addresses
