// @ai-sdk/openai-compatible, the layer of opencode: what it makes of our streams, as one JSON object.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, streamText, tool } from "ai";

const [url, tinyUrl, given] = process.argv.slice(2);
const c = JSON.parse(given);
const provider = (baseURL) => createOpenAICompatible({ name: "backburner", baseURL, apiKey: "none", includeUsage: true });
const exact = provider(url)("tiny-qwen");
const tools = { forecast: tool({ description: "The weather to come.", inputSchema: jsonSchema(c.schema) }) };

async function play(options) {
  const found = { text: "", reasoning: "", raw: {}, calls: [], error: null };
  const stream = streamText({ model: exact, maxRetries: 0, onError() {}, ...options });
  for await (const part of stream.fullStream) {
    if (part.type === "text-delta") found.text += part.text;
    if (part.type === "reasoning-delta") found.reasoning += part.text;
    if (part.type === "tool-input-delta") found.raw[part.id] = (found.raw[part.id] ?? "") + part.delta;
    if (part.type === "tool-call") found.calls.push({ name: part.toolName, input: part.input });
    if (part.type === "error") found.error = describe(part.error);
    if (part.type === "finish") Object.assign(found, { finish: part.finishReason, usage: part.totalUsage });
  }
  return found;
}

function describe(e) {
  return { name: e?.name ?? typeof e, message: e?.message ?? JSON.stringify(e), status: e?.statusCode, retryable: e?.isRetryable };
}

async function failure(options) {
  try {
    await generateText({ model: exact, maxRetries: 0, ...options });
    return null;
  } catch (e) {
    return describe(e);
  }
}

const whole = await generateText({ model: exact, prompt: "hi" });
const calls = await generateText({ model: exact, prompt: c.calls, tools });
const real = await generateText({ model: provider(tinyUrl)("tiny"), messages: c.messages, temperature: 0, maxOutputTokens: 60, allowSystemInMessages: true });
console.log(JSON.stringify({
  whole: { text: whole.text, finish: whole.finishReason, usage: whole.usage },
  calls: { finish: calls.finishReason, inputs: calls.toolCalls.map((call) => call.input) },
  streamed: await play({ prompt: "hi" }),
  streamedCalls: await play({ prompt: c.calls, tools }),
  thinks: await play({ prompt: c.thinks, providerOptions: { backburner: { reasoningEffort: "high" } } }),
  breaks: await play({ prompt: c.breaks }),
  overflow: await failure({ prompt: c.overflow }),
  lost: await failure({ prompt: c.lost }),
  value: await failure({ prompt: "hi", topP: 7 }),
  tiny: real.text,
}));
