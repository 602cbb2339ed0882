"""Tests of the training of SAEs."""
