"""Values for JSON whose keys the model did not choose: a grammar gives them, as where a client sends a schema."""

# ruff: noqa: E501
# Tables of wordings: a broken line would hide how they differ.

import json
from collections.abc import Callable
from dataclasses import dataclass

from .. import values as v
from .. import words as w
from ..split import Draw
from . import talk
from .turns import Turn
from .wording import phrased


@dataclass(frozen=True, slots=True)
class Property:
    """One thing that a text can say of somebody or something: keys that people give it, and sentences with {s} and {v}."""

    keys: tuple[str, ...]
    make: Callable[[Draw], object]
    sentences: tuple[str, ...]


def _count(low: int, high: int) -> Callable[[Draw], int]:
    return lambda d: d.rng.randint(low, high)


PERSON = (
    Property(("age", "years", "age_years", "how_old", "years_old", "person_age"), _count(1, 99), ("{s} is {v} years old.", "{s} is {v}.", "The age of {s} is {v}.", "{s} has turned {v}.", "{s}, aged {v}.", "{s} is now {v} years of age.")),
    Property(("city", "town", "home", "location", "residence", "lives_in", "home_city", "place"), v.city, ("{s} lives in {v}.", "{s} comes from {v}.", "{s} has moved to {v}.", "{s} is at home in {v}.", "{s} has a flat in {v}.", "{s} is from {v}.")),
    Property(("job", "profession", "occupation", "work", "role", "job_title", "position"), lambda d: d.rng.choice(w.JOBS), ("{s} is a {v}.", "{s} works as a {v}.", "{s} is a {v} by trade.", "{s} earns money as a {v}.", "The job of {s} is {v}.", "{s} was hired as a {v}.")),
    Property(("email", "mail", "email_address", "contact_email", "e_mail", "address"), v.email, ("{s} can be reached at {v}.", "The email of {s} is {v}.", "Write to {s} at {v}.", "{s} reads mail at {v}.", "Mail for {s}: {v}.", "{s} has the address {v}.")),
    Property(("phone", "phone_number", "telephone", "number", "mobile", "tel"), v.phone, ("The number of {s} is {v}.", "Call {s} at {v}.", "{s} has the phone number {v}.", "{s} answers at {v}.", "Phone of {s}: {v}.", "{s} can be called at {v}.")),
    Property(("birthday", "born", "date_of_birth", "birth_date", "birthdate", "dob"), v.date, ("{s} was born on {v}.", "The birthday of {s} is {v}.", "{s} has birthday on {v}.", "Birthday of {s}: {v}.", "{s} came into the world on {v}.", "{s} celebrates on {v}.")),
    Property(("colour", "color", "favourite_colour", "favorite_color", "fav_color", "likes_colour"), lambda d: d.rng.choice(w.COLOURS), ("{s} likes {v}.", "The favourite colour of {s} is {v}.", "{s} wears only {v}.", "{s} paints everything {v}.", "{s}'s favorite color is {v}.", "{s} prefers {v}.")),
    Property(("food", "favourite_food", "favorite_food", "dish", "eats", "meal"), lambda d: d.rng.choice(w.FOODS), ("{s} eats {v}.", "{s} loves {v}.", "The favourite food of {s} is {v}.", "{s} always orders {v}.", "{s} cooks {v}.", "{s}'s favorite food is {v}.")),
    Property(("language", "speaks", "mother_tongue", "spoken_language", "native_language", "lang"), lambda d: d.rng.choice(w.LANGUAGES), ("{s} speaks {v}.", "{s} talks in {v}.", "The language of {s} is {v}.", "{s} learnt {v}.", "{s} understands {v}.", "{s} teaches {v}.")),
    Property(("country", "nation", "nationality", "homeland", "from_country", "country_of_birth"), lambda d: d.rng.choice(w.COUNTRIES), ("{s} lives in the country {v}.", "{s} was born in {v}.", "{s} has a passport of {v}.", "{s} is a citizen of {v}.", "The country of {s} is {v}.", "{s} emigrated to {v}.")),
    Property(("hobbies", "interests", "likes", "activities", "tags", "skills"), lambda d: d.rng.sample(w.VERBS, d.rng.randint(1, 3)), ("{s} likes to {v}.", "The hobbies of {s} are {v}.", "{s} can {v}.", "In the evening {s} likes to {v}.", "Interests of {s}: {v}.", "{s} is good at: {v}.")),
)  # fmt: skip
THING = (
    Property(("price", "cost", "amount", "price_eur", "total", "unit_price"), _count(1, 9999), ("{s} costs {v} euros.", "The price of {s} is {v}.", "{s} is sold for {v} dollars.", "They want {v} for {s}.", "{s}: {v} euros.", "One pays {v} for {s}.")),
    Property(("colour", "color", "paint", "shade", "main_color", "finish"), lambda d: d.rng.choice(w.COLOURS), ("{s} is {v}.", "{s} comes in {v}.", "The colour of {s} is {v}.", "{s} was painted {v}.", "It is {v}.", "{s} is available in {v}.")),
    Property(("weight", "weight_kg", "mass", "kg", "heavy", "load"), _count(1, 500), ("{s} weighs {v} kg.", "It weighs {v} kg.", "The weight of {s} is {v} kg.", "{s} has {v} kg.", "{s}: {v} kg.", "One lifts {v} kg with {s}.")),
    Property(("quantity", "count", "stock", "number", "units", "in_stock"), _count(1, 999), ("There are {v} of {s}.", "We have {v} of {s} in stock.", "{v} pieces of {s} are left.", "The store holds {v} of {s}.", "Order {v} of {s}.", "{v} units of {s} were delivered.")),
    Property(("owner", "belongs_to", "holder", "customer", "buyer", "person"), v.full_name, ("{s} belongs to {v}.", "The owner of {s} is {v}.", "{v} owns {s}.", "{v} has bought {s}.", "{s} was sold to {v}.", "{v} is the owner.")),
    Property(("code", "id", "serial", "sku", "article", "reference"), v.odd_word, ("The code of {s} is {v}.", "{s} has the id {v}.", "Its code is {v}.", "Look for {v} to find {s}.", "{s} is listed as {v}.", "Serial of {s}: {v}.")),
    Property(("place", "location", "where", "store", "city", "warehouse"), v.city, ("{s} is in {v}.", "{s} stands in {v}.", "One can see {s} in {v}.", "{s} was sent to {v}.", "It is kept in {v}.", "{s} comes from {v}.")),
    Property(("date", "day", "delivery", "due", "bought_on", "delivery_date"), v.date, ("{s} arrives on {v}.", "It was bought on {v}.", "{s} was made on {v}.", "The date is {v}.", "{s} is due on {v}.", "On {v} {s} was delivered.")),
    Property(("available", "is_available", "active", "open", "working", "enabled"), lambda d: d.chance(0.5), ("{s} is {v}.", "At the moment {s} is {v}.", "It is {v}.", "{s} seems to be {v}.", "Today {s} is {v}.", "They say that {s} is {v}.")),
    Property(("parts", "materials", "contents", "ingredients", "items", "colors"), lambda d: d.rng.sample(w.GROCERIES, d.rng.randint(1, 4)), ("{s} holds {v}.", "It consists of {v}.", "In {s} there are {v}.", "{s} contains {v}.", "{s} is made of {v}.", "Parts of {s}: {v}.")),
)  # fmt: skip
NAMES = {True: ("name", "full_name", "person", "first_name", "who", "user"), False: ("name", "item", "product", "thing", "title", "object")}  # fmt: skip
# Keys of what no text here says: for these, and for every key where there is no text at all.
OTHER_KEYS = (
    "setup", "punchline", "answer", "summary", "reason", "explanation", "result", "rating", "score", "comment", "genre", "year", "director", "steps", "confidence", "category", "sentiment", "description", "title", "author",
    "topic", "text", "query", "url", "temperature", "humidity", "isbn", "publisher", "winner", "capital", "population", "street", "zip", "iban", "status", "level", "message", "response", "value", "notes", "feature", "opinion",
)  # fmt: skip
UNKNOWN = "unknown"
ASKS = (
    "{t}", "{t}", "{t}", "Extract the data: {t}", "Extract the information from this text: {t}", "{t} Fill in the form.", "{t}\nWhat do we know?", "Read this and give me the fields. {t}", "Who or what is this? {t}",
    "Parse this: {t}", "Turn this into a record: {t}", "{t}\n\nReturn the data as JSON.", "Get the details from: {t}", "Give me an object for this: {t}", "Text: {t}", "Which data does this hold? {t}", "{t} Please extract it.",
    "Structure this: {t}", "Extract an object: {t}", "Fill the fields with what this says: {t}", "{t}\nAnswer in JSON.", "Record: {t}", "Make a database entry of this: {t}", "From the following text, extract the values.\n{t}",
)  # fmt: skip
JOKES = ("Tell me a joke about {a}s.", "Tell me a joke.", "Review the film {b}.", "Recommend a book about {b}.", "Describe {b}.", "Plan a trip to {c}.", "Rate this: {b}", "What is the capital of {k}?", "Write a recipe for {f}.", "Tell me about {c}.")  # fmt: skip


def _said(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(value[:-1]) + " and " + value[-1] if len(value) > 1 else value[0]
    return str(value)


def _nothing(value: object) -> object:
    """What stands for a value of this type that is not there."""
    return UNKNOWN if isinstance(value, str) else type(value)()


def filled(d: Draw) -> tuple[str, list[tuple[str, object]]]:
    """A message, and the keys and values of its JSON in the order in which they are asked for."""
    if d.chance(0.2):  # nothing to take values from
        slots = {"a": d.rng.choice(w.ANIMALS), "b": v.phrase(d, 1, 3), "c": v.city(d), "k": d.rng.choice(w.COUNTRIES), "f": d.rng.choice(w.FOODS)}  # fmt: skip
        text = d.any(JOKES).format(**slots) if d.chance(0.6) else talk.unknown(d).user
        keys = d.rng.sample(OTHER_KEYS, d.rng.randint(1, 4))
        return text, [(key, _nothing(d.rng.choice(("", "", "", 1, 1, True, [""])))) for key in keys]
    person = d.chance(0.55)
    properties = PERSON if person else THING
    subject = (v.first_name(d) if d.chance(0.5) else v.full_name(d)) if person else v.thing(d)
    chosen = d.rng.sample(properties, d.rng.choice((1, 2, 2, 3, 3, 4)))
    said, values = [], [(d.wording(NAMES[person]), subject)]
    for p in chosen:
        value = p.make(d)
        key = d.wording(p.keys)
        text = _said(value)
        if isinstance(value, bool):
            text = key.replace("is_", "") if value else "not " + key.replace("is_", "")
        sentence = d.any(p.sentences).format(s=subject if person else "the " + subject, v=text)
        said.append(sentence[0].upper() + sentence[1:] if not sentence.startswith(text) else sentence)
        values.append((key, value))
    if not any(subject in s for s in said):
        said.insert(0, f"This is {subject}." if person else f"This is the {subject}.")
    if d.chance(0.3):  # what the text does not say
        other = d.rng.choice([p for p in properties if p not in chosen])
        values.append((d.wording(other.keys), _nothing(other.make(d))))
    if d.chance(0.15):
        values.append((d.rng.choice(OTHER_KEYS), UNKNOWN))
    if len(values) > 1 and d.chance(0.3):
        del values[0]
    if d.chance(0.35):
        d.rng.shuffle(values)
    if d.chance(0.25):
        d.rng.shuffle(said)
    return phrased(d, ASKS).format(t=" ".join(said)), list(dict(values).items())


def pairs(values: list[tuple[str, object]]) -> list[tuple[str, str]]:
    """The JSON of `values`: keys and marks, which are the grammar's, each before the model's value with its end."""
    out: list[tuple[str, str]] = []
    before = "{"
    for i, (key, value) in enumerate(values):
        text = json.dumps(value, ensure_ascii=False)
        lead = before + json.dumps(key) + ": "
        if isinstance(value, str):  # the quote that opens it is given, too
            lead, text = lead + '"', text[1:]
        before = ", "
        out.append((lead, text + ("}" if i + 1 == len(values) else "")))
    return out


def values(d: Draw) -> Turn:
    user, wanted = filled(d)
    given = [piece for lead, value in pairs(wanted) for piece in ((lead, False), (value, True))]
    answer = "".join(text for text, _ in given)
    return Turn(user, answer, "The user wants a JSON object.", keys=[answer], given=given)
