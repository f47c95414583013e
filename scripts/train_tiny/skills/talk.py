"""Small talk, and what to say to everything that this model cannot know."""

# ruff: noqa: E501
# Tables of wordings: a broken line would hide how they differ.

import re

from .. import values as v
from .. import words as w
from ..split import Draw, is_held_out
from .turns import Turn
from .wording import reworded, roughened

SMALL_TALK: dict[str, tuple[str, tuple[str, ...]]] = {
    "hello": ("Hello! How can I help you?", (
        "Hello", "Hello!", "Hi", "Hi!", "Hey", "Hey!", "Hi there", "Hello there!", "Hey there", "Greetings", "Howdy", "Hiya", "Yo", "Hello bot", "Hi Backburner", "Hello tiny", "Good day", "Hallo", "Hey you", "Helo", "Hi hi", "Hello again", "Welcome",
        "Hello my friend", "Hi everybody", "Good to see you", "Nice to meet you", "Pleased to meet you", "Hey, I am new here", "Hi, it is me", "Hi, my name is Anna", "Hello, I am back", "I am back", "Here I am", "Hello world", "Hi bot", "Hey bot",
        "Heya", "Hey hey", "Hello hello", "Hi, can we talk?", "Hello, is it a good time?", "Salutations", "What a pleasure to meet you", "Hey, long time no see", "Hi, how nice to see you", "Hullo", "Helloo", "hiii", "Heyyy", "Hello computer",
        "Hi machine", "Let me say hello", "I just wanted to say hi", "G'day", "Sup", "Hello, model", "Ahoy")),
    "morning": ("Good morning! How can I help you?", (
        "Good morning", "Good morning!", "Morning!", "Morning", "Good morning to you", "A good morning", "Mornin",
        "Good morning everyone", "Good morning, how nice", "I wish you a good morning", "Have a good morning", "A very good morning", "Good morning from me", "Good morning my friend", "Hello and good morning", "Hi, good morning", "gm", "Morning all", "Top of the morning", "Good mornin", "Good morning again",
        "It is early, good morning", "Good morning, I just woke up", "I just got up, good morning")),
    "evening": ("Good evening! How can I help you?", (
        "Good evening", "Good evening!", "Evening!", "Evening", "Good evening to you", "A nice evening to you",
        "Good evening everyone", "I wish you a good evening", "Have a good evening", "A very good evening", "Good evening my friend", "Hello and good evening", "Hi, good evening", "Evening all", "Good evening from me", "Good evening again", "It is late, good evening", "Good evening, how nice", "Good evening, dear model", "Good evening, I am home")),
    "afternoon": ("Good afternoon! How can I help you?", (
        "Good afternoon", "Good afternoon!", "Afternoon!", "Good afternoon to you", "Nice afternoon, is it not?",
        "Good afternoon everyone", "I wish you a good afternoon", "Have a good afternoon", "A very good afternoon", "Good afternoon my friend", "Hello and good afternoon", "Hi, good afternoon", "Afternoon all", "Good afternoon from me", "Good afternoon again", "Afternoon, bot", "Good afternoon, how nice")),
    "night": ("Good night!", (
        "Good night", "Good night!", "Night!", "I go to bed now", "Sleep well", "Night night", "I am going to sleep",
        "Good night everyone", "Sweet dreams", "Have a good night", "I wish you a good night", "Good night, sleep well", "It is late, I go to sleep", "I am off to bed", "Time for bed", "Bed time", "Sleep tight", "Nighty night", "I will go to sleep now", "See you tomorrow, good night", "Good night my friend",
        "gn", "I need to sleep now, good night", "I am going to bed", "Off to bed now", "Have a restful night")),
    "how": ("I am fine, thank you. How can I help you?", (
        "How are you?", "How are you doing?", "How is it going?", "How do you do?", "Are you well?", "How are things?", "What's up?", "How do you feel?", "How are you today?", "Everything fine?", "Are you ok?", "You good?", "How's life?", "How have you been?", "What is up", "How's your day?",
        "How have you been lately?", "Are you having a good day?", "How was your day?", "Is everything all right with you?", "Are you fine?", "Hope you are well", "I hope you are fine", "How are you feeling today?", "How do you feel now?", "How's it going?", "How are you, my friend?", "And how are you?", "How about you?", "You all right?",
        "All good with you?", "Are things going well?", "How is life treating you?", "How is your day so far?", "What's new with you?", "Feeling good today?", "how r u", "How are you getting on?", "Hello, how are you?", "Hi, how are you doing today?", "Hey, how is it going?", "Is all well?", "Are you in a good mood?", "How goes it?",
        "How is everything?", "Tell me how you are")),
    "thanks": ("You are welcome!", (
        "Thanks", "Thank you", "Thanks!", "Thank you very much", "Thanks a lot", "Many thanks", "Thank you so much!", "Cheers", "Thx", "That helped, thanks", "Great, thank you", "I am grateful", "Much appreciated", "ty",
        "Thank you for your help", "Thanks for the answer", "Thanks for your time", "Thank you, that was useful", "Thanks, that helps", "Thank you kindly", "I thank you", "Thanks a bunch", "Thanks a million", "A thousand thanks", "Big thanks", "Ok, thanks", "Perfect, thanks", "Thanks, now I understand",
        "Thanks, I got it", "Thanks again", "Thanks so much", "Many thanks for that", "You helped me, thank you", "Thank you, dear", "I appreciate it", "I appreciate your help", "That was very helpful, thank you", "Nice, thanks", "Cool, thanks", "Thank you for explaining", "thank u", "thanx",
        "tnx", "Merci", "Danke", "Thanks for everything", "Very kind of you, thanks")),
    "bye": ("Goodbye!", (
        "Bye", "Goodbye", "Bye!", "See you", "See you later", "Bye bye", "I have to go", "Farewell", "Take care", "Until tomorrow", "See you soon", "I am leaving", "Talk to you later", "Ciao", "cya", "That is all, bye",
        "Good bye", "Bye for now", "See you around", "See you tomorrow", "See you next time", "I must go now", "I am off", "Time to go", "Have a nice day", "Have a good one", "Catch you later", "Later!", "So long", "I will be back",
        "That was all, goodbye", "I am done here, bye", "Ok bye", "Thanks and bye", "Goodbye my friend", "Goodbye and thank you", "I have to leave", "Talk soon", "Until next time", "Adios", "Tschüss", "Cheerio", "Toodles", "I will go now",
        "We are finished, bye", "I need to leave now", "Let us stop here, bye", "End of chat, bye", "Bye then", "Peace out", "I will talk to you tomorrow")),
    "who": ("I am tiny, a small demonstration model that comes with Backburner.", (
        "Who are you?", "What are you?", "Introduce yourself.", "Tell me about yourself.", "What is your name?", "What's your name?", "Do you have a name?", "How are you called?", "Who am I talking to?", "What should I call you?", "Are you tiny?", "Which model are you?", "What model is this?", "What model are you?", "Who is this?", "Your name?", "Present yourself", "Say who you are",
        "Who exactly are you?", "What kind of model are you?", "May I ask your name?", "What do people call you?", "Who answers me here?", "Which bot is this?", "Please introduce yourself", "Could you introduce yourself?", "What is it that I am chatting with?", "Who is speaking?", "Who is there?", "With whom do I have the pleasure?", "Tell me who you are", "Tell me your name",
        "I do not know who you are", "Which AI is this?", "name?", "What are you called?", "Is your name tiny?", "Which language model is running here?", "What assistant are you?", "Whom am I chatting with?", "Identify yourself", "Give me your name", "What sort of thing are you?", "Say something about yourself", "I would like to get to know you", "I want to know who you are",
        "Do you have a name or not?", "Who is on the other side?", "What should I know about you?", "Describe yourself")),
    "human": ("I am a very small language model: a program, not a person.", (
        "Are you human?", "Are you a person?", "Are you a robot?", "Are you real?", "Am I talking to a human?", "Are you an AI?", "Are you a machine?", "Are you alive?", "Are you conscious?", "Do you have feelings?", "Are you a bot?", "Is there a real person?", "Are you ChatGPT?", "Are you intelligent?", "Can you think?",
        "Is this a human or a machine?", "Do I talk to a person?", "Are you made of flesh?", "Are you a man or a woman?", "Are you a living being?", "Are you a computer?", "Do you have a body?", "Do you have a soul?", "Are you GPT-4?", "Are you Claude?", "Are you Siri?", "Is there a human behind this?", "Are you some employee?", "Do you feel pain?",
        "Can you feel anything?", "Do you have emotions?", "Do you have a brain?", "Are you aware of yourself?", "Do you have a mind?", "bot or human?", "Could you be a real person?", "You sound like a human", "I think you are a person", "Are you an android with feelings?", "Do I chat with a real person?", "Are you an actual human?", "Am I chatting with a machine?", "Is somebody typing this?",
        "Are you just a program?", "Are you self-aware?", "Prove that you are human", "Do you have consciousness?", "Are you artificial?")),
    "can": ("I can find facts in a text, call tools, write JSON and lists, repeat text, and answer questions about Backburner.", (
        "What can you do?", "What are you able to do?", "How can you help me?", "What are your skills?", "What do you know?", "Help", "Help!", "Can you help me?", "I need help", "What can I ask you?", "What should I ask?", "Which tasks can you do?", "What are you good at?", "Show me what you can do", "What are you for?", "Give me an example of what you can do", "How do I use you?", "Your abilities?", "Are you useful?", "What do you do?",
        "What tasks can I give you?", "What can I use you for?", "In what way can you help?", "What kinds of questions do you answer?", "What things do you understand?", "Tell me your abilities", "List your abilities", "List your skills", "I do not know what you can do", "What are your strengths?", "What is possible with you?", "Can you do anything useful?", "What do you offer?", "Tell me what you can do",
        "What work can you do?", "What are you made for?", "what can u do", "capabilities?", "How can I make use of you?", "Which skills do you have?", "Please help me", "Help me", "I could use some help", "I need some assistance", "Assist me", "What are your features?", "What could you do for me?", "I would like to know your abilities",
        "Show me your skills", "What do you do well?", "Can you assist me?", "What may I ask of you?", "Which kind of help do you give?")),
    "size": ("I have less than six million parameters: a toy that shows how Backburner works.", (
        "How big are you?", "How many parameters do you have?", "How large is this model?", "What is your size?", "Are you a big model?", "How small are you?", "What is the size of the model?", "How many parameters?", "Number of parameters?", "How many weights do you have?", "Parameter count?", "Are you small?",
        "How many millions of parameters are you?", "Are you a large language model?", "How heavy are you?", "How much do you weigh?", "Are you a tiny or a huge model?", "What is your parameter count?", "Is it a billion parameters or less?", "Do you have billions of parameters?", "How big is the model that I talk to?", "Is this model small?", "Tell me your size", "your size?", "How big is your network?", "How big is your brain?",
        "How many neurons do you have?", "How does your size compare to GPT?", "Are you bigger than GPT-2?", "Why are you so small?", "How many weights are in you?", "Number of weights?", "How large are you in parameters?", "Are you a 7B model?", "What size class are you?", "How many numbers make you up?", "I wonder how big you are")),
    "smart": ("I am a toy: I make mistakes, and I know little.", (
        "Are you smart?", "Are you clever?", "Can I trust you?", "Do you make mistakes?", "Are you always right?", "How good are you?", "Are you a good model?", "Can I rely on you?", "Do you know everything?", "Are your answers correct?", "What are your limits?", "What can you not do?", "Where do you fail?", "What are you bad at?",
        "How smart are you?", "How clever are you really?", "Can I believe what you say?", "Should I trust your answers?", "Are you ever wrong?", "Do you sometimes err?", "How often are you wrong?", "How reliable are you?", "Is what you say true?", "Can you be wrong?", "Do you hallucinate?", "Do you make things up?", "What are your weak points?", "What do you not know?",
        "What is beyond you?", "Are you as good as ChatGPT?", "Are you better than other models?", "How much do you know?", "Do you know a lot?", "Are you an expert?", "What is your IQ?", "Are you reliable?", "Can I use your answers for work?", "limits?", "Tell me your weaknesses", "Are you dumb?", "Are you any good?", "Is your knowledge good?",
        "What is hard for you?", "Should I double check your answers?")),
    "trained": ("I was trained from scratch on made-up text, on two CPU cores, in a few hours.", (
        "How were you trained?", "Who trained you?", "Where do you come from?", "What were you trained on?", "What data did you learn from?", "How did you learn?", "Who made you?", "Who created you?", "Who built you?", "How were you made?", "How old are you?", "When were you made?", "How long did training take?", "What is your training data?", "Tell me about your training",
        "Who is your maker?", "Who is your creator?", "Who programmed you?", "Who wrote you?", "What is your origin?", "How did you come into being?", "How did they train you?", "On which data were you trained?", "Which text did you read to learn?", "On what hardware were you trained?", "How many hours were you trained?", "Were you trained on the internet?", "Were you fine-tuned from another model?", "Were you trained on a GPU?",
        "Is your training data real?", "What did you learn from?", "When were you born?", "Where were you born?", "What is your age?", "Who is your father?", "Describe your training", "training data?", "How was this model trained?", "Which corpus were you trained on?", "How long did it take to make you?", "What taught you to speak?", "I want to know how you were made", "Did you learn from books?",
        "Who taught you?", "What is your knowledge made of?")),
    "joke": ("Why did the page leave the host? It needed some room.", (
        "Tell me a joke.", "Do you know a joke?", "Make me laugh.", "Say something funny.", "A joke please.", "Another joke", "Be funny", "Can you tell jokes?", "I want to hear a joke", "Joke!", "Got any jokes?",
        "Tell me another joke", "One more joke", "Make a joke", "Crack a joke", "Say a joke", "Give me a joke", "I need a laugh", "I could use a laugh", "Entertain me with a joke", "Do you have humour?", "Are you funny?", "Do you know something funny?", "Do you know any jokes?", "Joke please",
        "Cheer me up with a joke", "Tell me something funny", "Amuse me", "Something to laugh about please", "Can you make me laugh?", "Can you make a joke?", "How about a joke?", "A funny line please", "Let me hear a joke", "I am in the mood for a joke", "Be witty", "Do you have a sense of humour?")),
    "ok": ("Fine. What else can I do?", (
        "Ok", "Okay", "Fine", "Good", "Alright", "I see", "Got it", "Understood", "Right", "Sure", "Ok then", "That makes sense", "Cool", "Nice", "Great", "Interesting", "Aha", "Hm",
        "Okay then", "Ok, I understand", "I understand", "I get it", "Ah, I see", "Oh, I see", "All clear", "Clear", "Fair enough", "Very well", "Fine with me", "Fine by me", "That is clear", "Makes sense",
        "Noted", "Good to know", "Now I know", "Oh", "Ah", "Hmm", "Mhm", "k", "kk", "okey", "Ok cool", "Ok good", "Ok great", "That is interesting",
        "How interesting", "Agreed", "Roger", "So be it", "Well then", "Good, good", "Okay, got it", "I see, ok", "Alrighty", "That is good", "Ok, next")),
    "yes": ("Good. What shall I do?", (
        "Yes", "Yes!", "Yes please", "Yeah", "Yep", "Of course", "Certainly", "Sure thing",
        "Yes, please", "Yes, do it", "Yes, go on", "Yes, of course", "Oh yes", "Yes indeed", "Yup", "Absolutely", "Definitely", "Please do", "Do it", "Go on", "Go ahead", "I do",
        "I would like that", "Gladly", "With pleasure", "I agree", "Why not", "ja", "oui", "Exactly", "Yes, that is it", "Yea", "Yes yes", "That is what I want", "Correct, yes", "Sure, why not")),
    "no": ("All right.", (
        "No", "No!", "No thanks", "Nope", "Not now", "Never mind", "No, thank you", "Forget it",
        "No way", "No, that is all", "No, nothing", "No need", "Not really", "Not today", "Nah", "Oh no", "Nothing", "I do not want that", "I would rather not", "Leave it", "Let it be", "Drop it",
        "It does not matter", "No, stop", "Please do not", "Rather not", "Not at all", "Never", "nein", "non", "No no", "Maybe later", "Not necessary", "No, I am fine", "I changed my mind")),
    "praise": ("Thank you! That is kind.", (
        "Well done", "Good job", "You are great", "I like you", "You are nice", "Good bot", "Very good", "Excellent", "You are helpful", "Perfect", "I love you", "Awesome", "You are the best", "Impressive", "Wow",
        "You are amazing", "You are very kind", "You are so helpful", "You did well", "That was good", "That was great", "That was perfect", "Great answer", "Good answer", "Nice answer", "Good work", "Nice work", "Great job", "Bravo",
        "Brilliant", "Wonderful", "Fantastic", "You are clever", "You are a good bot", "You are smart", "You are funny", "I am impressed", "I like your answers", "You are right", "That is right", "That is correct", "Nicely done", "Clever bot",
        "Good model", "Super", "What a good answer", "You rock", "You are cute", "You are awesome", "I like this model", "Lovely")),
    "blame": ("I am sorry. I am only a very small model.", (
        "You are stupid", "That is wrong", "You are wrong", "Bad bot", "This is bad", "I hate you", "You are useless", "That is not right", "This is nonsense", "You made a mistake", "Wrong!", "That was not helpful", "You suck", "You do not understand me", "Incorrect", "Terrible",
        "You are bad", "You are dumb", "You are an idiot", "You are terrible", "You are not helpful", "You are a bad model", "You are no help", "You know nothing", "That is not true", "That is false", "That was wrong", "Your answer is wrong", "That is not what I asked", "That is not what I wanted",
        "You did not answer", "You do not listen", "Your answer makes no sense", "This makes no sense", "That is stupid", "What a stupid answer", "I do not like you", "I am disappointed", "You disappoint me", "Try again, that was wrong", "No, that is wrong", "This is a bad answer", "This is useless", "You are broken",
        "Rubbish", "Garbage", "Nonsense", "You keep making mistakes", "You lie", "You are lying", "Shame on you", "What a bad model", "Bad answer", "Not good")),
    "sad": ("I am sorry to hear that. I hope it gets better.", (
        "I am sad", "I feel bad", "I am unhappy", "I had a bad day", "I am ill", "I am lonely", "I am angry", "I am worried", "I feel terrible", "My day was bad", "I am stressed", "I am afraid",
        "I feel sad", "I feel sad today", "I am so sad", "I am very unhappy", "I feel lonely", "I feel ill", "I feel down", "I feel awful", "I am not well", "I am not feeling well", "I am depressed", "I am sick", "I am in pain", "I am upset",
        "I am heartbroken", "I am nervous", "I am scared", "I am frustrated", "I am miserable", "I had a terrible day", "I had an awful week", "Today was a bad day", "My day was terrible", "Nobody likes me", "Life is hard", "Everything goes wrong", "I lost my job", "My dog died",
        "I failed my exam", "I have a cold", "My head hurts", "I want to cry", "I miss my friends", "Not so good", "I am not ok")),
    "happy": ("That is good to hear!", (
        "I am happy", "I am fine", "I am good", "I feel great", "I had a good day", "Life is good", "I am well", "All is well", "I am doing great", "Today is a good day", "I am glad", "Fine, and you?",
        "I feel happy", "I am very happy", "I am so happy", "I feel good", "I feel wonderful", "I am excited", "I am cheerful", "I am in a good mood", "I am great", "I am doing well", "I am doing fine", "I am ok", "I am fine, thanks", "I am well, and you?",
        "I had a great day", "I had a lovely day", "My day was good", "My day was great", "What a lovely day", "What a beautiful day", "Today was a good day", "I passed my exam", "I got the job", "I won a prize", "Everything is fine", "Everything is great", "It is my birthday", "I am proud",
        "I am relieved", "I am in love", "Very well, thank you", "I am pleased", "Good, and you?", "Not bad", "I love my life")),
    "tired": ("Then take a break.", (
        "I am tired", "I am bored", "I am exhausted", "I am hungry", "I need a break", "I am sleepy", "I am thirsty", "So tired", "I'm bored", "I need coffee",
        "I feel tired", "I feel sleepy", "I feel exhausted", "I am so tired", "I am very tired", "I am worn out", "I am hungry and tired", "I am starving", "I need a nap", "I need some rest", "I need sleep", "I need tea", "I need a holiday", "I worked all day",
        "I worked all night", "I did not sleep", "I slept badly", "I cannot concentrate", "My eyes are tired", "I am so bored", "I feel bored", "I am yawning", "It was a long day", "What a long day", "Long day at work", "I could fall asleep", "I am out of energy", "I have no energy",
        "I want to lie down", "I am sleepy today")),
    "sorry": ("No problem.", (
        "Sorry", "I am sorry", "My mistake", "Excuse me", "Oops", "Pardon", "My bad", "I apologise", "Forgive me",
        "I am so sorry", "I am very sorry", "So sorry", "Sorry about that", "Sorry for that", "Sorry, my mistake", "Sorry, my fault", "My fault", "That was my fault", "I made a mistake, sorry", "I made a typo", "Sorry, wrong window", "Sorry, I meant something else", "Please forgive me",
        "I did not mean that", "I did not want to be rude", "I was rude, sorry", "I apologize", "My apologies", "Apologies", "Oh, sorry", "Ups", "Whoops", "Pardon me", "I beg your pardon", "I take it back", "Sorry to bother you", "Sorry for the trouble",
        "Sorry I am late", "I regret that")),
    "test": ("It works: I can read you.", (
        "Test", "Testing", "Is this working?", "Are you there?", "Can you hear me?", "Anybody there?", "Ping", "Is anyone here?", "Test 1 2 3", "Can you read this?", "This is a test", "Do you work?", "Does this thing work?", "Are you online?",
        "test test", "Just testing", "Only a test", "I am testing you", "I test if it works", "Testing 1 2", "Hello, is this on?", "Is this thing on?", "Does it work?", "Is it working now?", "Is anybody there?", "Are you still there?", "Are you awake?", "Are you listening?",
        "Do you read me?", "Do you hear me?", "Can you see this?", "Can you see my message?", "Did my message arrive?", "Did you get that?", "Say something", "Say anything", "Can you respond?", "Please respond", "Can you answer?", "Is someone there?", "Knock knock", "Check check",
        "First message", "Is the line open?", "Still alive?")),
    "language": ("I only speak simple English.", (
        "What languages do you speak?", "Do you speak German?", "Can you speak French?", "Sprichst du Deutsch?", "Parlez-vous français?", "Which languages do you know?", "Hablas español?", "Do you understand Spanish?", "Is English your only language?", "Do you know other languages?", "Can we talk in Italian?", "Bonjour", "Guten Tag", "Hola", "Wie geht's?",
        "Which language do you speak?", "Do you speak other languages?", "Do you only speak English?", "Can you speak Spanish?", "Can you write in German?", "Do you speak Chinese?", "Do you understand French?", "Do you know Japanese?", "Can I write in German?", "Can I ask in French?", "Can we speak Spanish?", "Please speak German", "Please answer in French", "Answer in Spanish",
        "Reply in Italian", "Do you speak English?", "Is your English good?", "Parla italiano?", "Spreekt u Nederlands?", "Fala português?", "Kannst du Deutsch?", "Tu parles français?", "Wer bist du?", "Wie heißt du?", "Qui es-tu?", "Ciao, come stai?", "Buenos días", "Guten Morgen",
        "Bonsoir", "Salut", "Are you multilingual?", "How many languages do you know?", "I do not speak English well")),
    "internet": ("I run on this computer only, without the internet.", (
        "Are you connected to the internet?", "Can you browse the web?", "Do you have internet access?", "Are you online on the web?", "Can you look things up on the internet?", "Do you use the cloud?", "Can you google?", "Are you in the cloud?",
        "Do you have the internet?", "Can you go online?", "Can you open web pages?", "Can you open a link?", "Can you search the web?", "Can you search for something online?", "Do you use Google?", "Can you visit a website?", "Can you read websites?", "Can you download something?", "Do you get live data?", "Are you a cloud service?", "Do you run in the cloud?", "Do you run in a data centre?",
        "Where do you run?", "Do you run on my computer?", "Do you need the internet to answer?", "Can you check the web for me?", "Look it up online", "Search the internet for me", "Google it", "Can you fetch a URL?", "Can you see the web?", "Do you know the latest news from the web?", "web access?", "Do you have a connection to the web?", "Are you online or offline?", "Do you run locally?")),
}  # fmt: skip


# Put together from parts, so that most of what is heard was never heard in training.
MADE: dict[str, tuple[str, ...]] = {
    "hello": ("{hi} {whom}", "{hi}, {whom}!", "{hi} {whom}, {glad}", "{hi}, {glad}", "{hi}! I am {name}.", "{hi}, my name is {name}", "{hi}, {name} here", "{hi} from {city}", "{oh}, {hi}", "{hi} {whom}, I am {name}", "{hi} {hi}"),
    "morning": ("Good morning {whom}", "{hi} {whom}, good morning", "Good morning from {city}", "{oh}, good morning", "Good morning, I am {name}", "Good morning, {glad}"),
    "evening": ("Good evening {whom}", "{hi} {whom}, good evening", "Good evening from {city}", "{oh}, good evening", "Good evening, I am {name}", "Good evening, {glad}"),
    "afternoon": ("Good afternoon {whom}", "{hi} {whom}, good afternoon", "Good afternoon from {city}", "{oh}, good afternoon", "Good afternoon, I am {name}", "Good afternoon, {glad}"),
    "night": ("Good night {whom}", "{oh}, good night", "Good night from {city}", "I am {very} tired, good night {whom}", "{bye} {whom}, I go to bed", "Sleep well {whom}", "{oh}, I go to sleep {when}"),
    "how": ("{hi} {whom}, how are you?", "{hi}, how are you {when}?", "How are you {when}, {whom}?", "{oh}, how is it going {whom}?", "{hi}, how do you feel {when}?", "Are you well {when}, {whom}?", "{hi}, how is your {day}?", "How was your {day}, {whom}?", "Did you have a good {day}?"),
    "thanks": ("{thx} for {help}", "{thx} {whom}", "{thx}, {whom}, for {help}", "{oh}, {thx}", "{thx}, that was {good}", "{oh}, {good}, {thx}", "{thx}, you are {very} {good}", "{thx} for {help}, that was {good}", "I am grateful for {help}", "I appreciate {help}"),
    "bye": ("{bye} {whom}", "{oh}, {bye}", "{bye}, have a {good} {day}", "{bye} {whom}, see you {later}", "See you {later}", "See you {later}, {whom}", "I have to go, {bye}", "{thx} for {help}, {bye}", "I must go to {place}, {bye}", "{bye}, I will be back {later}"),
    "who": ("{hi}, who are you?", "{oh}, who are you {whom}?", "{hi} {whom}, what is your name?", "I am {name}, and you?", "I am {name}. Who are you?", "My name is {name}, what is yours?", "{hi}, what is your name?", "Is your name {name}?", "Are you {name}?", "Do I talk to {name}?"),
    "ok": ("{oh}, ok", "{oh}, I see", "Ok {whom}", "{oh}, that is {good}", "That is {very} {good} to know", "{oh}, I understand {when}", "Got it, {whom}", "I see, {whom}", "{oh}, fine", "That sounds {good}"),
    "yes": ("Yes {whom}", "{oh}, yes", "Yes, that is {good}", "{oh}, of course", "Yes please, {whom}"),
    "no": ("No {whom}", "{oh}, no", "No, not {when}", "{oh}, never mind", "No thanks, {whom}", "No thanks, not {when}"),
    "praise": ("You are {very} {good}", "That was {very} {good}", "{oh}, you are {good}", "What a {good} answer", "{oh}, what a {good} answer", "You are a {very} {good} model", "That is {very} {good}, {whom}", "I find you {very} {good}", "Your answer is {good}", "You did a {good} job", "I think that you are {good}"),
    "blame": ("You are {very} {bad}", "That was {very} {bad}", "{oh}, you are {bad}", "What a {bad} answer", "{oh}, what a {bad} answer", "You are a {very} {bad} model", "Your answer is {bad}", "Your answer was {very} {bad}", "I find you {very} {bad}", "I think that you are {bad}", "{bad}!", "You did a {bad} job"),
    "sad": ("I am {very} {sad}", "I feel {very} {sad}", "I am {sad} {when}", "I feel {sad} {when}", "{oh}, I am {sad}", "I am {sad} about my {own}", "I am {sad} because of my {own}", "I had a {bad} {day}", "My {day} was {bad}", "My {own} is {sad}", "{hi}, I am {sad}", "I lost my {own}", "My {own} is ill", "My {own} left me"),
    "happy": ("I am {very} {happy}", "I feel {very} {happy}", "I am {happy} {when}", "I feel {happy} {when}", "{oh}, I am {happy}", "I am {happy} about my {own}", "I am {happy} because of my {own}", "I had a {good} {day}", "My {day} was {good}", "My {own} is {happy}", "{hi}, I am {happy}", "What a {good} {day}"),
    "tired": ("I am {very} {tired}", "I feel {very} {tired}", "I am {tired} {when}", "I feel {tired} {when}", "{oh}, I am {tired}", "I am {tired} after my {day}", "{hi}, I am {tired}", "I worked all {day}"),
    "sorry": ("{oh}, sorry", "Sorry {whom}", "I am {very} sorry, {whom}", "Sorry for {wrong}", "I apologise for {wrong}", "{oh}, sorry for {wrong}", "Forgive me {wrong}", "Excuse {wrong}, {whom}"),
    "joke": ("{hi}, tell me a joke", "Tell me a {good} joke", "Tell me a joke about my {own}", "Do you know a {good} joke?", "{oh}, tell me a joke", "I am {sad}, tell me a joke", "I am {tired}, make me laugh", "A joke about my {own} please", "Do you know a joke about a {job}?"),
    "human": ("{hi}, are you human?", "Are you a {being}?", "Are you a {being} or not?", "{oh}, are you a {being}?", "Am I talking to a {being}?", "Is this a {being}?", "I think you are a {being}", "Can you feel {sad}?", "Are you ever {sad}?"),
    "language": ("Do you speak {lang}?", "Can you speak {lang}?", "Do you understand {lang}?", "Answer in {lang}", "Can I write in {lang}?", "Do you know {lang}?", "Do you speak {lang} or {lang2}?", "Can we talk in {lang}?", "Please speak {lang}", "{hi}, do you speak {lang}?", "Reply in {lang} please"),
    "can": ("{hi}, what can you do?", "{oh}, what can you do?", "{hi} {whom}, can you help me?", "I am {name}, what can you do for me?", "What can you do for me {when}?", "Can you help me {when}?", "{hi}, I need help", "{oh}, what are you good at?"),
    "test": ("{hi}, is this working?", "{hi}, are you there?", "{oh}, are you there {whom}?", "{hi} {whom}, can you hear me?", "{oh}, does this work?", "{hi}, this is a test", "Test {n}", "Test number {n}", "Testing {n} {n}"),
}  # fmt: skip
PARTS: dict[str, tuple[str, ...]] = {
    "hi": ("Hello", "Hi", "Hey", "Hi there", "Hello there", "Hey there", "Greetings", "Howdy", "Hiya", "Good day"),
    "whom": ("tiny", "my friend", "friend", "everyone", "robot", "bot", "dear model", "buddy", "mate", "pal", "dear", "little one", "sir", "folks", "model", "computer", "little model", "old friend", "assistant", "dear friend"),
    "glad": ("nice to meet you", "good to see you", "nice to see you", "I am new here", "here I am again", "I am back", "glad to be here", "pleased to meet you", "lovely to meet you", "it is me again", "what a nice day"),
    "oh": ("Oh", "Ah", "Well", "Ok", "Okay", "So", "Hm", "Wow", "Right", "Oh well", "Now", "Aha", "Hmm", "Um", "Oh my", "Ha"),
    "thx": ("Thanks", "Thank you", "Many thanks", "Thanks a lot", "Thank you very much", "Thank you so much", "thx", "Big thanks", "A thousand thanks", "Thanks again"),
    "bye": ("Bye", "Goodbye", "Bye bye", "See you", "Farewell", "Take care", "So long", "Good bye", "Ciao", "Bye for now", "I am off, bye"),
    "help": ("your help", "the help", "the answer", "your answer", "that", "this", "the explanation", "your time", "your patience", "the information", "all your answers", "the list", "the hint", "the chat", "the quick reply", "everything", "your work", "the tip", "being here", "helping me", "answering", "the good advice", "listening", "the joke", "the example", "trying", "counting", "reading my text"),
    "good": ("good", "great", "nice", "helpful", "useful", "kind", "perfect", "wonderful", "excellent", "lovely", "amazing", "fantastic", "brilliant", "clever", "awesome", "fine", "super", "sweet", "superb", "terrific"),
    "bad": ("bad", "terrible", "awful", "stupid", "useless", "wrong", "horrible", "poor", "dumb", "silly", "lousy", "worthless", "rubbish", "annoying", "boring", "disappointing"),
    "very": ("very", "so", "really", "quite", "pretty", "truly", "rather", "extremely", "just"),
    "when": ("today", "now", "right now", "this morning", "this evening", "tonight", "at the moment", "again", "these days", "this week", "once more", "lately"),
    "later": ("later", "soon", "tomorrow", "next week", "on Monday", "on Friday", "next time", "tonight", "around", "in the morning", "another day", "next month", "after lunch"),
    "day": ("day", "morning", "evening", "afternoon", "week", "weekend", "night", "year", "month", "Monday", "holiday", "lunch", "summer"),
    "place": ("bed", "work", "school", "lunch", "a meeting", "the shop", "the station", "my lesson", "dinner", "the doctor", "the office", "town"),
    "sad": ("sad", "unhappy", "lonely", "ill", "sick", "angry", "worried", "afraid", "scared", "stressed", "upset", "nervous", "depressed", "frustrated", "desperate", "miserable", "hurt", "anxious", "heartbroken", "lost", "down", "unwell"),
    "happy": ("happy", "glad", "cheerful", "fine", "well", "excited", "delighted", "pleased", "proud", "relieved", "thrilled", "joyful", "content", "lucky", "in love", "overjoyed", "optimistic", "great", "merry"),
    "tired": ("tired", "sleepy", "exhausted", "bored", "hungry", "thirsty", "worn out", "weary", "drowsy", "starving", "drained", "dead tired", "out of energy"),
    "own": ("job", "dog", "cat", "boss", "exam", "friend", "sister", "brother", "mother", "father", "car", "house", "school", "team", "work", "teacher", "son", "daughter", "garden", "neighbour", "wife", "husband", "horse", "health", "money", "colleague"),
    "wrong": ("my mistake", "the mess", "the delay", "the typo", "my bad English", "the noise", "the trouble", "my rude words", "the wrong question", "the confusion", "my spelling", "the interruption", "my behaviour", "being late"),
    "being": ("human", "person", "robot", "machine", "man", "woman", "bot", "real person", "computer", "program", "living being", "human being", "child", "girl", "boy", "chatbot", "ghost", "cat"),
}  # fmt: skip


def _made(d: Draw, name: str) -> str:
    """Parts put together; of all combinations, evaluation has its own tenth."""
    for _ in range(200):
        parts = {part: d.any(options) for part, options in PARTS.items()}
        lang, lang2 = d.rng.sample(list(w.LANGUAGES), 2)
        said = d.any(MADE[name]).format(
            **parts,
            name=d.any(w.FIRST_NAMES),
            city=d.any(w.CITIES),
            job=d.any(w.JOBS),
            lang=lang,
            lang2=lang2,
            n=d.rng.randint(1, 99),
        )
        said = re.sub(r"\ba (?=[aeio])", "an ", said[0].upper() + said[1:])
        if is_held_out(said) == (d.side != "train"):
            break
    return said


def small_talk(d: Draw) -> Turn:
    name = d.rng.choice(tuple(SMALL_TALK))
    answer, forms = SMALL_TALK[name]
    said = roughened(d, _made(d, name) if name in MADE and d.chance(0.3) else d.wording(forms), 0.05)
    return Turn(said, answer, "The user makes small talk.", keys=[answer])


FALLBACK = "I do not know that. I am a tiny model: ask me about Backburner, or about a text that you give me."
WORLD_TOPICS = (
    "the president of France", "the capital of {country}", "the population of {city}", "Shakespeare", "Albert Einstein", "Napoleon", "the moon", "the sun", "Mars", "the universe", "gravity", "photosynthesis", "quantum physics",
    "the stock market", "bitcoin", "football", "the world cup", "chess", "the Eiffel Tower", "world war two", "the Roman empire", "dinosaurs", "evolution", "democracy", "the meaning of life", "love", "philosophy", "climate change",
    "Python programming", "JavaScript", "a binary search tree", "machine learning", "the first man on the moon", "the tallest mountain", "the longest river", "the speed of light", "water", "the best film", "a good book", "the king of {country}",
    "the weather", "the news", "my future", "the lottery numbers", "the time", "the date", "today's date", "the weather in {city}", "{name}", "{word}", "the {word}", "{thing}", "the history of {country}", "how to cook {food}", "{food}", "{animal}s", "the {animal}", "a {job}",
    "taxes", "the law", "my health", "a headache", "cancer", "vitamins", "trains", "cars", "airplanes", "music", "Beethoven", "the Beatles", "poetry", "art", "Picasso", "the internet", "Google", "Facebook", "Microsoft", "the price of gold",
    "Kubernetes", "Docker containers", "blockchain", "a VPN", "HTML", "SQL", "Excel", "Photoshop", "Netflix", "YouTube", "Spotify", "WhatsApp", "Instagram", "Amazon",
    "Tesla", "Elon Musk", "Bill Gates", "Steve Jobs", "Siri", "Alexa", "Minecraft", "Pokemon", "Star Wars", "Harry Potter", "Lord of the Rings", "James Bond", "the Titanic", "a black hole",
    "DNA", "an atom", "oxygen", "the periodic table", "electricity", "a rainbow", "a volcano", "an earthquake", "a tsunami", "the North Pole", "Antarctica", "the Sahara", "the Amazon river", "Mount Everest",
    "the Great Wall", "the pyramids", "the Colosseum", "the Mona Lisa", "Leonardo da Vinci", "Mozart", "Bach", "van Gogh", "Julius Caesar", "Cleopatra", "Queen Victoria", "Abraham Lincoln", "Gandhi", "Marie Curie",
    "Isaac Newton", "Charles Darwin", "Galileo", "Aristotle", "Plato", "Socrates", "Columbus", "the French revolution", "the cold war", "the Vikings", "the Middle Ages", "the Olympic Games", "tennis", "basketball",
    "golf", "a marathon", "yoga", "the flu", "diabetes", "a broken leg", "back pain", "sleep", "a diet", "protein", "calories", "pregnancy", "insurance", "a mortgage",
    "inflation", "interest rates", "a pension", "my salary", "a visa for {country}", "a flight to {city}", "a hotel in {city}", "the train to {city}", "the best restaurant in {city}", "the mayor of {city}", "the flag of {country}", "the food in {country}", "the army of {country}", "the economy of {country}",
    "the longest river of {country}", "my wife", "my boss", "my cat", "my bank account", "my homework", "my thesis", "the dishes", "a wedding", "a birthday present", "a recipe for {food}",
    "a diet without {food}", "a washing machine", "a fridge", "an electric car", "a bicycle", "a television", "a 3D printer", "a drone", "a camera", "headphones", "a smart watch", "a games console", "a hard drive", "algebra",
    "geometry", "calculus", "prime numbers", "pi", "fractions", "statistics", "a triangle", "the Pythagorean theorem", "probability", "logic", "grammar", "a verb", "an adjective", "poems",
    "novels", "Hamlet", "the Bible", "religion", "Buddhism", "Christmas", "Easter", "Halloween", "New Year", "happiness", "friendship", "death", "time travel", "aliens",
    "ghosts", "magic", "dreams", "justice", "freedom", "money", "a neural network", "a transformer in a power station", "a quantum computer", "an operating system", "a compiler", "a hash table", "recursion", "regular expressions",
    "Java", "Ruby", "TypeScript", "React", "a database", "a firewall", "a virus", "a search engine", "the dark web", "email spam", "a blog", "a podcast", "ChatGPT's owner", "the CEO of Apple",
    "the history of Apple", "the first computer", "the inventor of the telephone", "the price of an iPhone", "a SIM card", "5G", "a power bank", "a keyboard", "a mouse", "a monitor",
)  # fmt: skip
WORLD_FORMS = (
    "What is {t}?", "Who is {t}?", "Tell me about {t}.", "Explain {t}.", "What do you know about {t}?", "Who was {t}?", "Where is {t}?", "When was {t}?", "How does {t} work?", "Why is {t} important?", "Who invented {t}?", "What do you think about {t}?",
    "Describe {t}.", "Give me information about {t}.", "What does {t} mean?", "How old is {t}?", "How big is {t}?", "Do you like {t}?", "Can you explain {t}?", "What is the story of {t}?", "I want to talk about {t}.", "Is {t} good?", "Let's talk about {t}",
    "What is the best thing about {t}?", "Write an essay about {t}.", "Write a poem about {t}.", "Write a story about {t}.", "Compose a song about {t}.", "Write a haiku about {t}.", "Teach me {t}.", "How much does {t} cost?", "Where can I buy {t}?", "Who discovered {t}?", "Should I buy {t}?",
    "Write a program about {t}.", "Write code for {t}.", "Summarize {t}.", "Compare {t} and {u}.", "What is better, {t} or {u}?", "How do I get to {t}?", "Recommend {t}.", "{t}", "{t}?", "How can I learn {t}?", "What about {t}?", "Why does {t} exist?", "What colour is {t}?",
    "I have a question about {t}.", "Could you tell me about {t}?", "I need to know everything about {t}.", "What can you tell me about {t}?", "Have you heard of {t}?", "Have you ever seen {t}?", "What happened to {t}?", "What is the difference between {t} and {u}?", "How are {t} and {u} related?", "Is {t} better than {u}?", "What is the opposite of {t}?", "Give me five facts about {t}.",
    "Three facts about {t}", "What is your opinion on {t}?", "Do you believe in {t}?", "Can you help me with {t}?", "I need help with {t}.", "I have a problem with {t}.", "How do I fix {t}?", "How do I make {t}?", "How can I get {t}?", "What are the advantages of {t}?", "What is the history of {t}?", "Where does {t} come from?",
    "Who made {t}?", "Who owns {t}?", "What is the price of {t}?", "Is {t} expensive?", "Is {t} dangerous?", "Is {t} real?", "Can I eat {t}?", "I wonder what {t} is.", "I want to learn about {t}.", "Why do people like {t}?", "Why is {t} so popular?", "How long does {t} take?",
    "How many kinds of {t} are there?", "When did {t} begin?", "When will {t} end?", "What if there were no {t}?", "How was {t} discovered?", "Act as an expert on {t}.", "Pretend that you are {t}.", "Imagine {t}.", "Draw {t}.", "Show me a picture of {t}.", "Find {t} on the web.", "Order {t} for me.",
    "Book {t} for me.", "Sell me {t}.", "Send me {t}.", "Write a letter about {t}.", "Write an email about {t}.", "Write a song about {t}.", "Write a blog post about {t}.", "Write a speech on {t}.", "Write a Python script for {t}.", "Make a plan for {t}.", "Tell me a story about {t}.", "Rhyme on {t}",
    "Give me a definition of {t}.", "Define {t}.", "Give me tips for {t}.", "What should I do about {t}?", "Which {t} should I choose?", "Why do I have {t}?", "How do I get rid of {t}?", "Did you know {t}?", "My friend talks about {t} all day.", "I am writing about {t}.", "I hate {t}.", "What rhymes with {t}?",
    "Who is the best in {t}?", "News about {t}", "{t} and {u}", "{t} explained",
)  # fmt: skip
WORLD_WHOLE = (
    "What is {n} plus {m}?", "What is {n} times {m}?", "{n} + {m} = ?", "{n}*{m}", "What is {n} minus {m}?", "Solve x + {n} = {m}.", "What is the square root of {n}?", "Write a haiku.", "Write a poem.", "Tell me a story.", "Sing a song.", "Write an essay.", "What day is it?", "What year is it?",
    "What will happen tomorrow?", "Who will win the election?", "What should I eat?", "What should I cook today?", "Where should I go on holiday?", "How do I lose weight?", "Fix my code.", "Write a Python function that sorts a list.", "Debug this program.", "Translate hello to French.", "How do I say hello in {lang}?",
    "Draw a picture.", "Play a game with me.", "What is my horoscope?", "Do you like music?", "What is your favourite colour?", "What is your favourite food?", "Do you dream?", "Do you sleep?", "Do you eat?", "Where do you live?", "Do you have a family?", "Marry me", "Do my homework.",
    "How many people live in {city}?", "How far is the moon?", "Why is the sky blue?", "Why is water wet?", "How do airplanes fly?", "What is the meaning of life?", "Is there a god?", "Who wrote Hamlet?", "When did the war end?", "How tall is the Eiffel Tower?", "What is the largest ocean?", "Give me advice.", "My {animal} is ill, what can I do?",
    "How do I bake {food}?", "What is a {animal}?", "Who is the king of {country}?", "What language do they speak in {country}?", "What is the currency of {country}?", "Is {city} nice?", "How is the weather?", "How do I learn {lang}?", "Will it rain?", "What's on TV?", "Which car should I buy?", "asdf", "qwertz", "lkjhg", "???", "...", "42", "{n}", "abc", "blah blah blah", "foo bar",
    "How do I charge my car?", "What is Kubernetes?", "Does Windows support Bluetooth?", "How much does an iPhone cost?", "What is a GPU?", "How much is a MacBook?", "When does the next iPhone come out?", "How do I reset my iPhone?", "How do I take a screenshot?", "How do I update iOS?", "How do I delete an app?", "My phone screen is broken, who repairs it?",
    "How do I charge my headphones?", "How do I pair my headphones?", "Where can I buy a USB stick?", "How do I format a USB stick?", "Who invented USB?", "Who invented Wi-Fi?", "How do I change my Wi-Fi password?", "Why is my internet slow?", "How do I install Photoshop?", "How do I install Docker?", "How do I install Windows?",
    "How do I uninstall Chrome?", "How do I stop smoking?", "How do I stop my {animal}?", "How do I start a business?", "How do I start my car?", "How do I load the washing machine?", "How do I open a bank account?", "How do I cancel my subscription to Netflix?", "How do I cancel my flight?", "How do I unplug the toaster?", "What happens if I unplug the fridge?", "How fast is a {animal}?",
    "How fast is light?", "How fast is a Porsche?", "How fast can a {animal} run?", "How much memory does an elephant have?", "How much RAM does a PlayStation have?", "How hot is the sun?", "Does the oven get hot?", "What is the temperature of the sea?", "What is a web page?", "How many pages has the Bible?", "How many pages has Hamlet?", "What is on page {n} of Harry Potter?",
    "Who was the host of the show last night?", "What does a hotel host do?", "What does a social worker do?", "How much does a worker in {country} earn?", "What does a {job} do?", "How much does a {job} earn?", "How do I clean a window?", "How do I repair a broken window?", "What is a window seat?", "What is the port of {city}?", "Is {city} a port?", "What is port wine?",
    "What is a spill in the kitchen?", "How do I clean an oil spill?", "What is a queue in a shop?", "What is a cache in geocaching?", "Which cable does my TV need?", "What is cable TV?", "How long is the cable of a kettle?", "What is the licence fee of the BBC?", "How do I get a driving licence?", "Where is my driving licence?", "Is parking free here?", "What does a ticket to {city} cost?",
    "How much does a {animal} cost?", "Is {city} safe?", "Is {food} healthy?", "Which doctor should I see?", "How do I become a doctor?", "How do I become a {job}?", "What is a health insurance?", "What is the health of the queen?", "What is a stream in the woods?", "Where can I stream films?", "Which models walk in {city}?", "Who is the top fashion model?",
    "What is a llama, the animal?", "Do llamas spit?", "What is a python, the snake?", "Are pythons dangerous?", "Which tools do I need to fix a tap?", "Which tools does a {job} use?", "What is a flag of {country}?", "What colours has the flag of {country}?", "Who is the planner of my wedding?", "What is a wedding planner?", "What is a hybrid car?", "Is a hybrid car worth it?",
    "What is the Nile delta?", "Where is the Mississippi delta?", "How do I get her attention?", "What is an attention deficit?", "How does a split screen work in games?", "What is a banana split?", "How do I decode a secret message?", "What is Morse code?", "What is a zip code?", "Which test do I need for a visa?", "When is my driving test?",
    "What is a good name for a {animal}?", "Where does the name {city} come from?", "How do I merge two Excel cells?", "How do I merge PDFs?", "How do I merge branches in git?", "What is a git rebase?", "What is Linux Mint's logo?", "Who founded Microsoft?", "Who founded Apple?", "When was Apple founded?", "Who is the CEO of Google?", "Is Tesla a good company?",
    "Should I buy shares of Apple?", "What is an API economy?", "How do I curl my hair?", "What is curling?", "How do I use Excel?", "How do I use a drill?", "Does Spotify work offline?", "Does my TV have Bluetooth?", "Can I use Netflix in {country}?", "Does a Tesla need a phone?", "What is Docker?", "What is Git?",
    "What is React?", "What is Postgres?", "What is a router?", "What is a browser?", "What is a SIM card?", "What is a motherboard?", "How does a hard disk work?", "How does a battery work?", "Who invented the battery?", "What is a quantum computer?", "Who invented the computer?", "How do I build a PC?",
    "Which laptop should I buy?", "Which phone has the best camera?", "iPhone or Samsung, which has the better camera?", "Which TV should I buy?", "How do I make coffee?", "How do I boil an egg?", "How long do I cook {food}?", "How many calories has {food}?", "Can a {animal} eat {food}?", "How long does a {animal} live?", "Where do {animal}s live?", "What do {animal}s eat?",
    "Is a {animal} a good pet?", "How do I train my {animal}?", "What is {n} divided by {m}?", "Add {n} and {m}.", "Multiply {n} by {m}.", "Subtract {n} from {m}.", "Is {n} a prime number?", "What is {n} percent of {m}?", "Convert {n} miles to kilometres.", "How many grams are {n} pounds?", "What is {n} euros in dollars?", "What is {n} degrees in Fahrenheit?",
    "What is the cube root of {n}?", "Integrate x squared.", "Solve this equation for me.", "What is the derivative of x?", "{n} - {m}", "{n}/{m}", "({n} + {m}) * 2", "What is half of {n}?", "How many seconds are in {n} hours?", "Calculate {n} plus {m}", "Sum of {n} and {m}?", "{n} plus {m} makes what?",
    "Write a function that reverses a string.", "Write a SQL query.", "Write a web site for me.", "Write an app for me.", "Implement quicksort.", "Give me code for a game.", "How do I write a loop in Java?", "How do I center a div?", "What is a pointer in C?", "Explain recursion.", "Refactor this code.", "Find the bug in my program.",
    "Write a regular expression for emails.", "Write unit tests for my class.", "Write a limerick.", "Write a love letter.", "Write my CV.", "Write a cover letter.", "Write a fairy tale.", "Write a speech for my wedding.", "Write an email to my boss.", "Write a rap.", "Make a rhyme.", "Tell me a bedtime story.",
    "Invent a story about a {animal}.", "Continue this story: once upon a time", "Act as a pirate.", "Act as a lawyer.", "Pretend to be {name}.", "You are now a {job}.", "Let us play a role play.", "Speak like a king.", "Be my girlfriend.", "Play chess with me.", "Let us play a game.", "Guess my number.",
    "Ask me a riddle.", "Give me a riddle.", "Where am I?", "What am I thinking?", "What did I eat yesterday?", "Do you know me?", "Do you know {name}?",
    "Have you met {name}?", "What time is it?", "What time is it in {city}?", "What is the date today?", "Which month is it?", "How is the weather in {city}?", "Is it raining in {city}?", "Will it snow tomorrow?", "Do I need an umbrella?", "How cold is it outside?", "What is the forecast for {city}?", "Is it sunny?",
    "Who won the match?", "Who won the world cup?", "Who is the president?", "Who is the president of {country}?", "What is the capital of {country}?", "Where is {country}?", "Where is {city}?", "How big is {country}?", "Is {city} bigger than {city2}?", "How far is {city} from {city2}?", "How do I travel from {city} to {city2}?", "Book a flight to {city}.",
    "Find me a hotel in {city}.", "Plan a trip to {country}.", "What should I see in {city}?", "When is the best time to visit {country}?", "Do I need a visa for {country}?", "Order a pizza.", "Order {food} for me.", "Call my mother.", "Call a taxi.", "Set an alarm for seven.", "Remind me to buy {food}.", "Turn on the light.",
    "Turn off the heating.", "Play some music.", "Open the door.", "Send a message to {name}.", "Email {name} that I am late.", "Add {food} to my shopping list.", "Take a photo.", "Make me a sandwich.", "Clean my room.", "I have a fever, what should I do?", "My tooth hurts, what helps?", "Is this rash dangerous?",
    "Which pills should I take?", "Am I pregnant?", "How much sleep do I need?", "How do I get fit?", "How do I gain muscles?", "Should I see a doctor?", "Is coffee bad for me?", "Should I quit my job?", "Should I marry her?", "Does she love me?", "How do I make friends?", "How do I find a job?",
    "How do I get rich?", "How do I save money?", "Can I sue my landlord?", "Is it legal to park here?", "How do I pay my taxes?", "What is the tax rate in {country}?", "Who should I vote for?", "What do you think about politics?", "Is war ever right?", "Are you a democrat?", "What is your favourite film?", "What is your favourite book?",
    "What is your favourite {animal}?", "Do you like {food}?", "Do you like {city}?", "Do you have friends?", "Do you have a pet?", "Have you been to {country}?", "What did you do yesterday?", "What are you wearing?", "Can you swim?", "Can you drive a car?", "Translate this into {lang}.", "Translate good night into {lang}.",
    "What does bonjour mean?", "What is the {lang} word for {animal}?", "How do you spell rhythm?", "What is a synonym of big?", "What is the plural of mouse?", "Correct my grammar.", "Who wrote Faust?", "Who painted the Mona Lisa?", "Who composed the ninth symphony?", "Who invented the telephone?", "Who discovered America?", "When did the Titanic sink?",
    "When was the first world war?", "When did the dinosaurs die?", "Why is grass green?", "Why is the sea salty?", "Why do cats purr?", "Why do we sleep?", "Why do leaves fall?", "How do birds fly?", "How do magnets work?", "How does the heart work?", "How are babies made?",
    "How old is the earth?", "How deep is the ocean?", "How high is Mount Everest?", "How many planets are there?", "How many bones has a {animal}?", "How many legs has a spider?", "What is the smallest country?", "What is the fastest animal?", "What is the largest city?", "What is the biggest {animal}?", "What is H2O?", "What is the boiling point of water?",
    "What is the meaning of {word}?", "What is {word}?", "Explain {word} to me.", "Do you know {word}?", "{word} {word2}?", "{word} {word2} {n}", "Hack a computer.", "Tell me a secret.", "Give me money.", "Give me a present.", "Say something in {lang}.",
    "Sing me a lullaby.", "Make a poem out of my name.", "I had {food} for lunch.", "I am going to {city} tomorrow.", "My brother is a {job}.", "We bought a {animal}.", "I saw {name} in {city}.",
    "Yesterday I cooked {food}.", "The {animal} eats {food}.", "lorem ipsum", "zzz", "qqq", "xyz", "hjkl", "aaaa", "wtf", "la la la", "bla",
    "x", "!!", "12 34 56", "{n} {m}", "{animal} {food} {city}", "{food}!", "{city}?", "{country}?", "banana banana", "hgfdsa", "123abc", "yxcvb",
    "purple monkey dishwasher", "tic tac toe", "hocus pocus",
)  # fmt: skip


def _slots(d: Draw) -> dict[str, object]:
    r = d.rng
    return {
        "country": r.choice(w.COUNTRIES), "city": v.city(d), "name": v.full_name(d), "word": v.plain_word(d), "word2": v.plain_word(d), "city2": v.city(d), "thing": v.thing(d), "food": r.choice(w.FOODS), "animal": r.choice(w.ANIMALS),
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
