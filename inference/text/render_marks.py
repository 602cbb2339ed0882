"""The private-use characters that wrap texts of control tokens while a chat is rendered.

``str()`` of lists and dicts, and ASCII-only JSON, write these characters as escapes. The functions here restore them.
"""

START, END = "\U000f0000", "\U000f0001"
MARKS = {ord(START): None, ord(END): None}  # for str.translate: removes them from users' text


def as_text(value: object) -> str:
    """Return ``str(value)`` with the marks kept."""
    return value if isinstance(value, str) else restore_marks(str(value))


def restore_marks(text: str) -> str:
    """Restore marks in text with the ``str()`` of a list or dict."""
    return text.replace("\\U000f0000", START).replace("\\U000f0001", END)


def restore_json_marks(text: str) -> str:
    """Restore marks in ASCII-only JSON."""
    return text.replace("\\udb80\\udc00", START).replace("\\udb80\\udc01", END)
