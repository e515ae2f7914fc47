"""What a coordinator can have a worker load, and what it learns of the worker's files: nothing."""

from __future__ import annotations

import io
import os
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from clusters import Workers, cluster_decoder, request_for
from test_exact import config_of

from mrs.distributed.access import Access, NotAllowed
from mrs.distributed.process_group import SharedFile, follow_group, is_shared_memory
from mrs.distributed.protocol.channel import Damaged
from mrs.distributed.protocol.messages import GroupMemory
from mrs.distributed.shard import memory_bytes
from mrs.errors import ExitCode, MrsError, NotReadable
from mrs.request import AdapterRequest, ModelSource, RunRequest
from mrs.source.locate import locate
from mrs_cli.app import main
from mrs_cli.environment import Environment
from support.model_files import write_model
from support.waiting import until


def asked(model_id: str = "demo", **changes: Any) -> RunRequest:
    """A coordinator's request; names of `ModelSource` are those of its source."""
    own = {each.name for each in fields(ModelSource)}
    source = {name: changes.pop(name) for name in own & changes.keys()}
    return RunRequest(ModelSource(model_id, "safetensors", **source), **changes)


def refusal(access: Access, request: RunRequest) -> str:
    with pytest.raises(NotAllowed) as raised:
        access.checked(request)
    return str(raised.value)


#: Texts of requests that are no names of files, and those that `Access` judges or takes out.
VALUES = {
    "RunRequest": "arch dtype isq strategy speculate prefix_cache_size prefix_cache_dir_size "
    "reasoning_effort reasoning_budget_message devices reserved_bytes",
    "ModelSource": "container",
    "AdapterRequest": "name",
}
JUDGED = {
    "RunRequest": "imatrix adapters calibration_file layer_map prefix_cache_dir chat_template "
    "jinja_explicit draft_model plan_file write_uqff",
    "ModelSource": "model_id filenames revision token_source cache_path tokenizer_json "
    "tokenizer_model_id mmproj uqff",
    "AdapterRequest": "model_id revision",
}


@pytest.mark.parametrize("kind", [RunRequest, ModelSource, AdapterRequest])
def test_every_text_of_a_request_is_a_value_or_is_judged(kind: type) -> None:
    """A new field has to be put into one of the lists, and into `Access` if it is a name."""
    texts = ("str", "tuple", "Effort", "Dtype", "Strategy", "Speculation", "Container")
    found = {each.name for each in fields(kind) if any(part in str(each.type) for part in texts)}
    assert found == {*VALUES[kind.__name__].split(), *JUDGED[kind.__name__].split()}


def test_a_worker_takes_no_settings_of_files_from_a_head() -> None:
    hostile = asked(
        token_source="path:/etc/shadow",
        cache_path="/elsewhere",
        tokenizer_json="/etc/passwd",
        tokenizer_model_id="/root",
        calibration_file="/etc/passwd",
        chat_template="/etc/passwd",
        jinja_explicit="/etc/passwd",
        draft_model="/root",
        plan_file="/etc/passwd",
        prefix_cache_dir="/root",
        write_uqff="/root/x",
        isq="q4k",
    )
    found = Access(token_source="env:OWN").checked(hostile)
    assert found == asked(token_source="env:OWN", prefers_hub=True, isq="q4k")


@pytest.mark.parametrize(
    ("allowed", "name"),
    [
        (("*",), "meta-llama/Llama-3.2-1B"),
        (("*",), "gpt2"),
        (("*",), "https://huggingface.co/meta-llama/Llama-3.2-1B"),
        (("meta-llama/*",), "meta-llama/Llama-3.2-1B"),
        (("other/x", "meta-llama/Llama-3.2-1B"), "meta-llama/Llama-3.2-1B"),
        ((), "demo"),
    ],
)
def test_names_of_the_hub_that_are_allowed(allowed: tuple[str, ...], name: str) -> None:
    found = Access(allowed=allowed).checked(asked(name)).source
    assert found.model_id == name.removeprefix("https://huggingface.co/")
    adapter = asked(adapters=(AdapterRequest(name),))
    Access(allowed=allowed).checked(adapter)


@pytest.mark.parametrize(
    ("allowed", "name"),
    [
        (("*",), "/etc"),
        (("*",), "../model"),
        (("*",), "./model"),
        (("*",), "~/model"),
        (("*",), "a/b/c"),
        (("*",), "model.gguf"),
        (("*",), "*"),
        (("*",), "https://elsewhere.org/a/b"),
        (("*",), "file:///etc"),
        (("meta-llama/*",), "other/model"),
        (("meta-llama/*",), "gpt2"),
        ((), "gpt2"),
        (("*",), "a\0b"),
    ],
)
def test_names_that_are_not_allowed(allowed: tuple[str, ...], name: str) -> None:
    refusal(Access(allowed=allowed), asked(name))
    refusal(Access(allowed=allowed), asked(adapters=(AdapterRequest(name),)))


def test_folders_of_a_worker_are_allowed_with_all_in_them(tmp_path: Path) -> None:
    allowed = tmp_path / "allowed"
    (allowed / "model").mkdir(parents=True)
    (tmp_path / "allowed-not").mkdir()
    access = Access(allowed=(str(allowed),))
    for name in ("model", "model/x.gguf", "missing", "", "model/../model"):
        found = access.checked(asked(f"{allowed}/{name}", imatrix=f"{allowed}/{name}"))
        expected = os.path.normpath(f"{allowed}/{name}")
        assert (found.source.model_id, found.imatrix) == (expected, expected)
    for name in ("..", "../allowed-not", "model/../../x", "../../etc"):
        refusal(access, asked(f"{allowed}/{name}"))
        refusal(access, asked(imatrix=f"{allowed}/{name}"))
        refusal(access, asked(adapters=(AdapterRequest(f"{allowed}/{name}"),)))


@pytest.mark.parametrize("field", ["filenames", "uqff", "mmproj"])
@pytest.mark.parametrize(
    "name", ["../x.gguf", "/x.gguf", "a/../../x", "a.gguf ../x.gguf", "a;/x", "..\\x", "C:\\x"]
)
def test_files_of_a_model_are_in_its_folder(field: str, name: str, tmp_path: Path) -> None:
    """Also those of the worker's own copy, whose folder the coordinator does not know."""
    for access in (Access(), Access(str(tmp_path))):
        refusal(access, asked("a/b", **{field: name if field == "mmproj" else (name,)}))
    Access().checked(asked("a/b", **{field: "x/y.gguf" if field == "mmproj" else ("x/y.gguf",)}))


@pytest.mark.parametrize("revision", ["../../x", "/etc", "a/../b", "", "a\0", ".."])
def test_a_revision_is_no_path(revision: str) -> None:
    refusal(Access(), asked("a/b", revision=revision))
    refusal(Access(), asked(adapters=(AdapterRequest("a/b", revision=revision),)))


def test_a_revision_in_an_address_is_no_path_either() -> None:
    refusal(Access(), asked("https://huggingface.co/a/b/tree/..%2F..%2Fx"))
    found = Access().checked(asked("https://huggingface.co/a/b/tree/refs%2Fpr%2F1")).source
    assert (found.model_id, found.revision) == ("a/b", "refs/pr/1")


def test_a_refusal_is_the_same_for_what_exists_and_what_does_not(tmp_path: Path) -> None:
    write_model(tmp_path / "there", config_of("dense"), std=0.2)
    (tmp_path / "text").write_text("first bytes")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "there")
    found = {
        refusal(Access(), request).replace(name, "NAME")
        for name in ("there", "text", "pipe", "link", "missing", "text/x", "there/config.json")
        for request in (
            asked(str(tmp_path / name)),
            asked(imatrix=str(tmp_path / name)),
            asked(adapters=(AdapterRequest(str(tmp_path / name)),)),
        )
    }
    assert len(found) == 1


def test_what_is_not_allowed_is_not_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touched: list[str] = []
    for name in ("stat", "lstat", "open", "scandir", "readlink", "listdir", "access"):
        original = getattr(os, name)

        def noted(path: Any, *given: Any, original: Any = original, **named: Any) -> Any:
            touched.append(str(path))
            return original(path, *given, **named)

        monkeypatch.setattr(os, name, noted)
    refusal(Access(), asked(f"{tmp_path}/forbidden"))
    refusal(Access(allowed=(str(tmp_path / "own"),)), asked(f"{tmp_path}/own/../forbidden"))
    assert touched
    assert not [each for each in touched if "forbidden" in each]


def test_a_name_of_the_hub_is_no_folder_of_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    write_model(tmp_path / "owner" / "model", config_of("dense"), std=0.2)
    words = set()
    for name in ("owner/model", "owner/other"):
        source = Access().checked(asked(name)).source
        with pytest.raises(NotReadable) as raised:
            locate(source)
        words.add(str(raised.value).replace(name, "NAME"))
    assert len(words) == 1
    own = Access("owner/model").checked(asked("whatever/else")).source
    assert locate(own)[1].path == tmp_path / "owner" / "model"


def test_a_rank_with_the_heads_command_line_loads_what_that_names(tmp_path: Path) -> None:
    request = asked(
        str(tmp_path), adapters=(AdapterRequest("a/b"),), imatrix=str(tmp_path / "i.dat")
    )
    (tmp_path / "i.dat").touch()
    access = Access.of(request)
    assert access.checked(request) == replace(
        request, source=replace(request.source, prefers_hub=True)
    )
    refusal(access, replace(request, adapters=(AdapterRequest("a/c"),)))
    refusal(access, replace(request, imatrix="/etc/passwd"))


@pytest.mark.full
def test_a_head_learns_nothing_of_files_and_a_worker_serves_the_next(tmp_path: Path) -> None:
    """The words are those of the coordinator; the worker's own log says more."""
    good = write_model(tmp_path / "good", config_of("dense"), std=0.2)
    damaged = write_model(tmp_path / "damaged", config_of("dense"), std=0.2)
    (damaged / "config.json").write_text('{"model_type": "PRIVATE-WORD')
    workers = Workers(tmp_path, 1, access=Access(allowed=(str(tmp_path / "elsewhere"),)))
    others = Workers(tmp_path, 1, access=Access(str(damaged)), once=True)
    try:
        with pytest.raises(MrsError, match=r"while loading layers .*: this worker may not load"):
            cluster_decoder(request_for(good, workers.port, 1)).__enter__()
        with pytest.raises(MrsError) as raised:
            cluster_decoder(request_for(good, others.port, 1)).__enter__()
        assert str(raised.value).endswith(": its own log says why")
        assert raised.value.exit_code == ExitCode.NOT_READABLE
        others.processes[0].join(60)
        assert f"config.json is not valid JSON ({damaged})" in others.said(0)
        until(lambda: "error: this worker may not load" in workers.said(0))
        assert workers.processes[0].is_alive()
        demo = replace(
            request_for(good, workers.port, 1), source=ModelSource("demo", "safetensors")
        )
        with cluster_decoder(demo):
            assert "rank 1 has layers" in workers.said(0)
    finally:
        workers.end()
        others.end()


class _Leader:
    """The first process of a group, which names a file."""

    def __init__(self, path: str, *, is_store: bool) -> None:
        self._message = GroupMemory(path, is_store)

    def expect(self, kinds: object, data_bytes: int) -> None:
        pass

    def take(self, kind: type[GroupMemory]) -> GroupMemory:
        return self._message

    def damaged(self, what: str, where: str = "") -> Damaged:
        return Damaged(what, where=where)


@pytest.mark.parametrize("is_store", [True, False])
def test_a_group_shares_memory_and_no_other_file(tmp_path: Path, is_store: bool) -> None:
    import torch

    victim = tmp_path / "victim"
    victim.write_bytes(bytes(memory_bytes(2)))
    own = os.open(victim, os.O_RDWR)
    words = set()
    for path in (
        str(victim),
        str(tmp_path / "new"),
        f"/proc/{os.getpid()}/fd/{own}",
        f"/proc/{os.getpid()}/fd/99999",
        f"/proc/self/fd/{own}",
        "/proc/self/mem",
    ):
        peers: Any = {0: _Leader(path, is_store=is_store)}
        with pytest.raises(Damaged) as raised:
            follow_group(1, peers, torch.device("cpu"))
        words.add(str(raised.value))
    os.close(own)
    assert len(words) == 1
    assert victim.read_bytes() == bytes(memory_bytes(2))
    assert not (tmp_path / "new").exists()
    file = SharedFile(memory_bytes(2))
    assert is_shared_memory(str(file.path))
    file.remove()


@pytest.mark.parametrize(
    ("words", "variables", "expected"),
    [
        ((), {}, Access()),
        (("-m", "x", "--token-source", "none"), {}, Access("x", ("*",), "none")),
        (("--allow-model", "a/*", "--allow-model", "/m"), {}, Access(None, ("a/*", "/m"))),
        ((), {"MRS_PARENT_PID": "1"}, None),  # the coordinator has started it
    ],
)
def test_flags_of_a_worker_are_limits_of_heads(
    words: tuple[str, ...],
    variables: dict[str, str],
    expected: Access | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[Access | None] = []
    monkeypatch.setattr(
        "mrs.distributed.worker.run_worker",
        lambda settings, say, planner: found.append(settings.access),
    )
    streams = io.StringIO(), io.StringIO(), io.StringIO()
    environment = Environment(*streams, variables=variables)
    assert main(("worker", "--join", "127.0.0.1:1", *words), environment) == 0
    assert found == [expected]
    wrong = ("worker", "--join", "127.0.0.1:1", "--token-source", "literal")
    assert main(wrong, environment) == ExitCode.USAGE
