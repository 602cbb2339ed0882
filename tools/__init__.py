"""Programs for developers, not part of the server: they build artifacts and measure the code.

Start with `demo_model` (trains the demo), `seed_load` (fills a database) or `house` (figures of the code).
"""
