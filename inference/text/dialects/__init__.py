"""How models write: reasoning, tool calls and content, told apart while the text arrives. Plain Python over text.

Start with ``answer_reader.py``, which turns the pieces of one answer into the events of ``events.py``; ``dialect.py``
picks a model's marks and notation of tool calls from its chat template, and each notation has a module of its own.
"""
