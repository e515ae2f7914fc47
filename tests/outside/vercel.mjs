// Vercel's package `ai` with its three clients, against a server of mrs: whole replies and streams.
//
//     node vercel.mjs ADDRESS

import assert from "node:assert/strict";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embed, generateText, streamText } from "ai";

const baseURL = `${process.argv[2]}/v1`;
const openai = createOpenAI({ baseURL, apiKey: "any" });
const compatible = createOpenAICompatible({ name: "mrs", baseURL });
const clients = {
  anthropic: createAnthropic({ baseURL, apiKey: "any" })("claude-sonnet-4"),
  chat: openai.chat("gpt-4o"),
  completion: openai.completion("gpt-3.5-turbo-instruct"),
  responses: openai.responses("gpt-4o"),
  compatible: compatible("gpt-4o"),
};

for (const [name, model] of Object.entries(clients)) {
  const asked = { model, prompt: "What is a KV cache?", maxOutputTokens: 12, temperature: 0 };
  const whole = await generateText(asked);
  assert.ok(whole.text.length > 5, name);
  assert.ok(whole.usage.outputTokens > 0, name);
  let streamed = "";
  for await (const text of streamText(asked).textStream) streamed += text;
  assert.equal(streamed, whole.text, name);
  console.log(`${name}: ${JSON.stringify(whole.text)}`);
}
const { embedding } = await embed({ model: openai.embedding("any"), value: "Hi" });
assert.ok(embedding.length > 10);
