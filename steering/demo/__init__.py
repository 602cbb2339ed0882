"""The demo: a tiny model, its SAE and profiles, committed under artifacts/.

Start with `install`, which registers them. `tools.demo_model` trains them.
"""
