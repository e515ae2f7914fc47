// An agent with tools in the SDK of Vercel, by each of its clients, against a server of mrs.
//
//     node vercel_agents.mjs ADDRESS CLIENT QUESTION…

import assert from "node:assert/strict";
import { generateText, jsonSchema, stepCountIs, tool } from "ai";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";

const [address, client, ...questions] = process.argv.slice(2);
const settings = { baseURL: `${address}/v1`, apiKey: "any", name: "mrs" };
const model = {
  chat: () => createOpenAI(settings).chat("default"),
  responses: () => createOpenAI(settings).responses("default"),
  compatible: () => createOpenAICompatible(settings)("default"),
  anthropic: () => createAnthropic(settings)("default"),
}[client]();
const look = tool({
  description: "Looks up.",
  inputSchema: jsonSchema({ type: "object", properties: { city: { type: "string" } } }),
  execute: async ({ city }) => `${city}: ok`,
});

const messages = [];
for (const question of questions) {
  messages.push({ role: "user", content: question });
  const reply = await generateText({
    model, messages, tools: { look }, stopWhen: stepCountIs(20), maxRetries: 0,
  });
  assert.equal(reply.finishReason, "stop");
  messages.push(...reply.response.messages);
}
