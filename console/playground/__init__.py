"""The playground: models and steering side by side, with their tokens.

Start with `pages` (the page and its data) and `answers` (the requests that it sends).
"""
