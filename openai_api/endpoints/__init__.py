"""The handlers of /v1, one module for each resource.

Start at ``chat.py``; /v1/responses, /v1/decisions and stored chats have packages of their own.
"""
