"""Responses that clients may ask for later, or continue."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import msgspec

from mrs.server.http.json_pieces import whole_json
from mrs.server.schemas.responses_items import InputItem
from mrs.server.schemas.responses_response import ResponseBody

#: The JSON of all stored responses together; the oldest are dropped.
_MOST_BYTES = 32 * 2**20
#: Of a stored response, and of each item that it has made, beside their JSON.
_OBJECTS_BYTES = 500


class StoredResponse(NamedTuple):
    """The JSON of a response, and of the items of the whole conversation with it."""

    body: bytes
    items: bytes
    made_ids: tuple[str, ...]

    @classmethod
    def of(cls, body: ResponseBody, before: bytes) -> StoredResponse:
        """`before` is the JSON of the items before the response. Any thread may call this."""
        made_ids = tuple(item.id for item in body.output if item.id is not None)
        items = _joined(before, whole_json(body.output))
        return cls(whole_json(body), items, made_ids)

    @property
    def num_bytes(self) -> int:
        return len(self.body) + len(self.items) + _OBJECTS_BYTES * (1 + len(self.made_ids))


class ResponseStore:
    """Keeps responses in memory until they are deleted or need too much, the oldest first.

    Each belongs to a `salt`, which differs between API keys: nobody gets those of another key.
    """

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self.most_bytes, self._used_bytes = most_bytes, 0
        self._stored: OrderedDict[tuple[bytes, str], StoredResponse] = OrderedDict()
        #: The response that made an item.
        self._made_in: dict[tuple[bytes, str], str] = {}

    def add(self, salt: bytes, response_id: str, stored: StoredResponse) -> None:
        self._stored[salt, response_id] = stored
        self._made_in |= {(salt, item_id): response_id for item_id in stored.made_ids}
        self._used_bytes += stored.num_bytes
        while self._used_bytes > self.most_bytes:
            self._drop(next(iter(self._stored)))

    def body(self, salt: bytes, response_id: str) -> bytes | None:
        """The JSON of a response; None if it is not stored."""
        stored = self._stored.get((salt, response_id))
        return None if stored is None else stored.body

    def items(self, salt: bytes, response_id: str) -> list[InputItem] | None:
        """The items of a conversation up to the end of a response; None if it is not stored."""
        stored = self._stored.get((salt, response_id))
        return None if stored is None else msgspec.json.decode(stored.items, type=list[InputItem])

    def made_with(self, salt: bytes, item_id: str) -> dict[str, dict[str, Any]]:
        """An item of a stored response and all others of it, by their ids; none without it.

        Any thread may call this.
        """
        stored = self._stored.get((salt, self._made_in.get((salt, item_id), "")))
        output = [] if stored is None else msgspec.json.decode(stored.body)["output"]
        return {item["id"]: item for item in output}

    def input_items(self, salt: bytes, response_id: str) -> list[dict[str, Any]] | None:
        """The items before a response, each with an id; None if it is not stored.

        Any thread may call this.
        """
        stored = self._stored.get((salt, response_id))
        if stored is None:
            return None
        items = msgspec.json.decode(stored.items)
        outputs = len(msgspec.json.decode(stored.body)["output"])
        return [
            _listed(each, f"{each['type']}_{response_id}_{index}")
            for index, each in enumerate(items[: len(items) - outputs])
        ]

    def delete(self, salt: bytes, response_id: str) -> bool:
        """Whether there was such a response."""
        if (salt, response_id) not in self._stored:
            return False
        self._drop((salt, response_id))
        return True

    def _drop(self, key: tuple[bytes, str]) -> None:
        stored = self._stored.pop(key)
        self._used_bytes -= stored.num_bytes
        for item_id in stored.made_ids:
            self._made_in.pop((key[0], item_id), None)


def _joined(first: bytes, second: bytes) -> bytes:
    """One list of JSON, of two."""
    inner = filter(None, (first[1:-1], second[1:-1]))
    return b"[" + b",".join(inner) + b"]"


def _listed(item: dict[str, Any], made_id: str) -> dict[str, Any]:
    """An item as lists have it: with an id and a status, and its text as a part of its content."""
    listed = {**item, "id": item.get("id") or made_id, "status": item.get("status") or "completed"}
    if isinstance(item.get("content"), str):
        kind = "output_text" if item.get("role") == "assistant" else "input_text"
        listed["content"] = [{"type": kind, "text": item["content"]}]
    return listed
