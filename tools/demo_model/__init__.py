"""The demo's world, its model and its SAE: a grammar writes a corpus, on which model and SAE are trained.

Start with `train`; `stages` are its steps, `corpus` and `story` write the texts. Run by `manage.py train_demo`.
"""
