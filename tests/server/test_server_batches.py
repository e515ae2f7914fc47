"""`/v1/files` and `/v1/batches`: in OpenAI's form, bounded, and kept over a restart."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from running_server import RunningServer, running, slow_down, until

from mrs.errors import UsageError
from mrs.server.batches import folder as folder_module
from mrs.server.batches.folder import BatchFolder
from mrs.server.settings import ServerSettings

TEXT = "/v1/completions"


def lines(count: int, **body: Any) -> bytes:
    body = {"prompt": "A number", "max_tokens": 3, **body}
    requests = (
        {"custom_id": str(n), "method": "POST", "url": TEXT, "body": body} for n in range(count)
    )
    return "".join(json.dumps(each) + "\n" for each in requests).encode()


def upload(client: openai.OpenAI, content: bytes) -> str:
    return client.files.create(file=io.BytesIO(content), purpose="batch").id


def begin(client: openai.OpenAI, content: bytes, **more: Any) -> openai.types.Batch:
    fields: Any = {"endpoint": TEXT, "completion_window": "24h", **more}
    return client.batches.create(input_file_id=upload(client, content), **fields)


def ended(client: openai.OpenAI, batch_id: str) -> openai.types.Batch:
    states = ("completed", "failed", "cancelled", "expired")
    until(lambda: client.batches.retrieve(batch_id).status in states)
    return client.batches.retrieve(batch_id)


def answers(client: openai.OpenAI, file_id: str | None) -> dict[str, Any]:
    assert file_id is not None
    found = [json.loads(each) for each in client.files.content(file_id).text.splitlines()]
    assert len({each["custom_id"] for each in found}) == len(found)
    return {each["custom_id"]: each for each in found}


@pytest.fixture(scope="module")
def batching(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    settings = ServerSettings(
        batch_folder=tmp_path_factory.mktemp("batches") / "new",
        batch_folder_bytes=200_000,
        api_keys=("one", "two"),
    )
    with running(settings) as made:
        yield made


def test_a_batch_is_answered_in_the_form_that_clients_know(batching: RunningServer) -> None:
    client = batching.openai("one")
    content = lines(12) + lines(13, temperature=-1).splitlines()[-1] + b"\n"
    begun = begin(client, content, metadata={"run": "7"})
    assert begun.status in ("validating", "in_progress", "completed")
    batch = ended(client, begun.id)
    assert batch.status == "completed"
    assert batch.request_counts is not None
    assert batch.request_counts.model_dump() == {"total": 13, "completed": 12, "failed": 1}
    assert batch.metadata == {"run": "7"}
    found = answers(client, batch.output_file_id)
    assert found.keys() == {str(n) for n in range(12)}
    assert found["3"]["response"]["body"]["object"] == "text_completion"
    (failed,) = answers(client, batch.error_file_id).values()
    assert failed["response"]["status_code"] == 400
    assert client.batches.list().data[0].id == batch.id
    assert client.files.retrieve(batch.output_file_id or "").purpose == "batch_output"
    assert client.files.content(batch.input_file_id).content == content


def test_nobody_gets_what_belongs_to_another_key(batching: RunningServer) -> None:
    mine, theirs = batching.openai("one"), batching.openai("two")
    batch = ended(mine, begin(mine, lines(1)).id)
    assert batch.output_file_id
    for ask in (
        lambda: theirs.batches.retrieve(batch.id),
        lambda: theirs.batches.cancel(batch.id),
        lambda: theirs.files.retrieve(batch.input_file_id),
        lambda: theirs.files.content(batch.output_file_id or ""),
        lambda: theirs.files.delete(batch.input_file_id),
        lambda: theirs.batches.create(
            input_file_id=batch.input_file_id, endpoint=TEXT, completion_window="24h"
        ),
    ):
        with pytest.raises(openai.NotFoundError):
            ask()
    assert not theirs.files.list().data
    assert not theirs.batches.list().data


def test_a_file_with_problems_fails_with_their_lines(batching: RunningServer) -> None:
    client = batching.openai("one")
    batch = ended(client, begin(client, lines(2) + b"no JSON\n" + lines(1)).id)
    assert batch.status == "failed"
    assert batch.errors is not None
    assert [(each.line, each.code) for each in batch.errors.data or ()] == [
        (3, "invalid_json_line"), (4, "duplicate_custom_id")
    ]  # fmt: skip
    other = ended(client, begin(client, lines(1), endpoint="/v1/embeddings").id)
    assert other.errors is not None
    assert [each.code for each in other.errors.data or ()] == ["mismatched_url"]


def test_files_are_deleted_and_their_room_is_free_again(batching: RunningServer) -> None:
    client = batching.openai("two")
    large = b"x" * 120_000
    for _ in range(3):
        file_id = upload(client, large)
        with pytest.raises(openai.APIStatusError, match="delete some") as error:
            upload(client, large)
        assert error.value.status_code == 413
        assert client.files.delete(file_id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(file_id)


@pytest.mark.parametrize("fields", [{"purpose": "assistants"}, {"purpose": None}])
def test_other_purposes_are_refused(batching: RunningServer, fields: dict[str, Any]) -> None:
    headers = {"authorization": "Bearer one"}
    body = {k: v for k, v in fields.items() if v is not None}
    reply = batching.http.post(
        "/v1/files", files={"file": ("a.jsonl", lines(1))}, data=body, headers=headers
    )
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "purpose"


def test_a_server_without_a_folder_says_which_flag_it_needs(server: RunningServer) -> None:
    for path in ("/v1/files", "/v1/batches", "/v1/files/a/content"):
        reply = server.http.get(path)
        assert reply.status_code == 403
        assert "--batch-dir" in reply.json()["error"]["message"]


def test_a_cancelled_batch_keeps_its_answers_and_a_stopped_server_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_down(0.01, monkeypatch.setattr)
    settings = ServerSettings(batch_folder=tmp_path)
    with running(settings) as first:
        client = first.openai()
        stopped = begin(client, lines(30, ignore_eos=True, max_tokens=10))
        waiting = begin(client, lines(2))
        with pytest.raises(openai.ConflictError):
            client.files.delete(stopped.input_file_id)
        assert client.batches.cancel(waiting.id).status in ("cancelling", "cancelled")

        def progress() -> int:
            counts = client.batches.retrieve(stopped.id).request_counts
            return counts.completed if counts else 0

        until(lambda: progress() > 4)
    with running(settings) as second:
        client = second.openai()
        batch = ended(client, stopped.id)
        assert batch.status == "completed"
        found = answers(client, batch.output_file_id)
        assert found.keys() == {str(n) for n in range(30)}
        assert ended(client, waiting.id).status == "cancelled"
        third = begin(client, lines(200, ignore_eos=True, max_tokens=20))
        until(lambda: (client.batches.retrieve(third.id).request_counts or third).completed > 2)
        client.batches.cancel(third.id)
        batch = ended(client, third.id)
        assert batch.status == "cancelled"
        assert 2 < len(answers(client, batch.output_file_id)) < 200
        with pytest.raises(openai.ConflictError):
            client.batches.cancel(third.id)


def test_other_requests_have_their_turns_beside_a_batch(
    batching: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_down(0.01, monkeypatch.setattr)
    client = batching.openai("one")
    batch = begin(client, lines(100, ignore_eos=True, max_tokens=30))
    until(lambda: batching.server.service.num_replies >= 4)
    headers = {"authorization": "Bearer two"}
    body = {"prompt": "Hi", "max_tokens": 2}
    assert batching.http.post(TEXT, json=body, headers=headers).status_code == 200
    status = client.batches.retrieve(batch.id).status
    client.batches.cancel(batch.id)
    assert status == "in_progress"
    ended(client, batch.id)


def test_what_is_too_old_goes_and_one_server_has_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = BatchFolder(tmp_path, 2**20)
    file = kept.add_file("", b"{}\n")
    with pytest.raises(UsageError, match="another server has"):
        BatchFolder(tmp_path, 2**20)
    kept.close()
    (tmp_path / "file-unknown.jsonl").write_bytes(b"left behind")
    again = BatchFolder(tmp_path, 2**20)
    assert [each.id for each in again.files("")] == [file.id]
    assert not (tmp_path / "file-unknown.jsonl").exists()
    now_s = time.time() + folder_module.KEPT_S + 1
    monkeypatch.setattr(folder_module.time, "time", lambda: now_s)
    again.expire()
    assert not again.files("")
    assert {each.name for each in tmp_path.iterdir()} == {"lock"}
    again.close()
