"""The Responses API: /v1/responses and /v1/conversations, whole, streamed or in the background.

Start at ``endpoints.py`` for the handlers and at ``tool_loop.py`` for the loop of generation and file search.
"""
