// What an application does with the official package `openai`, unchanged, against a server of mrs.
//
//     node openai_javascript.mjs ADDRESS

import assert from "node:assert/strict";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "any", maxRetries: 0 });
const messages = [{ role: "user", content: "What is a KV cache?" }];
const chat = (more) => client.chat.completions.create({ model: "demo", messages, ...more });
const TOOL = {
  type: "function",
  function: {
    name: "weather",
    description: "The weather of a city",
    parameters: {
      type: "object",
      properties: { city: { type: "string", enum: ["Paris", "Rome"] } },
      required: ["city"],
      additionalProperties: false,
    },
  },
};

const checks = {
  async create() {
    const reply = await chat({ temperature: 0, max_tokens: 12 });
    assert.equal(reply.object, "chat.completion");
    assert.ok(reply.choices[0].message.content.length > 5);
    assert.equal(reply.usage.total_tokens, reply.usage.prompt_tokens + reply.usage.completion_tokens);
  },
  async stream() {
    const whole = await chat({ temperature: 0, max_tokens: 12 });
    let text = "";
    let usage = null;
    const stream = await chat({
      temperature: 0, max_tokens: 12, stream: true, stream_options: { include_usage: true },
    });
    for await (const chunk of stream) {
      text += chunk.choices[0]?.delta.content ?? "";
      usage = chunk.usage ?? usage;
    }
    assert.equal(text, whole.choices[0].message.content);
    assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
  },
  async "stream with events, and abort"() {
    const runner = client.chat.completions.stream({ model: "demo", messages, max_tokens: 200 });
    await new Promise((resolve) => runner.once("content", resolve));
    runner.abort();
    await assert.rejects(runner.done(), OpenAI.APIUserAbortError);
  },
  async "response format"() {
    const schema = {
      type: "object", properties: { name: { enum: ["Ada", "Max"] } }, required: ["name"],
      additionalProperties: false,
    };
    const reply = await client.chat.completions.parse({
      model: "demo", messages, max_tokens: 60,
      response_format: { type: "json_schema", json_schema: { name: "person", strict: true, schema } },
    });
    assert.ok(["Ada", "Max"].includes(reply.choices[0].message.parsed.name));
  },
  async "tools in a loop"() {
    const asked = await chat({ tools: [TOOL], tool_choice: "required", max_tokens: 200 });
    const [call] = asked.choices[0].message.tool_calls;
    assert.equal(call.function.name, "weather");
    assert.ok(["Paris", "Rome"].includes(JSON.parse(call.function.arguments).city));
    const result = { role: "tool", tool_call_id: call.id, content: "sunny" };
    const after = [...messages, asked.choices[0].message, result];
    const reply = await client.chat.completions.create({
      model: "demo", messages: after, tools: [TOOL], tool_choice: "none", max_tokens: 8,
    });
    assert.ok(reply.choices[0].message.content);
  },
  async "completions, embeddings, models"() {
    const completion = await client.completions.create({ model: "demo", prompt: "The", max_tokens: 3 });
    assert.equal(completion.usage.completion_tokens, 3);
    const embedded = await client.embeddings.create({ model: "demo", input: ["a", "b"] });
    assert.equal(embedded.data.length, 2);
    assert.equal(typeof embedded.data[0].embedding[0], "number");
    const models = [];
    for await (const model of client.models.list()) models.push(model.id);
    assert.ok(models.includes("demo"));
  },
  async "fifty at once"() {
    const replies = await Promise.all(
      Array.from({ length: 50 }, (_, n) => chat({ max_tokens: 4, seed: n, stream: n % 2 === 0 })),
    );
    for (const reply of replies) {
      if (reply.choices) continue;
      for await (const _ of reply);
    }
  },
  async errors() {
    await assert.rejects(chat({ max_tokens: 0 }), (error) => {
      assert.ok(error instanceof OpenAI.BadRequestError);
      assert.equal(error.param, "max_tokens");
      return true;
    });
    await assert.rejects(
      client.chat.completions.create({ model: "nobody", messages }), OpenAI.NotFoundError,
    );
  },
};

for (const [name, check] of Object.entries(checks)) {
  await check();
  console.log(`ok: ${name}`);
}
