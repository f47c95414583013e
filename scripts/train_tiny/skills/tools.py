"""Function schemas, requests that one of them fits, requests that none fits, and answers from results."""

# ruff: noqa: E501
# Tables of functions and wordings: a broken line would hide how they differ.

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from .. import values as v
from .. import words as w
from ..split import Draw, is_held_out
from .turns import Call, Turn
from .wording import phrased

Maker = Callable[[Draw], object]


@dataclass(frozen=True, slots=True)
class Kind:
    """names and parameter spellings to choose from; asks use {parameter} slots; result and its answer may use {r}."""

    names: tuple[str, ...]
    description: str
    parameters: dict[str, tuple[tuple[str, ...], Maker]]
    asks: tuple[str, ...]
    answer: str = "Done."
    result: Maker | None = None


def _int(low: int, high: int) -> Maker:
    return lambda d: d.rng.randint(low, high)


def _of(options: list[str]) -> Maker:
    return lambda d: d.rng.choice(options)


def _text(d: Draw) -> str:
    return (
        v.phrase(d, 2, 6)
        if d.chance(0.6)
        else d.rng.choice(
            (
                "I am late",
                "see you at the station",
                "the meeting is over",
                "call me back",
                "dinner is ready",
                "thank you for the book",
            )
        )
    )


def _topic(d: Draw) -> str:
    return d.rng.choice(
        (
            v.thing(d),
            d.rng.choice(w.ABSTRACT),
            v.phrase(d, 1, 3),
            f"{d.rng.choice(w.ANIMALS)} {d.rng.choice(w.ABSTRACT)}",
        )
    )


CITY = (("city", "location", "place", "town"), v.city)
TEXT = (("text", "message", "content", "body"), _text)
QUERY = (("query", "q", "search", "topic"), _topic)
PATH = (("path", "file", "filename", "file_path"), v.path)
PERSON = (("name", "contact", "person", "to"), v.first_name)
TIME = (("time", "at", "when"), v.clock)

KINDS = (
    Kind(("get_weather", "weather", "fetch_weather", "weather_report", "current_weather", "get_current_weather", "getWeather", "lookup_weather"), "Get the weather in a city", {"a": CITY},
         ("Will it rain in {a}?", "Is it sunny in {a}?", "{a} weather please", "I am going to {a}, how is the weather?", "Check the weather for {a}.", "Give me the forecast for {a}.", "Do I need a coat in {a}?", "How hot is it in {a} now?", "What is the weather in {a}?", "How is the weather in {a}?", "Weather in {a}?", "Is it raining in {a}?", "Tell me the weather in {a}.", "What's the weather like in {a}?", "weather {a}", "Do I need an umbrella in {a}?", "How warm is it in {a}?", "Is it cold in {a} today?"),
         "The weather in {a} is {r}.", lambda d: d.rng.choice(("sunny", "rainy", "cloudy", "windy", "snowy")) + f", {d.rng.randint(-10, 35)} degrees"),
    Kind(("get_time", "current_time", "local_time", "time_in", "getTime", "clock_time", "world_clock"), "Get the local time in a city", {"a": CITY},
         ("What's the time in {a}?", "Is it late in {a}?", "Give me the time in {a}.", "I need the local time of {a}.", "Can you tell me the time in {a}?", "{a} time please", "What hour is it in {a}?", "Check the clock in {a}.", "What time is it in {a}?", "Time in {a}?", "How late is it in {a}?", "Tell me the time in {a}.", "What is the local time in {a}?", "Which time is it now in {a}?", "current time {a}"), "It is {r} in {a}.", v.clock),
    Kind(("search_web", "web_search", "search", "google_search", "find_online", "searchWeb", "internet_search"), "Search the web", {"a": QUERY},
         ("Find {a} online.", "Search the internet for {a}.", "Do a search on {a}.", "I want to find {a} on the web.", "Please look up {a} online.", "Web search: {a}", "See what the web says about {a}.", "Run a search for {a}.", "Search for {a}.", "Search the web for {a}.", "Look up {a}.", "Find something about {a}.", "Google {a}.", "Can you search for {a}?", "Look for {a} on the web.", "search {a}"), "I found this: {r}", lambda d: v.phrase(d, 3, 7)),
    Kind(("send_email", "email", "write_email", "mail_send", "sendEmail", "compose_email"), "Send an email", {"a": (("to", "recipient", "address"), v.email), "b": (("subject", "title"), lambda d: v.phrase(d, 1, 3)), "c": TEXT},
         ("Send a mail to {a}. Subject: {b}. Text: {c}", "To {a}, subject {b}: {c}", 'Email to {a} titled "{b}": "{c}"', "Write an email to {a}, subject {b}, that says {c}", 'Please mail {a}: subject "{b}", body "{c}".', "I want to email {a} about {b}: {c}", 'Compose a mail for {a} with title "{b}" and text "{c}".', "Send an email to {a} with subject {b}: {c}", 'Email {a}, subject "{b}", text "{c}".', 'Write a mail to {a} about "{b}" saying "{c}".', "Mail {a} with the subject {b} and the text {c}", 'Send {a} the mail "{b}": "{c}"', 'Please email "{c}" to {a} with subject "{b}".'), "The email was sent."),
    Kind(("send_message", "text_contact", "message", "send_sms", "sendMessage", "chat_send", "notify"), "Send a message to a contact", {"a": PERSON, "b": TEXT},
         ('Please tell {a} "{b}".', "Send a text to {a}: {b}", 'Send {a} this message: "{b}"', "A message for {a}: {b}", 'Can you text {a} "{b}"?', "Inform {a}: {b}", 'Write {a} a message: "{b}"', "Say to {a}: {b}", 'Send a message to {a}: "{b}"', "Text {a} that {b}", "Tell {a}: {b}", 'Message {a} "{b}".', "Write to {a}: {b}", 'Send "{b}" to {a}.', "Let {a} know: {b}", "Send {a} the message {b}"), "The message was sent."),
    Kind(("set_alarm", "alarm", "create_alarm", "add_alarm", "setAlarm", "wake_up"), "Set an alarm", {"a": TIME},
         ("Alarm for {a} please.", "Let me sleep until {a}.", "Make an alarm for {a}.", "Ring me awake at {a}.", "I have to be up at {a}.", "Get me out of bed at {a}.", "Set my alarm: {a}", "I want an alarm at {a}.", "Set an alarm for {a}.", "Wake me up at {a}.", "Alarm at {a}.", "I need to get up at {a}.", "Please wake me at {a}.", "Set the alarm to {a}.", "Can you set an alarm for {a}?", "alarm {a}"), "The alarm is set for {a}."),
    Kind(("set_timer", "timer", "start_timer", "countdown", "create_timer", "startTimer"), "Start a timer", {"a": (("minutes", "duration_minutes", "mins"), _int(1, 120))},
         ("Timer for {a} minutes please.", "I need a timer of {a} minutes.", "Let me know when {a} minutes are over.", "Start counting down {a} minutes.", "Make a timer, {a} minutes.", "Tell me after {a} minutes.", "Give me {a} minutes on the timer.", "Set a timer for {a} minutes.", "Start a timer of {a} minutes.", "Timer {a} minutes.", "{a} minutes timer please.", "Remind me in {a} minutes.", "Count down {a} minutes.", "Can you time {a} minutes?"), "The timer runs for {a} minutes."),
    Kind(("create_event", "add_event", "schedule_meeting", "calendar_add", "createEvent", "new_appointment", "book_meeting"), "Add an event to the calendar", {"a": (("title", "event", "what"), lambda d: v.phrase(d, 1, 3)), "b": (("date", "day"), v.date), "c": TIME},
         ("Book {a} on {b} at {c} in my calendar.", 'Calendar: "{a}", {b}, {c}.', "I have {a} on {b} at {c}, put it in the calendar.", 'Add the event "{a}" on {b} at {c}.', "Make an appointment {a} for {b} at {c}.", 'Please enter "{a}" for {b} at {c}.', "Schedule {a} on {b}, {c}.", "Add {a} to my calendar on {b} at {c}.", 'Schedule "{a}" for {b} at {c}.', "Create an event {a} on {b} at {c}.", "Put {a} in the calendar for {b}, {c}.", 'New appointment "{a}" on {b} at {c}.', "Plan {a} on {b} at {c}."), "The event was added."),
    Kind(("add_note", "save_note", "create_note", "take_note", "note", "remember", "addNote"), "Save a note", {"a": TEXT},
         ("Keep a note: {a}", "Store the note: {a}", "New note: {a}", 'Make a note that says "{a}".', "Remember this for me: {a}", 'Put "{a}" into my notes.', "I want to note: {a}", "Jot down: {a}", "Take a note: {a}", 'Note "{a}".', "Save this note: {a}", "Write down: {a}", "Add a note that says {a}", "Make a note: {a}", "Please note: {a}"), "The note was saved."),
    Kind(("read_file", "open_file", "cat_file", "load_file", "readFile", "file_read", "view_file", "get_file"), "Read a file", {"a": PATH},
         ("Let me see {a}.", "Show the file {a}.", "Give me the text of {a}.", "Please open {a} for me.", "I want to read {a}.", "Load the file {a}.", "What's inside {a}?", "Display {a}.", "Read {a}.", "Read the file {a}.", "Open {a}.", "Show me {a}.", "What is in {a}?", "Can you read {a}?", "Print the file {a}.", "Show the content of {a}.", "What does {a} say?"), "The file says: {r}", lambda d: v.phrase(d, 3, 8)),
    Kind(("write_file", "save_file", "create_file", "file_write", "writeFile", "store_file", "put_file"), "Write text to a file", {"a": PATH, "b": TEXT},
         ('Make {a} with the content "{b}".', "Save this text in {a}: {b}", 'Please write "{b}" into {a}.', "Into {a}, write: {b}", 'Create a file {a} containing "{b}".', 'The file {a} should say "{b}".', "New file {a}: {b}", 'Write "{b}" to {a}.', "Write {b} to the file {a}", "Save {b} in {a}", 'Create {a} with the text "{b}".', 'Put "{b}" into {a}.', 'Store "{b}" in the file {a}.', 'Make a file {a} that contains "{b}".'), "The file was written."),
    Kind(("list_files", "ls", "list_directory", "list_folder", "listFiles", "dir", "show_folder"), "List the files of a folder", {"a": (("folder", "path", "directory"), lambda d: d.rng.choice(("/", "", "/home/")) + d.rng.choice((*w.NOUNS, w.pseudo_word(d.rng))))},
         ("Which files are in {a}?", "Show me what {a} contains.", "Give me the files of {a}.", "List the folder {a}.", "Can you list {a}?", "What is stored in {a}?", "Look into the folder {a}.", "List the files in {a}.", "What files are in {a}?", "Show the folder {a}.", "Which files does {a} have?", "ls {a}", "What is in the folder {a}?", "List {a}."), "The files are {r}.", lambda d: ", ".join(v.path(d) for _ in range(d.rng.randint(1, 3)))),
    Kind(("run_command", "shell", "execute", "bash", "exec_command", "runCommand", "terminal"), "Run a shell command", {"a": (("command", "cmd", "script"), lambda d: d.rng.choice(("ls", "cat", "grep", "python", "make", "git")) + " " + d.rng.choice((v.path(d), v.plain_word(d), "-l " + v.plain_word(d))))},
         ("Please execute {a}", "Run this: {a}", "Start the command `{a}`.", "Shell: {a}", "Type `{a}` into the terminal.", "Can you run `{a}`?", "Do `{a}` for me.", "Run {a}", "Run the command {a}", "Execute {a}", "Please run `{a}`.", "Run `{a}` in the shell.", "Execute the command `{a}`.", "In the terminal, run {a}"), "The output is: {r}", lambda d: v.phrase(d, 2, 6)),
    Kind(("translate", "translate_text", "translation", "to_language", "translateText", "translator"), "Translate text", {"a": TEXT, "b": (("language", "target", "target_language", "to"), _of(w.LANGUAGES))},
         ("Translate this to {b}: {a}", 'Put "{a}" into {b}.', 'Please translate "{a}" to {b}.', 'What does "{a}" become in {b}?', 'In {b}, how do I say "{a}"?', 'Give me "{a}" in {b}.', 'Turn "{a}" into {b}.', 'Translate "{a}" to {b}.', 'Translate "{a}" into {b}.', 'How do you say "{a}" in {b}?', 'What is "{a}" in {b}?', 'Say "{a}" in {b}.', 'I need "{a}" in {b}.', '"{a}" in {b} please'), "In {b} it is: {r}", lambda d: v.phrase(d, 2, 5)),
    Kind(("convert_currency", "currency", "exchange", "convert_money", "convertCurrency", "fx_convert"), "Convert money between currencies", {"a": (("amount", "value", "sum"), _int(1, 9999)), "b": (("from", "source", "from_currency"), _of(["EUR", "USD", "GBP", "JPY", "CHF", "NOK"])), "c": (("to", "target", "to_currency"), _of(["SEK", "PLN", "CAD", "AUD", "INR", "BRL"]))},
         ("What is {a} {b} in {c}?", "I have {a} {b}, how much {c} is that?", "Turn {a} {b} into {c}.", "Give me {a} {b} in {c}.", "Please convert {a} {b} into {c}.", "Currency: {a} {b} to {c}", "Convert {a} {b} to {c}.", "How much is {a} {b} in {c}?", "{a} {b} in {c}?", "Change {a} {b} into {c}.", "What are {a} {b} in {c}?", "Exchange {a} {b} to {c}."), "{a} {b} are {r} {c}.", lambda d: v.digits(d, 2, 5)),
    Kind(("get_stock_price", "stock_price", "stock", "quote", "getStockPrice", "share_price", "ticker"), "Get the price of a stock", {"a": (("symbol", "ticker", "stock"), lambda d: v.letters(d, d.rng.randint(3, 4)))},
         ("Tell me the price of {a}.", "What does {a} stock cost?", "Stock price {a}", "How much is {a} stock worth?", "Give me the share price of {a}.", "What is {a} trading at?", "Is {a} stock up?", "What is the stock price of {a}?", "How is {a} doing on the market?", "Price of {a} stock?", "Get the quote for {a}.", "How much is a share of {a}?", "Check the stock {a}.", "{a} share price?"), "{a} is at {r} dollars.", lambda d: v.digits(d, 2, 4)),
    Kind(("play_music", "play_song", "play", "music", "playMusic", "start_song", "spotify_play"), "Play a song", {"a": (("song", "title", "track"), lambda d: v.phrase(d, 1, 4))},
         ("I would like to listen to {a}.", 'Please play "{a}".', "Put {a} on please.", "Let me hear {a}.", 'Play the track "{a}".', "Music: {a}", 'Could you play the song "{a}"?', "Play {a}.", 'Play the song "{a}".', "Put on {a}.", "I want to hear {a}.", 'Start "{a}".', "Play me {a}.", "Can you play {a}?", "Listen to {a}."), "Playing {a}."),
    Kind(("call_contact", "phone_call", "call", "dial", "callContact", "make_call"), "Call someone", {"a": PERSON},
         ("Give {a} a call.", "Get {a} on the phone.", "Start a call with {a}.", "Make a call to {a}.", "Connect me with {a}.", "I need to phone {a}.", "Telephone {a} now.", "Call {a}.", "Phone {a}.", "Ring {a}.", "Can you call {a}?", "Please call {a} for me.", "I want to talk to {a} on the phone.", "Dial {a}."), "Calling {a}."),
    Kind(("book_table", "reserve_table", "restaurant_booking", "make_reservation", "bookTable", "reserve"), "Book a table in a restaurant", {"a": (("restaurant", "place", "name"), lambda d: v.plain_word(d).capitalize()), "b": (("people", "guests", "party_size"), _int(1, 12)), "c": TIME},
         ("Book {a} for {b} people at {c}.", "We are {b} and want to eat at {a} at {c}.", "A table at {a} at {c} for {b} please.", "Please reserve at {a} for {b} guests, {c}.", "Can you get a table for {b} at {a} at {c}?", "Reservation at {a} for {b} at {c}.", "Book a table at {a} for {b} people at {c}.", "Reserve a table for {b} at {a} at {c}.", "Table for {b} at {a}, {c}.", "I want to eat at {a} with {b} people at {c}.", "Get us a table at {a} for {b} at {c}.", "Make a reservation at {a}, {b} people, {c}."), "The table is booked."),
    Kind(("find_flights", "search_flights", "flights", "flight_search", "findFlights", "get_flights"), "Find flights between cities", {"a": (("from", "origin", "source"), v.city), "b": (("to", "destination", "target"), v.city)},
         ("Fly me from {a} to {b}.", "Which flights go from {a} to {b}?", "I need a flight from {a} to {b}.", "Look for flights from {a} to {b}.", "Are there planes from {a} to {b}?", "Get me flights from {a} to {b}.", "Find flights from {a} to {b}.", "Flights from {a} to {b}?", "I want to fly from {a} to {b}.", "Is there a flight from {a} to {b}?", "Show flights {a} to {b}.", "How can I fly from {a} to {b}?", "Search a flight from {a} to {b}."), "There is a flight at {r}.", v.clock),
    Kind(("get_news", "news", "latest_news", "headlines", "getNews", "news_search"), "Get the latest news about a topic", {"a": (("topic", "subject", "about"), _topic)},
         ("What happened with {a}?", "Give me the news on {a}.", "Latest on {a}?", "Read me the news about {a}.", "I want news about {a}.", "Are there headlines about {a}?", "news {a}", "What is the news about {a}?", "News about {a}?", "Any news on {a}?", "Show me the latest news about {a}.", "What is new about {a}?", "Get headlines about {a}.", "Tell me the news on {a}."), "The news: {r}.", lambda d: v.phrase(d, 3, 7)),
    Kind(("calculate", "calculator", "compute", "math", "eval_expression", "calc"), "Calculate an expression", {"a": (("expression", "formula", "input"), lambda d: f"{v.digits(d, 1, 3)} {d.rng.choice('+-*/')} {v.digits(d, 1, 3)}")},
         ("Work out {a}.", "What do I get for {a}?", "Tell me {a}.", "Do the maths: {a}", "Please compute {a}.", "Result of {a}?", "Evaluate {a}.", "What is {a}?", "Calculate {a}.", "Compute {a}.", "How much is {a}?", "{a}?", "Solve {a}.", "Can you calculate {a}?"), "The result is {r}.", lambda d: v.digits(d, 1, 5)),
    Kind(("turn_on", "switch_on", "device_on", "enable_device", "turnOn", "power_on"), "Turn on a device", {"a": (("device", "name", "what"), lambda d: d.rng.choice((v.thing(d), f"{d.rng.choice(w.PLACES)} light", d.rng.choice(w.NOUNS))))},
         ("Please turn on the {a}.", "The {a} should be on.", "Make the {a} go on.", "Power on the {a}.", "Could you switch the {a} on?", "Let the {a} run.", "Get the {a} going.", "Turn on the {a}.", "Switch on the {a}.", "Switch the {a} on.", "Turn the {a} on please.", "Can you turn on the {a}?", "I want the {a} on.", "Start the {a}."), "The {a} is on."),
    Kind(("turn_off", "switch_off", "device_off", "disable_device", "turnOff", "power_off"), "Turn off a device", {"a": (("device", "name", "what"), lambda d: d.rng.choice((v.thing(d), f"{d.rng.choice(w.PLACES)} light", d.rng.choice(w.NOUNS))))},
         ("Please turn off the {a}.", "The {a} should be off.", "Make the {a} go off.", "Power off the {a}.", "Could you switch the {a} off?", "Shut the {a} off.", "I want the {a} off.", "Turn off the {a}.", "Switch off the {a}.", "Switch the {a} off.", "Turn the {a} off please.", "Can you turn off the {a}?", "I want the {a} off.", "Stop the {a}."), "The {a} is off."),
    Kind(("set_temperature", "heating", "thermostat", "set_heat", "setTemperature", "climate"), "Set the temperature of a room", {"a": (("room", "zone", "where"), _of([*w.PLACES, "bedroom", "bathroom", "hall"])), "b": (("degrees", "temperature", "value"), _int(10, 30))},
         ("Bring the {a} to {b} degrees.", "Please set {a} to {b} degrees.", "Warm the {a} to {b} degrees.", "The {a} should have {b} degrees.", "Turn the {a} heating to {b}.", "Put the {a} at {b} degrees.", "Set the {a} to {b} degrees.", "Heat the {a} to {b} degrees.", "Make the {a} {b} degrees warm.", "Temperature of the {a} to {b}.", "I want {b} degrees in the {a}.", "{b} degrees in the {a} please."), "The {a} is set to {b} degrees."),
    Kind(("lookup_user", "get_user", "find_user", "user_info", "getUser", "fetch_user"), "Look up a user by id", {"a": (("id", "user_id", "uid"), v.odd_word)},
         ("Give me user {a}.", "Tell me who {a} is in the user table.", "Fetch user {a}.", "I need the user {a}.", "Search the user with id {a}.", "What is the name of user {a}?", "Look up user {a}.", "Who is user {a}?", "Find the user {a}.", "Get the user with id {a}.", "Show user {a}.", "Which user has the id {a}?", "user {a}?"), "User {a} is {r}.", v.full_name),
    Kind(("delete_file", "remove_file", "rm", "erase_file", "deleteFile", "file_delete"), "Delete a file", {"a": PATH},
         ("Throw away {a}.", "I want {a} deleted.", "Can you delete {a}?", "Remove {a} from the disk.", "The file {a} can go, delete it.", "Please erase the file {a}.", "Delete {a}.", "Remove the file {a}.", "Delete the file {a}.", "Erase {a}.", "Please remove {a}.", "Get rid of {a}.", "I do not need {a} any more, delete it."), "The file was deleted."),
    Kind(("get_distance", "distance", "route_length", "how_far", "getDistance", "distance_between"), "Get the distance between two cities", {"a": (("from", "start", "origin"), v.city), "b": (("to", "end", "destination"), v.city)},
         ("How long is the way from {a} to {b}?", "Give me the distance from {a} to {b}.", "How many km is it from {a} to {b}?", "Measure the distance from {a} to {b}.", "From {a} to {b}, how far is it?", "What is the distance from {a} to {b}?", "How far is it from {a} to {b}?", "Distance from {a} to {b}?", "How many kilometres from {a} to {b}?", "What is the distance between {a} and {b}?", "How far is {b} from {a}?", "Tell me how far {a} is from {b}.") , "It is {r} km from {a} to {b}.", lambda d: v.digits(d, 2, 4)),
    Kind(("add_to_list", "shopping_add", "add_item", "list_add", "addToList", "put_on_list"), "Add an item to a list", {"a": (("item", "thing", "entry"), lambda d: d.rng.choice((d.rng.choice(w.GROCERIES), v.plain_word(d)))), "b": (("list", "list_name", "to"), _of(["shopping", "groceries", "todo", "packing", "wish"]))},
         ("I need {a} on the {b} list.", "Please put {a} on the {b} list.", "Note {a} on the {b} list.", "Extend the {b} list with {a}.", "To the {b} list, add {a}.", "{b} list: add {a}", "Add {a} to the {b} list.", "Put {a} on my {b} list.", "{a} on the {b} list please.", "Write {a} on the {b} list.", "The {b} list needs {a}.", "Can you add {a} to my {b} list?"), "It is on the list."),
    Kind(("track_package", "parcel_status", "track", "shipment", "trackPackage", "where_is_parcel"), "Track a package", {"a": (("number", "tracking_number", "code", "id"), v.odd_word)},
         ("Find my parcel {a}.", "When does package {a} come?", "Parcel {a}: where is it?", "Check the delivery {a}.", "Tell me where parcel {a} is.", "Status of shipment {a}?", "Where is my package {a}?", "Track {a}.", "Track the parcel {a}.", "What is the status of parcel {a}?", "Has package {a} arrived?", "Follow the shipment {a}.", "Where is shipment {a} now?"), "The package is in {r}.", v.city),
    Kind(("define_word", "dictionary", "define", "word_meaning", "lookup_word", "getDefinition"), "Get the meaning of a word", {"a": (("word", "term", "w"), v.plain_word)},
         ("What's the meaning of {a}?", "Give me a definition of {a}.", "I do not know the word {a}, look it up.", "Tell me what {a} means.", "What is {a} in the dictionary?", "Please define {a}.", "What does {a} mean?", "Define {a}.", "Meaning of {a}?", 'What is the meaning of "{a}"?', "Look up the word {a}.", "Explain the word {a}.", "definition of {a}"), "It means {r}.", lambda d: v.phrase(d, 2, 5)),
)  # fmt: skip

# How other people describe the same functions. A tenth, at least one of each, is for evaluation only.
OTHER_DESCRIPTIONS = {
    "Get the weather in a city": ("Get the current weather in a given location", "Returns the weather for a place", "Current weather conditions of a city", "Fetches today's weather for the location", "Weather report for a town", "Get current temperature and conditions", "Useful to find out the weather somewhere"),
    "Get the local time in a city": ("Returns the current time in a place", "What time it is somewhere", "Get the current time for a location", "Local time of a town", "Tells the time in another city", "Current clock time of a location"),
    "Search the web": ("Searches the internet for a query", "Look something up online", "Web search", "Run a search engine query", "Find pages on the web", "Search the internet and return results", "Query a search engine"),
    "Send an email": ("Sends an e-mail to an address", "Compose and send mail", "Send mail with subject and text", "Deliver an email message", "Write an e-mail to someone", "Emails a person"),
    "Send a message to a contact": ("Sends a text message", "Send an SMS to a person", "Text someone", "Deliver a chat message to a contact", "Message a person from the address book", "Sends a note to somebody's phone"),
    "Set an alarm": ("Sets the alarm clock", "Create an alarm for a time", "Wake the user at a time", "Schedules an alarm", "Alarm clock", "Add an alarm at the given time"),
    "Start a timer": ("Starts a countdown", "Set a timer for some minutes", "Count down minutes", "Creates a countdown timer", "Kitchen timer", "Runs a timer for the given minutes"),
    "Add an event to the calendar": ("Creates a calendar event", "Schedule a meeting", "Put an appointment into the calendar", "Books a date in the user's calendar", "New calendar entry", "Adds an appointment"),
    "Save a note": ("Stores a note", "Write a note down", "Keeps a text for later", "Takes a note", "Adds a note to the notebook", "Remember a text"),
    "Read a file": ("Reads a file from disk", "Returns the contents of a file", "Open a file and return its text", "Show what is in a file", "Load a text file", "Get the content of the file at a path", "Read file contents"),
    "Write text to a file": ("Writes a file", "Save content to a file on disk", "Create a file with the given content", "Store text in a file", "Overwrites a file with text", "Put content into a file"),
    "List the files of a folder": ("Lists a directory", "List directory contents", "Returns the names of files in a directory", "Show what a folder contains", "List all files under a path", "Directory listing"),
    "Run a shell command": ("Executes a command in the terminal", "Run a command and return its output", "Bash tool", "Execute a shell command on the computer", "Runs a program in the shell", "Command line access"),
    "Translate text": ("Translates text to another language", "Translation into a target language", "Convert text from one language to another", "Translate a sentence", "Translator", "Renders a text in another language"),
    "Convert money between currencies": ("Currency conversion", "Converts an amount from one currency to another", "Exchange rate calculator", "Get the value of an amount in another currency", "Change money", "Currency converter"),
    "Get the price of a stock": ("Returns the current stock price", "Stock quote for a ticker symbol", "Look up the share price of a company", "Get the latest market price", "Price of a share", "Stock market quote"),
    "Play a song": ("Plays music", "Start playing a track", "Play a song by its title", "Music player", "Puts on a song", "Start music playback"),
    "Call someone": ("Makes a phone call", "Phone a person", "Dial a contact", "Starts a call with somebody", "Place a call", "Telephone a contact"),
    "Book a table in a restaurant": ("Reserves a table", "Restaurant reservation", "Make a booking at a restaurant", "Reserve a table for some guests", "Books dinner", "Create a restaurant reservation"),
    "Find flights between cities": ("Searches for flights", "Flight search", "Find a plane from one city to another", "Look up flights by origin and destination", "Returns available flights", "Search airline connections"),
    "Get the latest news about a topic": ("Returns news headlines", "News search", "Fetch recent news articles on a subject", "Latest headlines about something", "Get news", "Find recent articles"),
    "Calculate an expression": ("Calculator", "Evaluates a mathematical expression", "Do arithmetic", "Compute the result of a formula", "Performs a calculation", "Math tool for expressions"),
    "Turn on a device": ("Switches a device on", "Power on something in the house", "Activate a device", "Turns something on", "Smart home: switch on", "Enables an appliance"),
    "Turn off a device": ("Switches a device off", "Power off something in the house", "Deactivate a device", "Turns something off", "Smart home: switch off", "Disables an appliance"),
    "Set the temperature of a room": ("Adjusts the thermostat", "Sets the heating of a room", "Change a room's temperature", "Thermostat control", "Heat a room to some degrees", "Control the room temperature"),
    "Look up a user by id": ("Returns a user record", "Get user details from the database", "Fetch a user by their identifier", "Find the user with an id", "User lookup", "Get information about a user id"),
    "Delete a file": ("Removes a file from disk", "Erase a file", "Deletes the file at a path", "Remove a file permanently", "Unlink a file", "File removal"),
    "Get the distance between two cities": ("Distance in km from one place to another", "How far two cities are apart", "Compute the distance between places", "Returns the length of the way between towns", "Distance calculator", "Measure how far it is"),
    "Add an item to a list": ("Puts something on a list", "Append an entry to a list", "Adds to the shopping list", "Add an entry to one of the user's lists", "List manager: add", "Write an item on a list"),
    "Track a package": ("Shows where a parcel is", "Parcel tracking", "Get the delivery status of a shipment", "Track a delivery by its number", "Shipment status", "Find out where a package is now"),
    "Get the meaning of a word": ("Dictionary lookup", "Define a word", "Returns the definition of a term", "Look up what a word means", "Word definitions", "Explain a term"),
}  # fmt: skip

GENERIC_VERBS = (
    "get",
    "fetch",
    "find",
    "load",
    "open",
    "check",
    "update",
    "start",
    "stop",
    "create",
    "remove",
    "list",
    "count",
    "send",
    "lock",
    "unlock",
    "move",
    "clean",
    "print",
    "scan",
)
GENERIC_PARAMETERS = (
    "id",
    "name",
    "code",
    "label",
    "key",
    "value",
    "target",
    "number",
    "item",
    "unit",
    "ref",
    "tag",
)


PARAMETER_TEXTS = (
    "The {p}",
    "The {p} to use",
    "{p}",
    "{p}, as the user says it",
    "Which {p}",
    "The {p} (required)",
)
OPTIONAL = (
    ("unit", {"type": "string", "enum": ["celsius", "fahrenheit"]}),
    ("limit", {"type": "integer"}),
    ("format", {"type": "string"}),
    ("verbose", {"type": "boolean"}),
    ("lang", {"type": "string", "description": "Optional language code"}),
    ("timeout", {"type": "integer", "default": 30}),
)


@dataclass(frozen=True, slots=True)
class Tool:
    """One concrete function: the schema the prompt shows, and how a request for it is made."""

    kind: Kind
    name: str
    spelled: dict[str, str]  # slot -> parameter name
    schema: dict


def _name(d: Draw, names: tuple[str, ...]) -> str:
    """Held-out names are a tenth of everything a name can be; evaluation uses only those where it can."""
    candidates = [
        *names,
        *(f"{n}_{s}" for n in names[:3] for s in ("tool", "v2", "now", "info", "api")),
        *(f"{p}_{n}" for n in names[:3] for p in ("my", "do", "app", "home")),
    ]
    held = [n for n in candidates if is_held_out(n)]
    trained = [n for n in candidates if not is_held_out(n)]
    if d.side != "train" and held:
        return d.rng.choice(held)
    plain = [n for n in names if not is_held_out(n)]
    return d.rng.choice(plain if plain and d.chance(0.6) else trained)


def _wide_name(d: Draw, names: tuple[str, ...]) -> str:
    """Names as other people give them: a third known, a third with any word before or after, a third opaque.

    A name stands before its description, so where it says nothing itself the model has to go from the description
    back to the name. Of known names it learns by heart which requests they are for, and never needs to.
    """
    while True:
        form, word = d.rng.random(), d.rng.choice((d.rng.choice(w.ALL_LOWER), w.pseudo_word(d.rng)))
        if form < 0.3:
            return _name(d, names)
        if form < 0.65:
            base = d.rng.choice(names)
            before = d.rng.choice(("my", "do", "app", "home", word, word))
            after = d.rng.choice(("tool", "v2", "now", "info", "api", word, word))
            name = d.rng.choice(
                (f"{before}_{base}", f"{base}_{after}", f"{before}{base[0].upper()}{base[1:]}")
            )
        else:
            other = d.rng.choice(w.ALL_LOWER)
            name = d.rng.choice(
                (
                    f"{word}_{other}",
                    word,
                    word,
                    f"{word}{v.digits(d, 1, 2)}",
                    f"tool_{word}",
                    f"{other}{word.capitalize()}",
                )
            )
        if not is_held_out(name):
            return name


def _invented(d: Draw) -> Kind:
    """A function nobody has heard of: its name and parameters can only come from the prompt."""
    while True:
        verb, noun = (
            d.rng.choice(GENERIC_VERBS),
            d.rng.choice((d.rng.choice(w.NOUNS),) * 2 + (w.pseudo_word(d.rng),)),
        )
        name = d.rng.choice(
            (
                f"{verb}_{noun}",
                f"{verb}_{noun}",
                f"{noun}_{verb}",
                f"{verb}{noun.capitalize()}",
                f"{verb}_{d.rng.choice(w.ADJECTIVES)}_{noun}",
            )
        )
        if is_held_out(name) == (d.side != "train"):
            break
    slots = dict(zip("ab", d.rng.sample(GENERIC_PARAMETERS, d.rng.choice((1, 1, 2))), strict=False))
    parameters: dict[str, tuple[tuple[str, ...], Maker]] = {s: ((p,), v.generic) for s, p in slots.items()}
    with_slots = " and ".join(f"{p} {{{s}}}" for s, p in slots.items())
    asks = (
        f"{verb} the {noun} with {with_slots}",
        f"Please {verb} the {noun} with {with_slots}.",
        f"Use {name} with {with_slots}.",
        f"Call {name} with {with_slots}.",
        f"I want to {verb} the {noun} with {with_slots}.",
        f"Could you {verb} the {noun}? {with_slots}",
        f"{name}: {with_slots}",
        f"The {noun} needs a {verb}: {with_slots}",
        f"Please use {name}, {with_slots}.",
    )
    if len(slots) == 1:
        asks += (
            f"{verb.capitalize()} the {noun} {{a}}.",
            f"{verb.capitalize()} {noun} {{a}}",
            f"Can you {verb} the {noun} {{a}}?",
        )
    return Kind((name,), f"{verb.capitalize()} the {noun}", parameters, asks)


def make_tool(d: Draw, kind: Kind | None = None, wide: bool = False) -> Tool:
    kind = kind or (_invented(d) if d.chance(0.38) else d.rng.choice(KINDS))
    name = kind.names[0] if len(kind.names) == 1 else (_wide_name if wide else _name)(d, kind.names)
    spelled: dict[str, str] = {}
    for slot, (spellings, _) in kind.parameters.items():
        free = [s for s in spellings if s not in spelled.values()]
        spelled[slot] = d.rng.choice(free)
    text = d.rng.choice(PARAMETER_TEXTS) if d.chance(0.35) else ""
    properties: dict[str, dict[str, str]] = {}
    for slot, (_, maker) in kind.parameters.items():
        integer = isinstance(maker(Draw(d.rng, d.side)), int)
        properties[spelled[slot]] = {"type": "integer" if integer else "string"}
        if text:
            properties[spelled[slot]]["description"] = text.format(p=spelled[slot].replace("_", " "))
    required = list(properties)
    if d.chance(0.15):  # one that may be left out, and is
        properties.setdefault(*d.rng.choice(OPTIONAL))
    description = kind.description
    if others := OTHER_DESCRIPTIONS.get(description):
        description = d.wording(others) if d.chance(0.6) else description
    function: dict = {"name": name, "description": description + d.rng.choice((".", "", ""))}
    function["parameters"] = {"type": "object", "properties": properties, "required": required}
    if d.chance(0.12):
        function["parameters"]["additionalProperties"] = False
    if d.chance(0.1) and (not wide or name in kind.names):
        del function["description"]
    return Tool(kind, name, spelled, {"type": "function", "function": function})


def toolbox(d: Draw, count: int, wide: bool = False) -> list[Tool]:
    """Different functions; now and then two that are near to each other, since both are drawn from the same kinds."""
    tools: list[Tool] = []
    while len(tools) < count:
        tool = make_tool(d, wide=wide)
        if all(t.name != tool.name and (t.kind is not tool.kind) for t in tools):
            tools.append(tool)
    return tools


def call(d: Draw, tool: Tool) -> Turn:
    values = {slot: maker(d) for slot, (_, maker) in tool.kind.parameters.items()}
    ask = phrased(d, tool.kind.asks).format(**values)
    arguments = {tool.spelled[slot]: value for slot, value in values.items()}
    # What a function has to be for is said before one is looked for: whether something is missing has to be known before
    # anything is said of it, and a model this small knows only what it has said.
    turn = Turn(
        ask, f"{tool.kind.description}:", f"{tool.kind.description}: {tool.name}.", Call(tool.name, arguments)
    )
    if tool.kind.result is not None:
        r = str(tool.kind.result(d))
        turn.result_answer = tool.kind.answer.format(**values, r=r)
        turn.keys = [r]
        form = d.rng.random()
        if form < 0.4:
            turn.result = r
        elif form < 0.8:
            turn.result = json.dumps(
                {d.rng.choice(("result", "value", "output", "answer", "data", tool.name)): r},
                ensure_ascii=False,
            )
        else:
            extra = {**{k: str(x) for k, x in arguments.items()}, "result": r, "ok": True}
            turn.result = json.dumps(extra, ensure_ascii=False)
    else:
        turn.result = d.rng.choice(
            ("ok", "OK", "done", '{"ok": true}', '{"status": "ok"}', "success", '{"success": true}')
        )
        turn.result_answer = tool.kind.answer.format(**values)
        turn.keys = [turn.result_answer]
        if d.chance(0.15):
            turn.result = d.rng.choice(
                (
                    "error",
                    '{"error": "failed"}',
                    "Error: timeout",
                    '{"ok": false}',
                    "failed",
                    '{"status": "error"}',
                )
            )
            turn.result_answer = "That did not work: the tool reports an error."
            turn.keys = ["error"]
    return turn


NO_FUNCTION = "I have no function for that."


def misfit(d: Draw, tools: list[Tool]) -> Turn:
    """A request for a function that is not there."""
    while True:
        kind = _invented(d) if d.chance(0.25) else d.rng.choice(KINDS)
        if all(kind.description != t.kind.description for t in tools):
            break
    values = {slot: maker(d) for slot, (_, maker) in kind.parameters.items()}
    # Of an invented one the name would give away what is missing, and nobody asks by a name that is not listed.
    asks = kind.asks if len(kind.names) > 1 else tuple(a for a in kind.asks if kind.names[0] not in a)
    return Turn(
        phrased(d, asks).format(**values),
        f"{kind.description}: {NO_FUNCTION}",
        f"{kind.description}: none of the functions.",
        keys=[NO_FUNCTION],
    )


# Words of questions that some function may well be for: beside functions they are not asked as things unknown.
FUNCTION_WORDS = re.compile(
    r"weather|rain|snow|umbrella|cold|warm|hot|time|date|news|happen|play|song|music|mail|letter|messag|call|alarm|wake|translat|say|"
    r"calc|comput|plus|minus|times|percent|solve|\d|book|order|flight|fly|price|cost|stock|share|defin|mean|word|find|search|look|"
    r"show|open|turn|switch|light|heat|temperature|list|add|note|remind|far|distance|where|file|who is|run|convert|how much|set |"
    r"send|make|get |go ",
    re.IGNORECASE,
)
