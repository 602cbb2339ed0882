"""Decode audio and images in a process of their own without rights: files of clients are untrusted, decoders have bugs.

``process.py`` starts the process and reads its output; ``__main__.py`` is the process.
"""
