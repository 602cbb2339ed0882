"""How models write: reasoning, tool calls and content, told apart while the text arrives.

Plain Python over text. A :class:`~inference.text.dialects.answer_reader.AnswerReader` turns the pieces of one answer into
:mod:`~inference.text.dialects.events`; which marks and which form of calls it looks for is the model's dialect.
"""
