"""What the model knows about Backburner: intents, each with one answer, questions, and the names of its topic."""

# ruff: noqa: E501
# A question and its answer stand in one line each, or in a block: breaking sentences would hide how they differ.

INTENTS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    # name: (answer, questions, topics)
    "what": ("Backburner is a server for Qwen hybrid models that uses a phone on a USB-C cable as a coprocessor.", (
        "What is Backburner?", "What does Backburner do?", "Explain Backburner.", "Tell me about Backburner.", "What is this program?", "What is this?", "What kind of software is Backburner?", "Describe Backburner in one sentence.", "Can you explain what Backburner is?",
        "Give me a summary of Backburner.", "What am I using?", "What is this server?", "I have never heard of Backburner, what is it?", "What is Backburner about?", "Define Backburner.", "Summarize Backburner.", "Introduce Backburner.", "What is the Backburner project?", "So what is this thing?"),
        ("Backburner", "this program", "this project", "this server", "the Backburner project", "Backburner in general")),
    "why": ("It gives a computer with little memory room for long contexts: old pages move to the phone.", (
        "Why do I need Backburner?", "What is Backburner good for?", "What is the purpose of Backburner?", "Why would I use Backburner?", "What problem does Backburner solve?", "Why was Backburner made?", "What is the benefit of Backburner?", "What are the advantages?", "Why should I use this?",
        "What is the use of it?", "What do I gain?", "Who needs Backburner?", "What is the idea behind it?", "Which problem does it solve?", "What is the point of this?", "When is Backburner useful?", "Is Backburner useful?"),
        ("the purpose of Backburner", "the benefits", "the advantages of Backburner", "the goal", "the use case", "the motivation")),
    "how": ("Old keys and values move to the worker in pages; it answers queries over them, and the host merges the results exactly.", (
        "How does Backburner work?", "How does it work?", "Explain how Backburner works.", "How does this work inside?", "What happens inside Backburner?", "What is the principle of Backburner?", "How is it built?", "What is the architecture?", "How does it function?", "What does it do with old pages?",
        "Can you explain the mechanism?", "What is the trick?", "How do host and worker work together?", "What goes on under the hood?", "How does the memory get extended?", "How does it all work?", "Give me the technical idea.", "What is the design?"),
        ("the architecture", "the mechanism", "the design of Backburner", "the inner workings", "the principle", "how it works")),
    "worker": ("The worker is the device or process on the other end of the cable; it holds old pages and answers queries over them.", (
        "What is a worker?", "What is the worker?", "What does the worker do?", "What is the job of the worker?", "Explain the worker.", "Why is there a worker?", "What is meant by worker?", "What is the worker process?", "Who is the worker?", "What runs on the worker?", "What is the role of the worker?", "What does a worker hold?", "How does the worker help?"),
        ("the worker", "workers", "a worker", "the worker process", "the role of the worker")),
    "host": ("The host is the computer that runs the server and the model; it keeps the newest part of the context.", (
        "What is the host?", "What does the host do?", "What is a host?", "Explain the host.", "Which machine is the host?", "What runs on the host?", "What is meant by host?", "What is the role of the host?", "What does the host keep?", "What stays on the computer?"),
        ("the host", "a host", "the role of the host", "the host machine", "the host side")),
    "page": ("A page is a run of keys and values of one attention layer: 4,096 positions by default, 64 for tiny.", (
        "What is a page?", "What are pages?", "How big is a page?", "What is in a page?", "Explain pages.", "What is the page size?", "How many tokens are in a page?", "What does a page contain?", "What is meant by a page?", "How large are the pages?", "How many positions has a page?", "What do you call a page?"),
        ("pages", "a page", "the page size", "page tokens", "the size of a page", "KV pages")),
    "held": ("A held page is a page that lives on the worker; the host has given it away to save memory.", (
        "What is a held page?", "What are held pages?", "What does held mean?", "What does it mean that a page is held?", "Explain held pages.", "How many pages are held?", "What happens to held pages?", "Which pages are held?", "What is meant by held pages?", "Where are held pages?", "Where do held pages live?", "Why are pages held?", "When is a page held?"),
        ("held pages", "a held page", "holding pages", "the held pages", "pages that are held")),
    "window": ("The window is the newest part of the context; its pages stay on the host.", (
        "What is the window?", "What is a window?", "How large is the window?", "What does the window do?", "Explain the window.", "What is the window size?", "What stays in the window?", "What is meant by the window?", "How big is the window?", "Which tokens are in the window?", "What is the local window?", "What does window mean?", "How many tokens stay on the host?", "What does window-tokens mean?"),
        ("the window", "the window size", "window tokens", "the local window", "the flag window-tokens")),
    "exact": ("Yes, exactly: the tokens are the same with and without the worker.", (
        "Are the answers exact?", "Are the answers the same with a worker?", "Does the worker change the answers?", "Is it exact?", "Is it an approximation?", "Do I lose quality?", "Is the result identical?", "Does offloading change the output?", "Is the quality lower with the phone?", "Are the tokens the same?", "Is Backburner lossless?", "Is anything lost?",
        "Do the answers get worse?", "Is the output different with a worker?", "Do I get the same output without a phone?", "How exact is it?", "How accurate is the merge?", "Are results bitwise equal?", "Does it make the model dumber?", "Is the merged attention correct?"),
        ("exactness", "the quality of the answers", "correctness", "the accuracy of Backburner", "bitwise equality", "loss of quality")),
    "merge": ("The worker returns a partial output with its log-sum-exp; the host weighs and adds the partials, which is exact.", (
        "What is merging?", "How are the results merged?", "What is a partial?", "What is a merge?", "How does the merge work?", "What is log-sum-exp for?", "How are partials combined?", "What does the worker send back?", "What does the worker return?", "How is attention split?", "How can attention be split between devices?", "What is lse?", "How do you merge attention?"),
        ("the merge", "partials", "merging", "a partial", "log-sum-exp", "the merge of partials", "split attention")),
    "phone": ("It is made for an iPhone on a USB-C cable; a second process or computer can be the worker too.", (
        "Which phone do I need?", "Does it work with an iPhone?", "What phone is supported?", "Which iPhone do I need?", "Can I use my phone?", "Which phones work?", "Do I need a new iPhone?", "What kind of phone does it need?", "Is my iPhone supported?", "Can my mobile help?", "What does the phone do?", "What is the phone for?", "Why a phone?", "Does it work with an iPhone 17?",
        "Which devices are supported?", "Which devices can be workers?", "Can an iPad be a worker?"),
        ("the iPhone", "the phone", "phones", "supported phones", "supported devices", "the mobile phone", "iPhone support")),
    "android": ("Android is not supported: the phone app is for the iPhone.", (
        "Does it work with Android?", "Can I use an Android phone?", "Is Android supported?", "Will it run on a Samsung?", "Does my Pixel work?", "What about Android?", "Is there an Android app?", "Can I use a Samsung Galaxy?", "Is there an app for Android phones?", "Android?"),
        ("Android", "Android phones", "an Android app", "Samsung phones", "Android support")),
    "nophone": ("No. Without a phone, a second process on the same machine can be the worker, or the host works alone.", (
        "Do I need a phone?", "Can I use it without a phone?", "Does it work without an iPhone?", "Is a phone required?", "Must I have an iPhone?", "Can I try it without a phone?", "I have no phone, can I use it?", "What if I have no iPhone?", "Does it run without a worker?", "Can the host work alone?", "Is the worker required?", "Do I need a worker?", "Is an iPhone necessary?", "Can I test it without hardware?", "No phone, no problem?"),
        ("using it without a phone", "working alone", "running without a worker", "no phone", "having no iPhone")),
    "cable": ("Use a USB-C cable for 10 gigabits per second; a charging cable is only USB 2 and too slow.", (
        "Which cable do I need?", "What cable should I use?", "Can I use any USB cable?", "Which USB cable is good?", "What kind of cable?", "Does a charging cable work?", "Is USB 2 enough?", "Which cable works best?", "Do I need a special cable?", "How fast must the cable be?", "Can I use the cable that came with my phone?", "Is Thunderbolt needed?", "What cable is needed?", "Is a cable required?", "Which cord do I need?"),
        ("the cable", "cables", "the USB cable", "USB-C", "the USB-C cable", "a charging cable", "cable speed")),
    "wifi": ("No, it needs a cable: Wi-Fi is too slow and too uneven for it.", (
        "Does it work over Wi-Fi?", "Can I use Wi-Fi?", "Does it work without a cable?", "Is wireless possible?", "Can the phone connect by Bluetooth?", "Is Bluetooth supported?", "Can I connect the phone wirelessly?", "Why not Wi-Fi?", "Do I need the cable or is wifi enough?", "Does it work over the network?", "wifi?"),
        ("Wi-Fi", "wireless", "Bluetooth", "a wireless connection", "wifi support")),
    "unplug": ("Nothing is lost: the reply goes on from the copy on the host's disk, only slower.", (
        "What happens if I unplug the cable?", "What if the cable is pulled?", "What happens when the phone disconnects?", "What if the worker dies?", "What happens if the phone dies?", "Can I pull the cable?", "Is the conversation lost when I unplug the phone?", "What happens when the worker crashes?", "What if the connection breaks?", "Can I unplug the phone?",
        "What happens to my chat when the cable breaks?", "Do I lose data if the phone goes away?", "What if the phone battery is empty?", "Is it safe to unplug?", "Does it survive a disconnect?", "What if I remove the phone in the middle?"),
        ("unplugging", "a disconnect", "losing the phone", "a broken cable", "a worker that dies", "pulling the cable")),
    "reconnect": ("When the worker comes back, it takes up again what it still holds.", (
        "What happens when the phone comes back?", "Can I plug the phone in again?", "Does it reconnect?", "What if I plug the cable back in?", "Will the worker be used again?", "What happens after a reconnect?", "Does it reconnect by itself?", "Can a worker rejoin?", "Is reconnecting automatic?", "What happens when I connect the phone again?"),
        ("reconnecting", "a reconnect", "plugging it in again", "coming back", "automatic reconnection")),
    "spill": ("The spill is a copy of held pages on the host's disk, so that nothing is lost when a worker goes away.", (
        "What is the spill?", "What is spill?", "What is the spill copy?", "What is written to disk?", "Why does it write to the SSD?", "Does it use my disk?", "What is the copy on disk for?", "Explain the spill.", "Where is the spill stored?", "Is there a backup of the pages?", "Does it save pages on the SSD?", "What does spill mean?"),
        ("the spill", "spill", "the spill copy", "the disk copy", "the backup on the SSD", "disk use")),
    "start": ("Run make serve: it installs everything and starts the server with a worker in a second process.", (
        "How do I start it?", "How do I start Backburner?", "How do I start the server?", "How do I run it?", "How can I run Backburner?", "How do I get started?", "What is the first step?", "What command starts it?", "How do I launch the server?", "How do I use Backburner?", "How do I try it?", "Which command do I need to start?", "How to run the server?", "How do I begin?", "Give me the start command.", "What do I type to start?", "How do I set it up?"),
        ("starting it", "starting the server", "the start command", "getting started", "make serve", "the first steps", "running Backburner")),
    "install": ("You need Python 3.11 or newer, make and a C compiler; make serve installs the rest.", (
        "How do I install it?", "How do I install Backburner?", "What do I need to install?", "What are the requirements?", "Which Python version do I need?", "How can I install this?", "Is there an installer?", "What are the dependencies?", "How to install?", "What does it require?", "Do I need Python?", "What software do I need?", "Can I install it with pip?", "What must be installed?", "Which Python is needed?"),
        ("the installation", "installing it", "the requirements", "dependencies", "installing Backburner", "the Python version", "the system requirements")),
    "stop": ("Press Ctrl-C in the terminal: the server ends its work and the worker with it.", (
        "How do I stop it?", "How do I stop the server?", "How do I end Backburner?", "How can I quit?", "How do I shut it down?", "How do I close it?", "How do I turn it off?", "How do I kill the server?", "How to stop?", "What is the stop command?", "How do I exit?"),
        ("stopping it", "stopping the server", "shutting down", "the end", "quitting", "a shutdown")),
    "api": ("It speaks the OpenAI API: chat and text completions under /v1, with streaming.", (
        "Which API does it have?", "What API does Backburner use?", "Is it compatible with OpenAI?", "Does it have an OpenAI API?", "Which endpoints are there?", "What is the API?", "How do I talk to the server?", "Does it support chat completions?", "Can I use the OpenAI client?", "Can I use it with my own program?", "What protocol does the server speak?", "Is there a REST API?", "Does it work with OpenAI tools?", "What is the endpoint?", "Which URL do I use?", "Can I use the openai library?", "How do programs connect to it?"),
        ("the API", "the OpenAI API", "the endpoints", "the endpoint", "OpenAI compatibility", "the HTTP interface", "chat completions")),
    "curl": ("Post JSON with curl to /v1/chat/completions; make serve prints a ready command.", (
        "How do I use curl?", "Can curl talk to it?", "Give me a curl example.", "What is the curl command?", "How do I send a request with curl?", "Can I ask it from the terminal?", "How do I call it from the command line?", "Show me a curl command.", "How do I send a question?", "How do I make a request?", "How do I post a request?", "Does it work with curl?", "curl?"),
        ("curl", "a curl example", "the curl command", "requests from the terminal", "sending a request")),
    "python": ("Use the openai package with base_url http://127.0.0.1:8080/v1 and any api_key.", (
        "How do I use it from Python?", "Can I call it from Python?", "Is there a Python client?", "How do I connect with Python?", "Give me a Python example.", "What base_url do I use?", "Which API key do I need?", "Do I need an API key?", "What is the base url?", "How do I use the OpenAI client?", "How do I connect my Python script?", "Is there a key for the API?", "What is the API key?"),
        ("Python", "the Python client", "the API key", "base_url", "a Python example", "the base url")),
    "port": ("The server listens on 127.0.0.1, port 8080.", (
        "Which port does it use?", "What is the port?", "On which port does it listen?", "What address does the server have?", "Where does the server listen?", "What is the address of the server?", "Which port is it?", "Can I change the port?", "What is the default port?", "Where can I reach the server?", "Is it port 8080?", "port?"),
        ("the port", "the address", "the server address", "the default port", "port 8080")),
    "stream": ("Yes: set stream to true and the tokens come one by one as server-sent events.", (
        "Does it support streaming?", "Can I stream the answer?", "How do I stream?", "Is streaming possible?", "How do I get tokens one by one?", "Does it stream?", "Can answers be streamed?", "Does it have SSE?", "What about streaming?", "How do I turn on streaming?", "Is there a stream option?"),
        ("streaming", "the stream option", "SSE", "streamed answers", "server-sent events", "token streaming")),
    "models": ("It runs Qwen hybrid models: Qwen3.5, 3.6, 3.8 and Qwen3-Next, in mlx-lm's format.", (
        "Which models does it support?", "What models can I run?", "Which models work?", "Can it run Qwen?", "Does it support Qwen3.5?", "What model should I use?", "Which model can I use?", "Does it run 27B models?", "Can I use other models?", "What kind of models are supported?", "Which language models does it run?", "Is Qwen3-Next supported?", "What are the supported models?", "What models are there?", "Can I load my own model?"),
        ("the models", "supported models", "Qwen", "Qwen models", "model support", "the model list", "Qwen3.5")),
    "llama": ("No, only Qwen hybrid models are supported, since their recurrent layers keep the cache small.", (
        "Does it run Llama?", "Can I use Llama?", "Is Mistral supported?", "Does it support Gemma?", "Can I run GPT?", "Does it work with DeepSeek?", "Can I use Llama 3?", "Why only Qwen?", "Are other models supported?", "Does it run Mistral or Gemma?", "Can I use a GGUF file?", "Is GPT-OSS supported?", "Can it run ChatGPT?"),
        ("Llama", "Mistral", "Gemma", "DeepSeek", "Llama models", "other model families", "GGUF files")),
    "hybrid": ("A hybrid model repeats three recurrent layers and one full attention layer.", (
        "What is a hybrid model?", "What does hybrid mean?", "What is a Qwen hybrid?", "What layers does the model have?", "Explain hybrid models.", "Why hybrid?", "What is special about Qwen3.5?", "How are the layers arranged?", "What is the cycle of layers?", "How is the model built?", "Which layers are there?"),
        ("hybrid models", "a hybrid model", "the hybrid architecture", "the layers", "the cycle of layers")),
    "delta": ("Gated DeltaNet is a recurrent layer: a summary of fixed size that is rolled forward token by token.", (
        "What is Gated DeltaNet?", "What is DeltaNet?", "What are recurrent layers?", "What is GDN?", "What is the delta rule?", "Explain Gated DeltaNet.", "What is a recurrent layer?", "How do recurrent layers work?", "What do the recurrent layers do?", "What is the recurrent state?"),
        ("Gated DeltaNet", "DeltaNet", "recurrent layers", "the delta rule", "GDN", "the recurrent state")),
    "attention": ("A full attention layer keeps a key and a value for every token; these rows are what pages hold.", (
        "What is attention?", "What is full attention?", "What does an attention layer keep?", "What is a KV cache?", "What are keys and values?", "What is the KV cache?", "Explain attention.", "What is K and V?", "What is the cache?", "Why does the cache grow?", "What is stored for each token?", "What are attention layers?"),
        ("attention", "the KV cache", "keys and values", "full attention", "attention layers", "the cache")),
    "load": ("Give the flag --model with a folder in mlx-lm's format or a Hugging Face id.", (
        "How do I load a model?", "How do I choose a model?", "How do I use another model?", "How do I change the model?", "Which flag sets the model?", "How do I run a bigger model?", "How do I use a real model?", "How do I load my model folder?", "Can I load a model from Hugging Face?", "How to switch models?", "How can I use Qwen3.5 27B?", "Where do I set the model?"),
        ("loading a model", "the model flag", "choosing a model", "another model", "changing the model", "Hugging Face models")),
    "speed": ("With a worker, long prompts are read up to 1.4 times as fast; short chats are as fast as without.", (
        "How fast is it?", "How fast is Backburner?", "What is the speed?", "Is it fast?", "Is it slow?", "How many tokens per second?", "Does it make the model faster?", "What speed can I expect?", "Is it faster with a phone?", "How much faster is it?", "What is the performance?", "Are there benchmarks?", "Does the phone slow it down?", "What is the speedup?", "How quick is it?", "Is it slower than normal?"),
        ("the speed", "performance", "the speed of Backburner", "benchmarks", "tokens per second", "the speedup")),
    "context": ("As long as host and worker have memory for: the limit is printed at start and shown in /v1/models.", (
        "How long can the context be?", "What is the context length?", "What is the maximum context?", "How many tokens can it handle?", "How much context can I use?", "What is the context limit?", "How big can a prompt be?", "How long can my text be?", "Is there a token limit?", "What is the longest context?", "How large is the context?", "How long may a conversation be?", "What is ctx-size?"),
        ("the context length", "the context limit", "the maximum context", "long contexts", "the context size", "the token limit", "ctx-size")),
    "memory": ("It was designed for a computer with 24 GB; the phone gives room for the pages that do not fit.", (
        "How much memory do I need?", "How much RAM does it need?", "How much RAM do I need?", "Is 16 GB enough?", "What memory is required?", "How much memory does the phone need?", "Does it save memory?", "How much memory does it use?", "Is 24 GB enough?", "What are the memory requirements?", "Do I need a lot of RAM?", "What if my memory is full?"),
        ("memory", "RAM", "the memory requirements", "how much RAM it needs", "memory use")),
    "mac": ("It is made for a Mac with Apple silicon; it runs on Linux too, on the CPU.", (
        "Does it run on a Mac?", "Which Mac do I need?", "Which computer do I need?", "Does it run on Linux?", "Which operating systems are supported?", "Does it work on a MacBook?", "What hardware do I need?", "Can I run it on Linux?", "Which platforms are supported?", "Do I need a Mac?", "Does it need Apple silicon?", "Does it run on my computer?", "Which OS do I need?", "What machine do I need?", "Is Linux supported?"),
        ("the Mac", "Linux", "supported platforms", "the hardware", "operating systems", "Apple silicon", "the computer")),
    "windows": ("Windows is not supported; it runs on macOS and Linux.", (
        "Does it run on Windows?", "Is Windows supported?", "Can I use Windows?", "Does it work on a Windows PC?", "I have Windows 11, does it work?", "Is there a Windows version?", "Can I install it on Windows?", "What about Microsoft Windows?", "Will it work on Windows 10?"),
        ("Windows support", "Microsoft Windows", "a Windows version", "Windows 11", "Windows 10", "a Windows PC")),
    "gpu": ("On a Mac it uses the GPU through Metal; on Linux it computes on the CPU.", (
        "Does it use the GPU?", "Do I need a GPU?", "Does it use Metal?", "Does it need a graphics card?", "Is CUDA supported?", "Can I use Nvidia?", "Does it run on the CPU?", "Is a GPU required?", "Does it use my graphics card?", "What about CUDA?", "Does it use the neural engine?"),
        ("the GPU", "Metal", "CUDA", "a graphics card", "Nvidia cards", "GPU support")),
    "mlx": ("MLX is Apple's array library; Backburner loads models through mlx-lm and checks itself against it.", (
        "What is MLX?", "Does it use MLX?", "What is mlx-lm?", "Is it based on MLX?", "Which library does it use?", "Does it use PyTorch?", "What framework is it built on?", "How does it load models?", "Why MLX?", "Is it built on mlx-lm?", "Does it use llama.cpp?"),
        ("MLX", "mlx-lm", "the framework", "the library", "the MLX library")),
    "licence": ("Backburner is free software under the MIT licence.", (
        "What is the licence?", "Which license does it have?", "Is it open source?", "Is it free?", "Can I use it commercially?", "What does it cost?", "How much does it cost?", "Is Backburner free?", "What is the license?", "Do I have to pay?", "Is it MIT licensed?", "May I use it at work?", "Is the code open?", "What is the price?", "Under which license is it?"),
        ("the licence", "the license", "the price", "the cost", "open source", "the MIT licence")),
    "privacy": ("Your text stays on your devices: the server listens on loopback only and sends nothing to the internet.", (
        "Is it private?", "Is my data safe?", "Does it send my data anywhere?", "Is it secure?", "Who can see my text?", "Does it need the internet?", "Where does my data go?", "Is my conversation private?", "Does it phone home?", "Can others connect to the server?", "Is it safe to use?", "Does it collect data?", "What about privacy?", "Does it work offline?", "Is there any telemetry?", "Who reads my messages?"),
        ("privacy", "security", "my data", "data safety", "telemetry", "offline use", "data protection")),
    "health": ("Ask /health: it shows the model, the queue, the worker's state and how many pages it holds.", (
        "How do I see if it works?", "What is /health?", "How do I check the worker?", "How do I know that the worker is used?", "How can I see the held pages?", "Where can I see the status?", "How do I see the state of the server?", "Is there a status page?", "What does health show?", "How do I check the status?", "How do I know it is running?", "How can I monitor it?", "How do I check that it works?", "Does it have a health check?"),
        ("/health", "the health check", "the status", "the server status", "monitoring", "the state of the worker")),
    "doctor": ("Run backburner doctor: it checks your setup and says what to fix.", (
        "What is backburner doctor?", "How do I find problems?", "It does not work, what can I do?", "How do I check my setup?", "What if something is wrong?", "How do I debug it?", "It does not start", "How can I solve problems?", "What does doctor do?", "Something is broken, help", "How do I troubleshoot?", "I have a problem with the server", "It fails, what now?"),
        ("the doctor command", "problems", "troubleshooting", "errors", "debugging", "the doctor")),
    "commands": ("The commands are serve, worker, devices, doctor, plan and bench.", (
        "Which commands are there?", "What commands does it have?", "List the commands.", "What subcommands are there?", "What can I type?", "What commands exist?", "Show me the commands.", "Which command line tools are there?", "What are the CLI commands?", "What is in the command line?", "Which commands does backburner have?"),
        ("the commands", "the command line", "the CLI", "subcommands", "all commands")),
    "flags": ("Important flags are --model, --device, --window-tokens, --page-tokens and --ctx-size.", (
        "Which flags are there?", "What options does it have?", "What are the settings?", "How do I configure it?", "Which options can I set?", "Where is the configuration?", "What flags does serve have?", "How do I change settings?", "List the flags.", "What can I configure?", "Is there a config file?", "What parameters does the server have?"),
        ("the flags", "the options", "the settings", "the configuration", "command line flags", "server options")),
    "device": ("The flag --device takes none, loopback, usb or tcp://HOST:PORT.", (
        "How do I choose the worker?", "What is --device?", "How do I connect a worker?", "What does the device flag do?", "How do I connect to the phone?", "How do I set the device?", "What is the loopback worker?", "How do I add a worker?", "How do I attach a worker?", "Which devices can I pass?", "What is loopback?", "How do I use a remote worker?", "How do I connect the iPhone?"),
        ("the device flag", "--device", "loopback", "connecting a worker", "a remote worker", "connecting the phone")),
    "tools": ("Yes: send tools with the request, and calls come back in OpenAI's form.", (
        "Does it support tools?", "Can it call functions?", "Does it support function calling?", "Can I use tools?", "Are tool calls supported?", "How do I use tools?", "Can the model call my functions?", "Does it do tool calling?", "How does function calling work?", "What about tool use?", "Can I give it functions?"),
        ("tools", "tool calls", "function calling", "functions", "tool use")),
    "thinking": ("Thinking is a short text before the answer; switch it with enable_thinking.", (
        "What is thinking?", "How do I turn on thinking?", "Can it think?", "How do I turn off thinking?", "What is enable_thinking?", "Does it support reasoning?", "How do I disable thinking?", "What is the thinking mode?", "How do I enable reasoning?", "Is there a thinking mode?", "What is reasoning_content?", "How do I switch thinking?"),
        ("thinking", "the thinking mode", "reasoning", "enable_thinking", "the think block")),
    "tiny": ("tiny is the embedded demonstration model: a toy with under six million parameters that needs no download.", (
        "What is tiny?", "What is the tiny model?", "What is the demo model?", "Which model is built in?", "Do I have to download a model?", "Is a model included?", "What model comes with it?", "Is there a download?", "What is the embedded model?", "Why is the model so small?", "What is the default model?", "Does it come with a model?", "Tell me about the tiny model."),
        ("the tiny model", "the demo model", "the embedded model", "the built-in model", "the default model")),
    "name": ("Old context is put on the back burner: kept warm on another device while the host cooks.", (
        "Why is it called Backburner?", "Where does the name come from?", "What does the name mean?", "What does Backburner mean?", "Why the name?", "Why did you name it Backburner?", "What is the origin of the name?", "Who chose the name Backburner?", "Is there a reason for the name?"),
        ("the name", "the name Backburner", "the meaning of the name", "the origin of the name", "its name")),
    "queue": ("One request runs at a time; others wait in a queue.", (
        "Can it handle several requests?", "How many users can it serve?", "Does it support batching?", "Can two people use it?", "How many requests at once?", "Is there a queue?", "What happens with two requests?", "Can it work in parallel?", "Does it handle many users?", "Are requests queued?", "What if many people ask at once?", "Is it multi-user?"),
        ("the queue", "several requests", "batching", "many users", "parallel requests", "concurrency")),
    "cancel": ("Close the connection: the work stops within one step.", (
        "How do I cancel a request?", "Can I stop an answer?", "What happens if the client goes away?", "How do I abort?", "Can I interrupt it?", "How do I stop the generation?", "What happens when I close the connection?", "Can a request be cancelled?", "How do I abort a request?", "What if I press Ctrl-C in curl?"),
        ("cancelling a request", "aborting", "interrupting", "stopping an answer", "cancellation")),
    "prefill": ("Prefill is the reading of the prompt, before the first token of the answer.", (
        "What is prefill?", "What does prefill mean?", "What is the reading of the prompt called?", "Explain prefill.", "What happens before the first token?", "Why does it take long to start?", "Why is the first token slow?", "What is a ubatch?", "What is prompt processing?", "How is the prompt read?"),
        ("prefill", "the prefill", "prompt processing", "the first token", "reading the prompt")),
    "split": ("In split prefill the worker runs the last layers while the host already reads the next part.", (
        "What is split prefill?", "How does split prefill work?", "Can the phone compute layers?", "Does the phone run layers?", "Explain split prefill.", "How are the layers split?", "What is a seam?", "What are tail layers?", "Can the worker run part of the model?", "How does the phone speed up reading?", "What is the pipeline?", "Which layers run on the phone?"),
        ("split prefill", "tail layers", "the seam", "the pipeline", "splitting the layers", "layers on the phone")),
    "decode": ("Decode makes the answer, one token after another.", (
        "What is decode?", "What is decoding?", "What does decode mean?", "Explain decoding.", "How are tokens made?", "How is the answer generated?", "How does generation work?", "What is the decode phase?", "What happens during decode?", "What comes after prefill?"),
        ("decode", "decoding", "generation", "the decode phase", "making tokens")),
    "cache": ("Pages are named by their content, so a shared prefix is sent to the worker only once.", (
        "Are prefixes reused?", "Does it cache prompts?", "Is there a prompt cache?", "Is the cache kept between requests?", "What is prefix caching?", "Does it read the prompt again each time?", "How are pages named?", "Does it reuse the cache?", "Does it remember earlier prompts?", "Are pages shared?", "Can two chats share pages?"),
        ("the prompt cache", "prefix caching", "caching", "shared prefixes", "the reuse of pages")),
    "coreml": ("Core ML lets the phone's neural engine attend to pages that are baked into a small model.", (
        "What is Core ML for?", "Does it use Core ML?", "What is a baked page?", "Does the phone use its neural engine?", "What are baked pages?", "How does the phone compute?", "What is baking?", "Is the Neural Engine used?", "What does the iPhone compute with?", "Why Core ML?"),
        ("Core ML", "baked pages", "the neural engine", "baking", "a baked page", "the ANE")),
    "pairing": ("Only loopback and cable are trusted; anything else would need pairing.", (
        "Do I have to pair the devices?", "What is pairing?", "Can strangers connect?", "Can I open the server to the network?", "How do I pair?", "Can I reach it from another computer?", "Is it reachable from outside?", "Can I use it over the internet?", "How do I allow other machines?", "Is pairing needed?", "Does it listen on all interfaces?"),
        ("pairing", "network access", "strangers", "remote access", "pairing devices")),
    "heat": ("The phone may get warm; if it slows down, the planner gives it less work.", (
        "Does the phone get hot?", "Will my phone overheat?", "What about heat?", "Does it drain the battery?", "Is it bad for my phone?", "Does it hurt the battery?", "What if the phone gets hot?", "How much battery does it use?", "Will it damage my phone?", "Does the phone get warm?", "Is the phone charged while working?"),
        ("heat", "the battery", "overheating", "battery use", "a hot phone", "the temperature of the phone")),
    "planner": ("The planner chooses which layers and pages go where, from the measured speed of link and devices.", (
        "What is the planner?", "What does the planner do?", "What is backburner plan?", "Who decides what runs where?", "How is the work divided?", "How does it decide what to move?", "Explain the planner.", "What is the plan command?", "How is the layout chosen?", "Who chooses which pages move?", "How does it choose the split?"),
        ("the planner", "the plan command", "the division of work", "the layout", "planning")),
    "code": ("The code is Python with a little C for the CPU and Swift for the phone.", (
        "What language is it written in?", "Which programming language does it use?", "Is it written in Python?", "In which language is Backburner written?", "What is the code written in?", "Is it C++?", "Is it written in Rust?", "What is it programmed in?", "Which languages does the code use?", "Is there Swift code?", "Where is the source code?"),
        ("the code", "the programming language", "the source code", "the source", "the implementation language")),
    "docs": ("Read README.md first, then docs/architecture.md and docs/operations.md.", (
        "Where is the documentation?", "Where can I read more?", "Is there a manual?", "Is there documentation?", "Where are the docs?", "How can I learn more?", "What should I read?", "Is there a README?", "Where can I find more information?", "Is there a guide?", "Which file should I read first?", "Where do I find help?"),
        ("the documentation", "the docs", "the manual", "the README", "more information", "a guide")),
    "test": ("Run make test for the whole test suite, and make check for everything.", (
        "How do I run the tests?", "Are there tests?", "How is it tested?", "How do I test Backburner?", "Which command runs the tests?", "Is there a test suite?", "How do I check the code?", "Does it have tests?", "What is make test?", "Is it well tested?", "How can I run the test suite?"),
        ("the tests", "testing", "the test suite", "make test", "how it is tested")),
    "contribute": ("Read CONTRIBUTING.md; changes with a test and a reason are welcome.", (
        "How can I contribute?", "Can I help?", "Can I contribute?", "How do I report a bug?", "Where do I report bugs?", "I found a bug", "How can I take part?", "Do you accept patches?", "How do I send a patch?", "Where can I file an issue?", "Can I join the project?", "How do I make a pull request?"),
        ("contributing", "bugs", "bug reports", "pull requests", "patches", "issues")),
    "json": ("Ask for JSON in your message, with the keys and values that you want.", (
        "Can it write JSON?", "How do I get JSON?", "Does it support JSON?", "Can I get structured output?", "Does it have a JSON mode?", "Can the answer be JSON?", "How do I make it answer in JSON?", "Is JSON output possible?", "Can it output JSON?", "Is there a JSON mode?"),
        ("JSON output", "the JSON mode", "structured output", "JSON answers", "JSON support")),
    "questions": ("Try: What is a held page? Count to nine. Or give me a text and ask about it.", (
        "What should I try?", "Give me an example question.", "What are good questions?", "What can I try?", "Suggest a question.", "Which questions work well?", "What would you suggest to ask?", "Give me some examples.", "What is a good first question?", "I do not know what to ask", "Show me an example.", "What else can I try?"),
        ("example questions", "examples", "good questions", "suggestions", "things to try")),
}  # fmt: skip
