"""Long lists of words, and of keys with values, written as lines of text."""

import ast


def words(*lines: str) -> tuple[str, ...]:
    """The words of all lines."""
    return tuple(word for line in lines for word in line.split())


def keys(*lines: str) -> dict[str, object]:
    """`key=value`, …: by key a number, True or False, or else the text."""
    return {key: _value(text) for key, _, text in (word.partition("=") for word in words(*lines))}


def _value(text: str) -> object:
    if text in {"true", "false"}:
        return text == "true"
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
