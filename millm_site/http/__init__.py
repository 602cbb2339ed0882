"""Request handling below the views: ASGI handler, middleware, host check, CORS, health, metrics, static files.

Start with `asgi_handler`, where every request enters.
"""
