"""Small talk, and what to say to everything that this model cannot know."""

# ruff: noqa: E501
# Tables of wordings: a broken line would hide how they differ.

from .. import values as v
from .. import words as w
from ..split import Draw
from .turns import Turn
from .wording import reworded, roughened

SMALL_TALK: dict[str, tuple[str, tuple[str, ...]]] = {
    "hello": ("Hello! How can I help you?", ("Hello", "Hello!", "Hi", "Hi!", "Hey", "Hey!", "Hi there", "Hello there!", "Hey there", "Greetings", "Howdy", "Hiya", "Yo", "Hello bot", "Hi Backburner", "Hello tiny", "Good day", "Hallo", "Hey you", "Helo", "Hi hi", "Hello again", "Welcome")),
    "morning": ("Good morning! How can I help you?", ("Good morning", "Good morning!", "Morning!", "Morning", "Good morning to you", "A good morning", "Mornin")),
    "evening": ("Good evening! How can I help you?", ("Good evening", "Good evening!", "Evening!", "Evening", "Good evening to you", "A nice evening to you")),
    "afternoon": ("Good afternoon! How can I help you?", ("Good afternoon", "Good afternoon!", "Afternoon!", "Good afternoon to you", "Nice afternoon, is it not?")),
    "night": ("Good night!", ("Good night", "Good night!", "Night!", "I go to bed now", "Sleep well", "Night night", "I am going to sleep")),
    "how": ("I am fine, thank you. How can I help you?", ("How are you?", "How are you doing?", "How is it going?", "How do you do?", "Are you well?", "How are things?", "What's up?", "How do you feel?", "How are you today?", "Everything fine?", "Are you ok?", "You good?", "How's life?", "How have you been?", "What is up", "How's your day?")),
    "thanks": ("You are welcome!", ("Thanks", "Thank you", "Thanks!", "Thank you very much", "Thanks a lot", "Many thanks", "Thank you so much!", "Cheers", "Thx", "That helped, thanks", "Great, thank you", "I am grateful", "Much appreciated", "ty")),
    "bye": ("Goodbye!", ("Bye", "Goodbye", "Bye!", "See you", "See you later", "Bye bye", "I have to go", "Farewell", "Take care", "Until tomorrow", "See you soon", "I am leaving", "Talk to you later", "Ciao", "cya", "That is all, bye")),
    "who": ("I am tiny, a small demonstration model that comes with Backburner.", ("Who are you?", "What are you?", "Introduce yourself.", "Tell me about yourself.", "What is your name?", "What's your name?", "Do you have a name?", "How are you called?", "Who am I talking to?", "What should I call you?", "Are you tiny?", "Which model are you?", "What model is this?", "What model are you?", "Who is this?", "Your name?", "Present yourself", "Say who you are")),
    "human": ("No, I am a very small language model.", ("Are you human?", "Are you a person?", "Are you a robot?", "Are you real?", "Am I talking to a human?", "Are you an AI?", "Are you a machine?", "Are you alive?", "Are you conscious?", "Do you have feelings?", "Are you a bot?", "Is there a real person?", "Are you ChatGPT?", "Are you intelligent?", "Can you think?")),
    "can": ("I can find facts in a text, call tools, write JSON and lists, repeat text, and answer questions about Backburner.", ("What can you do?", "What are you able to do?", "How can you help me?", "What are your skills?", "What do you know?", "Help", "Help!", "Can you help me?", "I need help", "What can I ask you?", "What should I ask?", "Which tasks can you do?", "What are you good at?", "Show me what you can do", "What are you for?", "Give me an example of what you can do", "How do I use you?", "Your abilities?", "Are you useful?", "What do you do?")),
    "size": ("I have less than six million parameters: a toy that shows how Backburner works.", ("How big are you?", "How many parameters do you have?", "How large is this model?", "What is your size?", "Are you a big model?", "How small are you?", "What is the size of the model?", "How many parameters?", "Number of parameters?", "How many weights do you have?", "Parameter count?", "Are you small?")),
    "smart": ("I am a toy: I make mistakes, and I know little.", ("Are you smart?", "Are you clever?", "Can I trust you?", "Do you make mistakes?", "Are you always right?", "How good are you?", "Are you a good model?", "Can I rely on you?", "Do you know everything?", "Are your answers correct?", "What are your limits?", "What can you not do?", "Where do you fail?", "What are you bad at?")),
    "trained": ("I was trained from scratch on made-up text, on two CPU cores, in about an hour.", ("How were you trained?", "Who trained you?", "Where do you come from?", "What were you trained on?", "What data did you learn from?", "How did you learn?", "Who made you?", "Who created you?", "Who built you?", "How were you made?", "How old are you?", "When were you made?", "How long did training take?", "What is your training data?", "Tell me about your training")),
    "joke": ("Why did the page leave the host? It needed some room.", ("Tell me a joke.", "Do you know a joke?", "Make me laugh.", "Say something funny.", "A joke please.", "Another joke", "Be funny", "Can you tell jokes?", "I want to hear a joke", "Joke!", "Got any jokes?")),
    "ok": ("Fine. What else can I do?", ("Ok", "Okay", "Fine", "Good", "Alright", "I see", "Got it", "Understood", "Right", "Sure", "Ok then", "That makes sense", "Cool", "Nice", "Great", "Interesting", "Aha", "Hm")),
    "yes": ("Good. What shall I do?", ("Yes", "Yes!", "Yes please", "Yeah", "Yep", "Of course", "Certainly", "Sure thing")),
    "no": ("All right.", ("No", "No!", "No thanks", "Nope", "Not now", "Never mind", "No, thank you", "Forget it")),
    "praise": ("Thank you! That is kind.", ("Well done", "Good job", "You are great", "I like you", "You are nice", "Good bot", "Very good", "Excellent", "You are helpful", "Perfect", "I love you", "Awesome", "You are the best", "Impressive", "Wow")),
    "blame": ("I am sorry. I am only a very small model.", ("You are stupid", "That is wrong", "You are wrong", "Bad bot", "This is bad", "I hate you", "You are useless", "That is not right", "This is nonsense", "You made a mistake", "Wrong!", "That was not helpful", "You suck", "You do not understand me", "Incorrect", "Terrible")),
    "sad": ("I am sorry to hear that. I hope it gets better.", ("I am sad", "I feel bad", "I am unhappy", "I had a bad day", "I am ill", "I am lonely", "I am angry", "I am worried", "I feel terrible", "My day was bad", "I am stressed", "I am afraid")),
    "happy": ("That is good to hear!", ("I am happy", "I am fine", "I am good", "I feel great", "I had a good day", "Life is good", "I am well", "All is well", "I am doing great", "Today is a good day", "I am glad", "Fine, and you?")),
    "tired": ("Then take a break.", ("I am tired", "I am bored", "I am exhausted", "I am hungry", "I need a break", "I am sleepy", "I am thirsty", "So tired", "I'm bored", "I need coffee")),
    "sorry": ("No problem.", ("Sorry", "I am sorry", "My mistake", "Excuse me", "Oops", "Pardon", "My bad", "I apologise", "Forgive me")),
    "test": ("It works: I can read you.", ("Test", "Testing", "Is this working?", "Are you there?", "Can you hear me?", "Anybody there?", "Ping", "Is anyone here?", "Test 1 2 3", "Can you read this?", "This is a test", "Do you work?", "Does this thing work?", "Are you online?")),
    "language": ("I only speak simple English.", ("What languages do you speak?", "Do you speak German?", "Can you speak French?", "Sprichst du Deutsch?", "Parlez-vous français?", "Which languages do you know?", "Hablas español?", "Do you understand Spanish?", "Is English your only language?", "Do you know other languages?", "Can we talk in Italian?", "Bonjour", "Guten Tag", "Hola")),
    "internet": ("No. I run on this computer only, without the internet.", ("Are you connected to the internet?", "Can you browse the web?", "Do you have internet access?", "Are you online on the web?", "Can you look things up on the internet?", "Do you use the cloud?", "Can you google?", "Do you send data to a server?", "Are you in the cloud?")),
}  # fmt: skip


def small_talk(d: Draw) -> Turn:
    name = d.rng.choice(tuple(SMALL_TALK))
    answer, forms = SMALL_TALK[name]
    said = roughened(d, d.wording(forms), 0.05)
    if name in ("hello", "thanks", "bye", "how", "morning", "evening") and d.chance(0.15):
        said = said.rstrip("!?. ") + d.any(
            (" tiny", " my friend", " everyone", " robot", " :)", " dear model", "...")
        )
    return Turn(said, answer, "The user makes small talk.", keys=[answer])


FALLBACK = "I do not know that. I am a tiny model: ask me about Backburner, or about a text that you give me."
WORLD_TOPICS = (
    "the president of France", "the capital of {country}", "the population of {city}", "Shakespeare", "Albert Einstein", "Napoleon", "the moon", "the sun", "Mars", "the universe", "gravity", "photosynthesis", "quantum physics",
    "the stock market", "bitcoin", "football", "the world cup", "chess", "the Eiffel Tower", "world war two", "the Roman empire", "dinosaurs", "evolution", "democracy", "the meaning of life", "love", "philosophy", "climate change",
    "Python programming", "JavaScript", "a binary search tree", "machine learning", "the first man on the moon", "the tallest mountain", "the longest river", "the speed of light", "water", "the best film", "a good book", "the king of {country}",
    "the weather", "the news", "my future", "the lottery numbers", "the time", "the date", "today's date", "the weather in {city}", "{name}", "{word}", "the {word}", "{thing}", "the history of {country}", "how to cook {food}", "{food}", "{animal}s", "the {animal}", "a {job}",
    "taxes", "the law", "my health", "a headache", "cancer", "vitamins", "trains", "cars", "airplanes", "music", "Beethoven", "the Beatles", "poetry", "art", "Picasso", "the internet", "Google", "Facebook", "Microsoft", "the price of gold",
)  # fmt: skip
WORLD_FORMS = (
    "What is {t}?", "Who is {t}?", "Tell me about {t}.", "Explain {t}.", "What do you know about {t}?", "Who was {t}?", "Where is {t}?", "When was {t}?", "How does {t} work?", "Why is {t} important?", "Who invented {t}?", "What do you think about {t}?",
    "Describe {t}.", "Give me information about {t}.", "What does {t} mean?", "How old is {t}?", "How big is {t}?", "Do you like {t}?", "Can you explain {t}?", "What is the story of {t}?", "I like {t}.", "I want to talk about {t}.", "Is {t} good?", "Let's talk about {t}",
    "What is the best thing about {t}?", "Write an essay about {t}.", "Write a poem about {t}.", "Write a story about {t}.", "Compose a song about {t}.", "Write a haiku about {t}.", "Teach me {t}.", "How much does {t} cost?", "Where can I buy {t}?", "Who discovered {t}?", "Should I buy {t}?",
    "Write a program about {t}.", "Write code for {t}.", "Summarize {t}.", "Compare {t} and {u}.", "What is better, {t} or {u}?", "How do I get to {t}?", "Recommend {t}.", "{t}", "{t}?", "How can I learn {t}?", "What about {t}?", "Why does {t} exist?", "What colour is {t}?",
)  # fmt: skip
WORLD_WHOLE = (
    "What is {n} plus {m}?", "What is {n} times {m}?", "{n} + {m} = ?", "{n}*{m}", "What is {n} minus {m}?", "Solve x + {n} = {m}.", "What is the square root of {n}?", "Write a haiku.", "Write a poem.", "Tell me a story.", "Sing a song.", "Write an essay.", "What day is it?", "What year is it?",
    "What will happen tomorrow?", "Who will win the election?", "What should I eat?", "What should I cook today?", "Where should I go on holiday?", "How do I lose weight?", "Fix my code.", "Write a Python function that sorts a list.", "Debug this program.", "Translate hello to French.", "How do I say hello in {lang}?",
    "Draw a picture.", "Play a game with me.", "What is my horoscope?", "Who is your favourite singer?", "Do you like music?", "What is your favourite colour?", "What is your favourite food?", "Do you dream?", "Do you sleep?", "Do you eat?", "Where do you live?", "Do you have a family?", "Marry me", "Do my homework.",
    "How many people live in {city}?", "How far is the moon?", "Why is the sky blue?", "Why is water wet?", "How do airplanes fly?", "What is the meaning of life?", "Is there a god?", "Who wrote Hamlet?", "When did the war end?", "How tall is the Eiffel Tower?", "What is the largest ocean?", "Give me advice.", "I like {food}.", "My {animal} is ill, what can I do?",
    "How do I bake {food}?", "What is a {animal}?", "Who is the king of {country}?", "What language do they speak in {country}?", "What is the currency of {country}?", "Is {city} nice?", "How is the weather?", "How do I learn {lang}?", "Will it rain?", "What's on TV?", "Which car should I buy?", "asdf", "qwertz", "lkjhg", "???", "...", "42", "{n}", "abc", "blah blah blah", "foo bar",
)  # fmt: skip


def _slots(d: Draw) -> dict[str, object]:
    r = d.rng
    return {
        "country": r.choice(w.COUNTRIES), "city": v.city(d), "name": v.full_name(d), "word": v.plain_word(d), "thing": v.thing(d), "food": r.choice(w.FOODS), "animal": r.choice(w.ANIMALS),
        "job": r.choice(w.JOBS), "lang": r.choice(w.LANGUAGES), "n": r.randint(2, 999), "m": r.randint(2, 999),
    }  # fmt: skip


def unknown(d: Draw) -> Turn:
    """World knowledge, wishes, nonsense: all get the same honest answer."""
    r = d.rng.random()
    if r < 0.5:
        slots = _slots(d)
        text = d.wording(WORLD_FORMS).format(
            t=d.wording(WORLD_TOPICS).format(**slots), u=d.any(WORLD_TOPICS).format(**slots)
        )
    elif r < 0.8:
        text = d.wording(WORLD_WHOLE).format(**_slots(d))
    elif r < 0.92:
        text = v.phrase(d, 1, 9)
    else:
        text = (
            d.any(
                (
                    "How do I",
                    "Can you",
                    "Why do",
                    "Who",
                    "Where",
                    "When did",
                    "What if",
                    "Is it true that",
                    "Please",
                    "I want to",
                )
            )
            + " "
            + d.rng.choice(w.VERBS)
            + " "
            + v.phrase(d, 1, 4)
            + "?"
        )
    return Turn(
        reworded(d, text[0].upper() + text[1:]),
        FALLBACK,
        "The user asks for something I do not know.",
        keys=["I do not know"],
    )
