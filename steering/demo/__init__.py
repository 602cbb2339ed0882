"""The demos: `tiny`, a very small model committed under artifacts/, and `smollm2`, a real model from a package.

Start with `install`, which registers them. `tools.demo_model` trains the tiny one.
"""
