"""Values that no one can guess: numbers, codes, names, words, odd strings."""

import string

from . import words as w
from .split import Draw


def digits(d: Draw, low: int = 2, high: int = 6) -> str:
    count = d.rng.randint(low, high)
    return str(d.rng.randint(1, 9)) + "".join(str(d.rng.randint(0, 9)) for _ in range(count - 1))


def letters(d: Draw, count: int) -> str:
    return "".join(d.rng.choice(string.ascii_uppercase) for _ in range(count))


def piece_word(d: Draw) -> str:
    """Random pieces of the tokenizer glued together, so that every one of them is copied now and then."""
    if not d.pieces:
        return w.pseudo_word(d.rng)
    return "".join(d.rng.choice(d.pieces) for _ in range(d.rng.choice((1, 1, 2, 2, 3))))


def odd_word(d: Draw) -> str:
    """otter55, KX-204, mirolan, 7f3a: what a password or an identifier looks like."""
    kind = d.rng.randrange(9)
    if kind == 0:
        return d.rng.choice(w.ALL_LOWER) + digits(d, 1, 3)
    if kind == 1:
        return w.pseudo_word(d.rng) + digits(d, 1, 3)
    if kind == 2:
        return f"{letters(d, d.rng.randint(1, 3))}-{digits(d, 2, 4)}"
    if kind == 3:
        return "".join(d.rng.choice("0123456789abcdef") for _ in range(d.rng.randint(4, 6)))
    if kind == 4:
        return f"{d.rng.choice(w.ALL_LOWER)}-{d.rng.choice(w.ALL_LOWER)}"
    if kind == 5:
        return letters(d, d.rng.randint(1, 3)) + digits(d, 1, 4)
    if kind == 6:
        return piece_word(d) + digits(d, 1, 2)
    if kind == 7:
        return f"{d.rng.choice(w.ALL_LOWER)}_{d.rng.choice(w.ALL_LOWER)}"
    return w.pseudo_word(d.rng)


def plain_word(d: Draw) -> str:
    """A word from everywhere: known, invented, or made of pieces."""
    kind = d.rng.random()
    if kind < 0.45:
        return d.rng.choice(w.ALL_LOWER)
    if kind < 0.7:
        return piece_word(d)
    return w.pseudo_word(d.rng) if kind < 0.9 else w.pseudo_word(d.rng).capitalize()


def first_name(d: Draw) -> str:
    return w.pseudo_word(d.rng).capitalize() if d.chance(0.3) else d.rng.choice(w.FIRST_NAMES)


def full_name(d: Draw) -> str:
    last = w.pseudo_word(d.rng).capitalize() if d.chance(0.3) else d.rng.choice(w.LAST_NAMES)
    return f"{first_name(d)} {last}"


def city(d: Draw) -> str:
    return w.pseudo_word(d.rng).capitalize() if d.chance(0.3) else d.rng.choice(w.CITIES)


def clock(d: Draw) -> str:
    return (
        f"{d.rng.randint(0, 23):02d}:{d.rng.choice(('00', '05', '10', '15', '20', '30', '40', '45', '50'))}"
    )


def date(d: Draw) -> str:
    kind = d.rng.randrange(4)
    day, month, year = d.rng.randint(1, 28), d.rng.randint(1, 12), d.rng.randint(1950, 2035)
    if kind == 0:
        return f"{day} {w.MONTHS[month - 1]}"
    if kind == 1:
        return f"{w.MONTHS[month - 1]} {day}"
    return f"{year}-{month:02d}-{day:02d}" if kind == 2 else f"{day} {w.MONTHS[month - 1]} {year}"


def quantity(d: Draw) -> str:
    return f"{d.rng.randint(1, 999)} {d.rng.choice(w.UNITS)}"


def email(d: Draw) -> str:
    name = d.rng.choice(w.FIRST_NAMES).lower() if d.chance(0.6) else w.pseudo_word(d.rng)
    host = d.rng.choice((w.pseudo_word(d.rng), d.rng.choice(w.ALL_LOWER)))
    return f"{name}@{host}.{d.rng.choice(('com', 'org', 'net', 'io'))}"


def phone(d: Draw) -> str:
    return f"{digits(d, 3, 3)}-{digits(d, 4, 4)}"


def path(d: Draw) -> str:
    folder = d.rng.choice(("", "", "notes/", "data/", "src/", "/tmp/", "docs/", d.rng.choice(w.NOUNS) + "/"))
    return (
        folder
        + d.rng.choice((d.rng.choice(w.NOUNS), w.pseudo_word(d.rng)))
        + "."
        + d.rng.choice(("txt", "md", "py", "csv", "json", "log"))
    )


def phrase(d: Draw, low: int = 2, high: int = 5) -> str:
    return " ".join(plain_word(d) for _ in range(d.rng.randint(low, high)))


def thing(d: Draw) -> str:
    """An entity by its adjective and noun: blue gate."""
    return f"{d.rng.choice(w.ADJECTIVES)} {d.rng.choice(w.NOUNS)}"


def generic(d: Draw) -> str:
    """A value of any sort: for facts whose attribute says nothing about what the value looks like."""
    kind = d.rng.randrange(12)
    if kind < 2:
        return digits(d)
    if kind < 5:
        return odd_word(d)
    if kind < 8:
        return plain_word(d)
    makers = (full_name, city, date, quantity, clock, phone)
    return makers[d.rng.randrange(len(makers))](d) if kind < 11 else f"{plain_word(d)} {plain_word(d)}"
