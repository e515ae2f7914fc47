// Chats from a file that this page has exported. The file may be from anyone: what is not as an
// export has it is refused, and all texts stay texts. Has no DOM.

import { Conversation } from "./conversation.js";

const MIB = 1 << 20;
const MOST_FILE_BYTES = 256 * MIB;
const MOST_CHATS = 500;
const MOST_MESSAGES = 5000; // of a chat
const MOST_TEXT = 4 * MIB; // characters
const MOST_NAME = 1000;
const MOST_PARTS = 100; // images or files of a message
const IMAGE = /^data:image\/(?!svg)[a-z0-9.+-]+;base64,[A-Za-z0-9+/]*={0,2}$/;
const ID = /^[\w-]+$/;

/** The conversations of a file. Raises Error, which says what is wrong. */
export async function readChats(file) {
  if (file.size > MOST_FILE_BYTES) {
    throw new Error(`${file.name} is larger than ${MOST_FILE_BYTES / MIB} MiB: import fewer chats.`);
  }
  let value;
  try {
    value = JSON.parse(await file.text());
  } catch {
    throw new Error(`${file.name} is not JSON: import what “Export all” or “JSON” has written.`);
  }
  const chats = Array.isArray(value) ? value : [value];
  try {
    require(chats.length > 0 && chats.length <= MOST_CHATS, `it does not have 1 to ${MOST_CHATS} chats`);
    return chats.map(chatOf);
  } catch (problem) {
    throw new Error(`${file.name} is not an export of chats: ${problem.message}. Nothing is imported.`);
  }
}

function chatOf(value, index) {
  const where = `chat ${index + 1}`;
  require(isObject(value), `${where} is not an object`);
  const { id, title, created, updated, messages, last } = value;
  require(isText(id, 64) && ID.test(id), `${where} has no id`);
  require(isText(title, MOST_NAME), `${where} has no title`);
  require([created, updated].every(isTime), `${where} has no dates`);
  require(Array.isArray(messages), `${where} has no messages`);
  require(messages.length <= MOST_MESSAGES, `${where} has more than ${MOST_MESSAGES} messages`);
  require(isPlace(last, messages.length), `${where} ends with a message that is not there`);
  const read = messages.map((message, id) => messageOf(message, id, `message ${id + 1} of ${where}`));
  return new Conversation({ id, title, created, updated, messages: read, last });
}

function messageOf(value, id, where) {
  require(isObject(value) && value.id === id, `${where} is not in its place`);
  const { role, parent, text, images = [], files = [] } = value;
  require(role === "user" || role === "assistant", `${where} has an unknown role`);
  require(isPlace(parent, id), `${where} follows a message that is not before it`);
  require(isText(text), `${where} has no text`);
  if (role === "assistant") return { role, id, parent, text, ...replyOf(value, where) };
  require(isList(images, (each) => typeof each === "string" && IMAGE.test(each)),
    `${where} has an invalid image`);
  require(isList(files, ({ name, text }) => isText(name, MOST_NAME) && isText(text)),
    `${where} has an invalid file`);
  return { role, id, parent, text, images, files: files.map(({ name, text }) => ({ name, text })) };
}

function replyOf({ thoughts, note, model, isPartial }, where) {
  require(isText(thoughts) && isText(note), `${where} has no note or thoughts`);
  require(isText(model, MOST_NAME), `${where} names no model`);
  return { thoughts, note, model, isPartial: Boolean(isPartial) };
}

function require(condition, otherwise) {
  if (!condition) throw new Error(otherwise);
}

function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function isText(value, most = MOST_TEXT) {
  return typeof value === "string" && value.length <= most;
}

/** Whether a date can show it. */
function isTime(value) {
  return Number.isInteger(value) && value >= 0 && value <= 8.64e15;
}

/** Whether it is the id of one of the first `count` messages, or says that there is none. */
function isPlace(value, count) {
  return value === null || (Number.isInteger(value) && value >= 0 && value < count);
}

function isList(value, isRight) {
  return Array.isArray(value) && value.length <= MOST_PARTS &&
    value.every((each) => each !== null && isRight(each));
}
