"""Dialects: how models write reasoning, tool calls and content, and parsers that separate them while text arrives.

Start with ``answer_reader.py``, which turns the text of an answer into the events of ``events.py``. ``dialect.py``
selects a model's marks and tool call notation by its chat template. Each notation has its own module.
"""
