// @mariozechner/pi-ai: what it makes of our streams, as one JSON object.
import { isContextOverflow, stream } from "@mariozechner/pi-ai";

const [url, tinyUrl, given] = process.argv.slice(2);
const c = JSON.parse(given);
const model = (baseUrl, id) => ({
  id, name: id, api: "openai-completions", provider: "backburner", baseUrl, reasoning: true, input: ["text"],
  cost: { input: 0, output: 0, cacheRead: 0, cacheWrite: 0 }, contextWindow: 4096, maxTokens: 1024,
});
const exact = model(url, "tiny-qwen");
const tools = [{ name: "forecast", description: "The weather to come.", parameters: c.schema }];
const user = (content) => ({ role: "user", content, timestamp: 0 });

async function play(messages, options = {}, on = exact) {
  const raw = {};
  const { systemPrompt, tools, ...rest } = options;
  const events = stream(on, { systemPrompt, messages, tools }, { apiKey: "none", maxRetries: 0, ...rest });
  for await (const event of events) {
    if (event.type === "toolcall_delta") raw[event.contentIndex] = (raw[event.contentIndex] ?? "") + event.delta;
  }
  const message = await events.result();
  const of = (type) => message.content.filter((part) => part.type === type);
  return {
    message,
    raw,
    text: of("text").map((part) => part.text).join(""),
    thinking: of("thinking").map((part) => part.thinking).join(""),
    calls: of("toolCall"),
    stop: message.stopReason,
    error: message.errorMessage ?? null,
    usage: message.usage,
    overflow: isContextOverflow(message, on.contextWindow),
  };
}

const calls = await play([user(c.calls)], { systemPrompt: "You help.", tools });
const results = calls.calls.map((call) => ({
  role: "toolResult", toolCallId: call.id, toolName: call.name, content: [{ type: "text", text: "rain" }], isError: false, timestamp: 0,
}));
console.log(JSON.stringify({
  plain: await play([user("hi")]),
  calls,
  after: await play([user(c.calls), calls.message, ...results], { systemPrompt: "You help.", tools }),
  thinks: await play([user(c.thinks)], { reasoningEffort: "high" }),
  breaks: await play([user(c.breaks)]),
  lost: await play([user(c.lost)]),
  overflow: await play([user(c.overflow)]),
  tiny: await play([user(c.question)], { systemPrompt: c.fact, temperature: 0, maxTokens: 60 }, model(tinyUrl, "tiny")),
}));
