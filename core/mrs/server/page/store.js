// The chats that this browser keeps, in IndexedDB.

const MOST_CHATS = 500;

/** No room for another chat; `message` says what to do. */
export class StoreFull extends Error {}

export class Store {
  /** Raises what the browser says, if it keeps nothing, as private windows of some do. */
  static async open() {
    const request = indexedDB.open("mrs", 1);
    request.onupgradeneeded = () => request.result.createObjectStore("chats", { keyPath: "id" });
    return new Store(await result(request));
  }

  constructor(database) {
    this.database = database;
    database.onversionchange = () => database.close();
  }

  /** What lists and searches need of each chat. */
  async heads() {
    const heads = [];
    const request = this.#chats("readonly").openCursor();
    for (;;) {
      const cursor = await result(request);
      if (!cursor) return heads;
      heads.push(headOf(cursor.value));
      cursor.continue();
    }
  }

  load(id) {
    return result(this.#chats("readonly").get(id));
  }

  all() {
    return result(this.#chats("readonly").getAll());
  }

  /** Keeps a chat as it is now. Raises StoreFull. */
  async save(conversation) {
    const chats = this.#chats("readwrite");
    const [count, isKnown] = await Promise.all([
      result(chats.count()),
      result(chats.count(conversation.id)),
    ]);
    if (count >= MOST_CHATS && !isKnown) throw new StoreFull(full(`${count} chats`));
    try {
      chats.put(conversation.toJSON());
      await completed(chats.transaction);
    } catch (problem) {
      if (problem?.name === "QuotaExceededError") {
        throw new StoreFull(full("the browser gives no more room"));
      }
      throw problem;
    }
  }

  async remove(id) {
    await result(this.#chats("readwrite").delete(id));
  }

  async clear() {
    await result(this.#chats("readwrite").clear());
  }

  #chats(mode) {
    return this.database.transaction("chats", mode).objectStore("chats");
  }
}

export function headOf({ id, title, updated, messages }) {
  const texts = messages.flatMap(({ text, files = [] }) => [text, ...files.map(({ name }) => name)]);
  return { id, title, updated, words: [title, ...texts].join("\n").toLowerCase() };
}

function full(why) {
  return `The history is full (${why}), so this chat is not kept: delete some, or export this one.`;
}

/** The next result of a request. */
function result(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

function completed(transaction) {
  return new Promise((resolve, reject) => {
    transaction.oncomplete = resolve;
    transaction.onabort = transaction.onerror = () => reject(transaction.error);
  });
}
