"""Numbers with the nouns that they count."""


def counted(number: int, noun: str) -> str:
    """A number with what it counts, in the singular for one.

    >>> counted(1, "client"), counted(2, "true group")
    ('1 client', '2 true groups')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
