"""The private-use characters around look-alikes of control tokens while a chat is rendered.

Python's notation of lists and dicts, and ASCII-only JSON, write such characters as escapes, which mark nothing. These
functions put the characters back.
"""

START, END = "\U000f0000", "\U000f0001"
MARKS = {ord(START): None, ord(END): None}  # for str.translate: users' own are removed


def as_text(value: object) -> str:
    """``str(value)`` with the marks kept."""
    return value if isinstance(value, str) else restore_marks(str(value))


def restore_marks(text: str) -> str:
    """Text that holds Python's notation of a list or dict."""
    return text.replace("\\U000f0000", START).replace("\\U000f0001", END)


def restore_json_marks(text: str) -> str:
    """ASCII-only JSON."""
    return text.replace("\\udb80\\udc00", START).replace("\\udb80\\udc01", END)
