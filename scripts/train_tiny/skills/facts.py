"""Facts planted in a text, questions about them, and questions about what is not there."""

# ruff: noqa: E501
# Tables of wordings: a broken line would hide how they differ.

from dataclasses import dataclass

from .. import values as v
from .. import words as w
from ..split import Draw
from .turns import Turn
from .wording import phrased


@dataclass(frozen=True, slots=True)
class Fact:
    """subject `the code of the blue gate`, value `4821`; statement and answer are whole sentences."""

    entity: str
    attribute: str
    value: str
    statement: str
    answer: str
    questions: tuple[str, ...]
    # What is said when it is not there. It begins as the answer does: whether there is a value has to be known only where
    # the value would stand, and there the model is looking for it anyway. With "I do not know the code of ..." it had to
    # be known before the first word, and a run of 4,400 steps never learnt it: it made up every value.
    unknown: str
    asked: str  # the code of the blue gate

    def key(self) -> tuple[str, str]:
        return self.entity, self.attribute


MAKERS = {
    "code": v.digits, "number": v.digits, "password": v.odd_word, "key": v.odd_word, "colour": lambda d: d.rng.choice(w.COLOURS),
    "owner": v.full_name, "name": lambda d: v.plain_word(d).capitalize(), "price": lambda d: f"{v.digits(d, 1, 4)} euros",
    "weight": v.quantity, "height": v.quantity, "length": v.quantity, "age": lambda d: f"{d.rng.randint(1, 99)} years",
    "location": v.city, "address": lambda d: f"{d.rng.randint(1, 99)} {d.rng.choice(w.LAST_NAMES)} Street", "date": v.date,
    "deadline": v.date, "status": v.plain_word, "label": v.odd_word, "serial number": v.odd_word, "version": lambda d: f"{d.rng.randint(0, 9)}.{d.rng.randint(0, 20)}",
    "port": v.digits, "id": v.odd_word, "secret word": v.plain_word, "password hint": v.phrase, "manager": v.full_name, "phone number": v.phone,
    "email": v.email, "capacity": v.quantity, "temperature": lambda d: f"{d.rng.randint(-20, 90)} degrees", "pin": v.digits, "title": lambda d: v.phrase(d, 2, 4),
    "captain": v.full_name, "inventor": v.full_name, "opening time": v.clock, "speed": v.quantity, "motto": lambda d: v.phrase(d, 2, 4),
}  # fmt: skip

PERSON_FACTS = {
    # attribute: (value maker, statement, answer, questions), with {p} the person and {v} the value
    "city": (v.city, ("{p} lives in {v}.", "{p} has moved to {v}.", "The home of {p} is {v}."), "{p} lives in {v}.",
             ("Where does {p} live?", "In which city does {p} live?", "What city does {p} live in?", "Where is {p} living?", "Which town does {p} live in?", "What is the home city of {p}?")),
    "job": (lambda d: d.rng.choice(w.JOBS), ("{p} works as {v}.", "{p} is {v} by trade.", "The job of {p} is {v}."), "{p} works as {v}.",
            ("What does {p} do for a living?", "What is the job of {p}?", "What does {p} work as?", "What is {p}'s job?", "Which job does {p} have?", "What is {p}'s profession?")),
    "food": (lambda d: d.rng.choice((*w.FOODS, v.plain_word(d))), ("{p} likes {v} best.", "{p}'s favourite food is {v}.", "{p} loves to eat {v}."), "{p}'s favourite food is {v}.",
             ("What is {p}'s favourite food?", "What does {p} like to eat?", "Which food does {p} like best?", "What food does {p} love?", "What does {p} like best to eat?", "What is the favourite food of {p}?")),
    "colour": (lambda d: d.rng.choice(w.COLOURS), ("{p}'s favourite colour is {v}.", "{p} likes the colour {v}."), "{p}'s favourite colour is {v}.",
               ("What is {p}'s favourite colour?", "Which colour does {p} like?", "What colour does {p} like best?", "What is the favourite colour of {p}?", "{p}'s favourite color?", "Which is {p}'s favorite color?")),
    "phone": (v.phone, ("{p} can be reached at {v}.", "{p}'s phone number is {v}.", "The phone number of {p} is {v}."), "{p}'s phone number is {v}.",
              ("What is {p}'s phone number?", "How can I call {p}?", "Which number does {p} have?", "What is the phone number of {p}?", "What number can I reach {p} at?", "Give me {p}'s phone number.")),
    "pet": (lambda d: v.plain_word(d).capitalize(), ("{p}'s {pet} is called {v}.", "{p} has a {pet} named {v}.", "The {pet} of {p} is called {v}."), "{p}'s {pet} is called {v}.",
            ("What is {p}'s {pet} called?", "What is the name of {p}'s {pet}?", "How is {p}'s {pet} called?", "What is the {pet} of {p} called?", "Which name does {p}'s {pet} have?", "What's {p}'s {pet}'s name?")),
    "birthday": (v.date, ("{p} was born on {v}.", "{p}'s birthday is {v}.", "The birthday of {p} is {v}."), "{p}'s birthday is {v}.",
                 ("When is {p}'s birthday?", "When was {p} born?", "What is {p}'s birthday?", "On which day was {p} born?", "What date is {p}'s birthday?", "What is the birthday of {p}?")),
    "age": (lambda d: str(d.rng.randint(2, 99)), ("{p} is {v} years old.", "{p} has turned {v} years."), "{p} is {v} years old.",
            ("How old is {p}?", "What is {p}'s age?", "What age is {p}?", "How many years old is {p}?", "What is the age of {p}?", "Tell me how old {p} is.")),
}  # fmt: skip

UNKNOWN = "something that I do not know"
UNKNOWN_PERSON = {
    "city": "{p} lives in a place that I do not know.",
    "age": "{p} is of an age that I do not know.",
}

STATEMENTS = (
    "The {a} of the {e} is {v}.",
    "The {e}'s {a} is {v}.",
    "Remember that the {a} of the {e} is {v}.",
    "Note: the {a} of the {e} is {v}.",
    "The {e} has the {a} {v}.",
    "{v} is the {a} of the {e}.",
    "As the {a} of the {e} they chose {v}.",
    "Important: the {e} has {v} as its {a}.",
    "For the {e}, the {a} is {v}.",
    "It is known that the {a} of the {e} is {v}.",
    "{e} {a}: {v}.",
    "The {a} of the {e} was set to {v}.",
    "The {a} for the {e} is {v}.",
    "The {a} of the {e} reads {v}.",
    "The {e} got {v} as its {a}.",
    "They gave the {e} the {a} {v}.",
    "The {a} of the {e}: {v}.",
    "Today the {a} of the {e} is {v}.",
    "The new {a} of the {e} is {v}.",
    "The {a} that belongs to the {e} is {v}.",
    "Do not forget: the {a} of the {e} is {v}.",
    "You should know that the {e}'s {a} is {v}.",
    "I wrote down that the {a} of the {e} is {v}.",
    "The list says {v} for the {a} of the {e}.",
    "By the way, the {a} of the {e} is {v}.",
    "In the end the {e} had {v} as its {a}.",
)
QUESTIONS = (
    "What is the {a} of the {e}?",
    "What is the {e}'s {a}?",
    "Which {a} does the {e} have?",
    "Tell me the {a} of the {e}.",
    "What {a} does the {e} have?",
    "Do you know the {a} of the {e}?",
    "The {a} of the {e}?",
    "I need the {a} of the {e}.",
    "Can you tell me the {a} of the {e}?",
    "What was the {a} of the {e}?",
    "Please give me the {a} of the {e}.",
    "What's the {a} of the {e}?",
    "According to the text, what is the {a} of the {e}?",
    "Find the {a} of the {e}.",
    "Look up the {a} of the {e}.",
    "{e} {a}?",
    "For the {e}, what is the {a}?",
    "Which is the {a} of the {e}?",
    "Could you say what the {a} of the {e} is?",
    "What did the text say about the {a} of the {e}?",
    "What {a} was mentioned for the {e}?",
    "I forgot the {a} of the {e}. What is it?",
)
BARE_STATEMENTS = (
    "The {a} is {v}.",
    "Remember: the {a} is {v}.",
    "Note that the {a} is {v}.",
    "The special {a} is {v}.",
    "Keep in mind that the {a} is {v}.",
)
BARE_QUESTIONS = (
    "What is the {a}?", "What's the {a}?", "Tell me the {a}.", "Which {a} was mentioned?", "What was the {a}?", "Do you remember the {a}?",
    "Give me the {a}.", "Can you tell me the {a}?", "I need the {a}.", "What is the {a} in the text?",
)  # fmt: skip
BARE = (
    "secret word",
    "magic number",
    "password",
    "secret code",
    "access code",
    "pass phrase",
    "code word",
    "secret number",
    "wifi password",
    "key",
    "code",
    "special number",
    "launch code",
)


def entity(d: Draw) -> str:
    r = d.rng.random()
    if r < 0.75:
        return v.thing(d)
    if r < 0.82:
        return f"{d.rng.choice(w.NOUNS)} of {d.rng.choice(('the ' + d.rng.choice(w.NOUNS), v.first_name(d), v.city(d)))}"
    if r < 0.88:
        return d.rng.choice(w.NOUNS)
    if r < 0.94:
        return f"{v.plain_word(d)} {d.rng.choice(w.NOUNS)}"
    return f"{d.rng.choice(('project', 'server', 'room', 'robot'))} {d.rng.choice((d.rng.choice(w.PROJECTS), w.pseudo_word(d.rng).capitalize(), v.digits(d, 1, 3)))}"


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def thing_fact(d: Draw, about: str | None = None, attribute: str | None = None) -> Fact:
    e = about or entity(d)
    a = attribute or d.rng.choice((*MAKERS, "code", "code", "number", "password"))
    value = v.generic(d) if d.chance(0.35) or a not in MAKERS else MAKERS[a](d)
    form = d.form(STATEMENTS)
    # A value keeps its case, also at the start of a sentence: the answer has to copy it.
    statement = (
        form.format(a=a, e=e, v=value)
        if form.startswith("{v}")
        else _sentence(form.format(a=a, e=e, v=value))
    )
    questions = tuple(phrased(d, QUESTIONS).format(a=a, e=e) for _ in range(2))
    return Fact(
        e,
        a,
        value,
        statement,
        f"The {a} of the {e} is {value}.",
        questions,
        f"The {a} of the {e} is {UNKNOWN}.",
        f"the {a} of the {e}",
    )


def person_fact(d: Draw, about: str | None = None, attribute: str | None = None) -> Fact:
    p = about or (v.first_name(d) if d.chance(0.7) else v.full_name(d))
    a = attribute or d.rng.choice(tuple(PERSON_FACTS))
    make, statements, answer, questions = PERSON_FACTS[a]
    pet = d.rng.choice(w.ANIMALS) if a == "pet" else ""
    value = make(d)
    asked = tuple(phrased(d, questions).format(p=p, pet=pet) for _ in range(2))
    what = {"city": f"where {p} lives", "job": f"what {p} does", "food": f"{p}'s favourite food", "colour": f"{p}'s favourite colour",
            "phone": f"{p}'s phone number", "pet": f"what {p}'s {pet} is called", "birthday": f"{p}'s birthday", "age": f"how old {p} is"}[a]  # fmt: skip
    unknown = UNKNOWN_PERSON.get(a, answer).format(p=p, v=UNKNOWN, pet=pet)
    return Fact(p, a + pet, value, d.any(statements).format(p=p, v=value, pet=pet), answer.format(p=p, v=value, pet=pet), asked,
                unknown, what)  # fmt: skip


def bare_fact(d: Draw) -> Fact:
    a = d.rng.choice(BARE)
    value = v.generic(d)
    return Fact("", a, value, d.any(BARE_STATEMENTS).format(a=a, v=value), f"The {a} is {value}.",
                tuple(phrased(d, BARE_QUESTIONS).format(a=a) for _ in range(2)), f"The {a} is {UNKNOWN}.", f"the {a}")  # fmt: skip


def new_fact(d: Draw) -> Fact:
    r = d.rng.random()
    return thing_fact(d) if r < 0.68 else person_fact(d) if r < 0.92 else bare_fact(d)


def planted(d: Draw, count: int, twins: float = 0.45) -> list[Fact]:
    """Facts, a share of them twins of others: the same noun or attribute under another adjective, another attribute of the same."""
    facts: dict[tuple[str, str], Fact] = {}
    while len(facts) < count:
        fact = new_fact(d)
        previous = [f for f in facts.values() if f.entity]
        if previous and d.chance(twins):
            near = d.rng.choice(previous)
            is_thing = near.entity.lower() == near.entity
            if is_thing and d.chance(0.6):
                noun = near.entity.split(" ")[-1]
                fact = thing_fact(
                    d, f"{d.rng.choice(w.ADJECTIVES)} {noun}", near.attribute if d.chance(0.8) else None
                )
            elif is_thing:
                fact = thing_fact(d, near.entity)
            else:
                fact = person_fact(d, near.entity if d.chance(0.5) else None)
        facts.setdefault(fact.key(), fact)
    return list(facts.values())


def absent(d: Draw, facts: list[Fact]) -> Fact:
    """A fact that is like the planted ones but is none of them."""
    known = {f.key() for f in facts}
    while True:
        near = d.rng.choice(facts) if facts and d.chance(0.4) else None
        if near is None or not near.entity:
            fact = new_fact(d)
        elif near.entity.lower() != near.entity:
            fact = person_fact(d, near.entity if d.chance(0.5) else None)
        elif d.chance(0.5):
            noun = near.entity.split(" ")[-1]
            fact = thing_fact(d, f"{d.rng.choice(w.ADJECTIVES)} {noun}", near.attribute)
        else:
            fact = thing_fact(d, near.entity)
        if fact.key() not in known and (fact.entity or not any(not f.entity for f in facts)):
            return fact


def nowhere(d: Draw) -> Turn:
    """A question about a fact where there is no text at all."""
    return question(d, new_fact(d), there=False)


def question(d: Draw, fact: Fact, *, there: bool) -> Turn:
    answer = fact.answer if there else fact.unknown
    thought = (
        f"The user asks {'' if fact.asked.startswith(('where', 'what', 'how')) else 'for '}{fact.asked}."
    )
    return Turn(
        d.rng.choice(fact.questions),
        answer,
        thought,
        keys=[fact.value if there else "I do not know"],
    )


# A user tells something and asks for it later: (statement, acknowledgement, question, answer)
INLINE = (
    ("My name is {n}.", "Nice to meet you, {n}!", ("What is my name?", "Do you know my name?", "Who am I?", "What am I called?", "Say my name.", "Do you remember my name?"), "Your name is {n}.", "name"),
    ("I am {n}.", "Nice to meet you, {n}!", ("What is my name?", "What's my name?", "Who am I?", "Do you remember who I am?", "Tell me my name.", "How am I called?"), "Your name is {n}.", "name"),
    ("I live in {c}.", "{c} is a fine place.", ("Where do I live?", "In which city do I live?", "What city do I live in?", "Do you know where I live?", "Which town is mine?", "Where is my home?"), "You live in {c}.", "city"),
    ("My {t} is called {x}.", "{x} is a good name.", ("What is my {t} called?", "What is the name of my {t}?", "What's my {t}'s name?", "How is my {t} called?", "Do you know my {t}'s name?", "Which name has my {t}?"), "Your {t} is called {x}.", "pet"),
    ("My {a} is {v}.", "I will remember it.", ("What is my {a}?", "What's my {a}?", "Tell me my {a}.", "Do you remember my {a}?", "Which {a} do I have?", "I forgot my {a}."), "Your {a} is {v}.", "any"),
    ("I like {v}.", "Good to know.", ("What do I like?", "Do you know what I like?", "What was it that I like?", "Tell me what I like.", "Which thing do I like?", "What did I say I like?"), "You like {v}.", "any"),
    ("I am a {j} by trade.", "That is a good job.", ("What is my job?", "What do I do for a living?", "What do I work as?", "What's my job?", "Which job do I have?", "Do you know my job?"), "Your job is {j}.", "job"),
    ("I am {y} years old.", "Good to know.", ("How old am I?", "What is my age?", "What's my age?", "Do you know how old I am?", "Tell me my age.", "How many years old am I?"), "You are {y} years old.", "age"),
)  # fmt: skip


UNKNOWN_INLINE = {
    "city": "You live in a place that I do not know.",
    "age": "You are of an age that I do not know.",
}


def inline_pair(d: Draw) -> tuple[Turn, Turn]:
    statement, said, questions, answer, kind = d.rng.choice(INLINE)
    slots = {
        "n": v.first_name(d), "c": v.city(d), "t": d.rng.choice((*w.ANIMALS, "boat", "car", "sister", "brother", "friend", "robot")),
        "x": v.plain_word(d).capitalize(), "a": d.rng.choice(("password", "code", "favourite colour", "lucky number", "phone number", "email", "flight", "order number", "favourite word")),
        "v": v.generic(d), "j": d.rng.choice(w.JOBS), "y": str(d.rng.randint(5, 99)),
    }  # fmt: skip
    if kind == "name":
        slots["key"] = slots["n"]
    lead = d.any(
        ("", "", "", "Hi, ", "Hello, ", "By the way, ", "Remember this: ", "Hey! ", "Please remember: ")
    )
    told = statement.format(**slots)
    first = Turn(lead + (told[0].lower() + told[1:] if lead.endswith(", ") and not told.startswith("I ") else told), said.format(**slots),
                 "The user tells me something about themselves.")  # fmt: skip
    key = {
        "name": slots["n"],
        "city": slots["c"],
        "pet": slots["x"],
        "any": slots["v"],
        "job": slots["j"],
        "age": slots["y"],
    }[kind]
    second = Turn(
        phrased(d, questions).format(**slots),
        answer.format(**slots),
        "The user asks about something they told me.",
        keys=[key],
    )
    return first, second


def inline_unknown(d: Draw) -> Turn:
    """The same questions where nothing was told."""
    _, _, questions, answer, kind = d.rng.choice(INLINE)
    slots = {
        "t": d.rng.choice(w.ANIMALS),
        "a": d.rng.choice(("password", "code", "favourite colour", "lucky number", "phone number")),
        **dict.fromkeys("ncxvjy", UNKNOWN),
    }
    told = UNKNOWN_INLINE.get(kind, answer).format(**slots)
    return Turn(phrased(d, questions).format(**slots), told, "The user asks about something they told me.",
                keys=["I do not know"])  # fmt: skip
