"""What a worker reads of the coordinator's request."""

from __future__ import annotations

from mrs.distributed.shard import read_request, request_json
from mrs.request import ModelSource, RunRequest
from mrs.topology import Rule, Topology


def test_a_request_arrives_as_it_was() -> None:
    rules = Topology((Rule("0-1", isq="q8_0"),), where="t.yml")
    request = RunRequest(ModelSource("demo", "gguf"), isq="q4k", moqe=True, topology=rules)
    assert read_request(request_json(request)) == request
