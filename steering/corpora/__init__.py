"""Texts on which SAEs are measured: the shipped corpus, files of the operator, and corpora that other apps register.

Start with :mod:`~steering.corpora.corpus`, which reads one; :mod:`~steering.corpora.corpus_registry` lists them.
"""
