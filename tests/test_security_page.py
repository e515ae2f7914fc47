"""The manual's page on security agrees with the program: its links, its tests, its budgets."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from mrs.architecture.vision_spec import MAX_ASPECT_RATIO
from mrs.distributed.protocol import handshake, secret
from mrs.grammar import compiler, trial
from mrs.grammar import source as grammar_source
from mrs.grammar.mask import MOST_FORCED
from mrs.media import audio_file, decoded_image, media_loader, media_memory
from mrs.media.read_media import DEFAULT_READ_LIMITS
from mrs.media.video_file import DEFAULT_VIDEO_LIMITS
from mrs.plan.memory import server_budget
from mrs.process import request_memory, turns
from mrs.request import VisionRequest
from mrs.request.setting_kinds import Biases, Texts
from mrs.server.batches import folder as batch_folder
from mrs.server.batches import queue
from mrs.server.http import exchange, form, pace, protocol
from mrs.server.replies import group, response_store
from mrs.server.schemas import chat_message, completion_request
from mrs.server.schemas.sampling import SamplingFields
from mrs.server.settings import ServerSettings
from mrs.source import folder, gguf_header, gguf_values, http_client, safetensors_header
from mrs.text import pdf_text, template, template_process
from mrs_cli.chat import session
from mrs_cli.chat.tools import mcp_connections, tool_box

REPOSITORY = Path(__file__).parents[1]
PAGE = REPOSITORY / "man/security.md"
KI, MI = 2**10, 2**20


@cache
def page() -> str:
    return PAGE.read_text(encoding="utf-8")


def rows(of: str) -> list[list[str]]:
    """The cells of a table whose first row begins with `of`."""
    lines = page().split(f"\n| {of} |", 1)[1].split("\n\n", 1)[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def anchors() -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_link_of_the_page_leads_somewhere() -> None:
    links = re.findall(r"\]\(([^)]+)\)", page())
    assert len(links) > 100
    for link in set(links):
        file, _, anchor = link.partition("#")
        if file:
            assert (PAGE.parent / file).is_file(), link
        else:
            assert anchor in anchors(), link


def test_every_test_that_the_page_names_exists() -> None:
    named = re.findall(r"\[`(test_\w+)`\]\(([^)]+)\)", page())
    assert len(named) > 50
    for name, file in named:
        text = (PAGE.parent / file).read_text(encoding="utf-8")
        assert re.search(rf"^def {name}\(", text, re.MULTILINE), (name, file)


def test_each_advisory_is_judged_once_and_with_a_reason() -> None:
    reviews = page().split("\n## Outside reviews\n")[1]
    tables = [line for line in reviews.splitlines() if line.startswith("| ")]
    for line in tables:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert len(cells) == 4, line
        assert all(cells[1:]), line
    numbers = re.findall(r"CVE-\d{4}-\d{4,}|GHSA(?:-\w{4}){3}", reviews)
    assert len(numbers) > 150
    assert not {each for each in numbers if numbers.count(each) > 1}


def grouped(number: float) -> str:
    return f"{number:,.0f}"


def budgets() -> dict[str, str]:
    """What the table has to say, from the constants that the program enforces."""
    server, images, videos = ServerSettings(), decoded_image.DEFAULT_LIMITS, DEFAULT_VIDEO_LIMITS
    read = DEFAULT_READ_LIMITS
    most_replies = schema_maximum("n")
    assert turns._SHARE == 3
    assert pace.LEAST_BYTES_PER_S == 16 * KI
    assert protocol._CHUNK_BYTES == 64
    assert template._CHARACTERS_PER_INPUT_CHARACTER == 64
    return {
        "body of a request": f"{server.max_body_bytes // MI} MiB",
        "commas in a body, lists, or objects, or twice the context's tokens": grouped(
            exchange.MOST_SIGNS
        ),
        "chunks of a body, and one more for each 64 bytes": grouped(protocol._FREE_CHUNKS),
        "share of the memory for bodies that one client gets": "three times what is free",
        "head of a request before it is complete": f"{head_bytes() // KI} KiB",
        "open connections (or half of the file descriptors)": grouped(server.max_connections),
        "the same with TLS": grouped(replace(server, tls_cert=Path("cert.pem")).open_connections),
        "files and batches of clients, with --batch-dir; all together": (
            f"{grouped(batch_folder.MOST_ENTRIES)}; {server.batch_folder_bytes // 2**30} GiB"
        ),
        "lines of a batch; its time; how long its files are kept": (
            f"{grouped(queue.MOST_LINES)}; {batch_folder.WINDOW_S // 3600} h; "
            f"{batch_folder.KEPT_S // 86400} days"
        ),
        "time for a head; for a body, plus a second for each 16 KiB": (
            f"{server.read_timeout_s:g} s"
        ),
        "what a reply may be ahead of its reader": f"{group.UNREAD_BYTES // MI} MiB",
        "replies that wait for a free sequence": grouped(server.max_queue),
        "replies to a request": grouped(most_replies),
        "texts of a request to complete, embed, rank or classify": grouped(
            completion_request.MOST_TEXTS
        ),
        "messages of a conversation": grouped(chat_message.MOST_MESSAGES),
        "tools of a request": grouped(chat_message.MOST_TOOLS),
        "entries of `logit_bias`": grouped(Biases().most),
        "stop strings; characters of each": f"{Texts().most}; {grouped(Texts().longest)}",
        "log probabilities of a token": grouped(20),
        "stored responses, all together": f"{response_store._MOST_BYTES // MI} MiB",
        "a text that is counted or cut, at least": f"{request_memory.CUT_TEXT_BYTES // KI} KiB",
        "a grammar or schema": f"{grammar_source._MAX_CHARACTERS // MI} Mi characters",
        "processor time to compile a grammar, in a process of its own first": (
            f"{trial.MAX_SECONDS:g} s"
        ),
        "text that a grammar leaves no choice about": f"{grouped(MOST_FORCED)} bytes or tokens",
        "compiled grammars that are remembered": (
            f"{compiler._MAX_COMPILED}, {compiler._MOST_BYTES // MI} MiB"
        ),
        "file of an image": f"{read.image_bytes // MI} MiB",
        "pixels of an image": f"{images.pixels // MI} Mi",
        "an image's long edge, by its short one": grouped(MAX_ASPECT_RATIO),
        "decoded images that are remembered": f"{media_memory.REMEMBERED_BYTES // MI} MiB",
        "file of a video": f"{read.video_bytes // MI} MiB",
        "pixels of a video's frame": f"{videos.pixels // MI} Mi",
        "prepared videos and audio files that are remembered": (
            f"{media_loader._CACHED_VIDEO_BYTES // MI} MiB"
        ),
        "file of audio; its channels": (
            f"{read.audio_bytes // MI} MiB; {audio_file._MOST_CHANNELS}"
        ),
        "audio of a message; a recording to transcribe": (
            f"{VisionRequest().max_audio_seconds} s by default; "
            f"{grouped(request_memory.LONGEST_RECORDING_S)} s"
        ),
        "spectrograms of recordings that are heard window by window, all together": (
            "those of "
            f"{grouped(server_budget._RECORDINGS_AT_ONCE * request_memory.LONGEST_RECORDING_S)} s"
        ),
        "fields of a form; a field that is no file": (
            f"{form._MOST_FIELDS}; {form._MOST_TEXT_BYTES // KI} KiB"
        ),
        "download of an image": (f"{read.download_s:g} s, {http_client.MAX_REDIRECTS} redirects"),
        "processor time of a chat template": f"{template_process.MAX_SECONDS:g} s",
        "memory of each of two processes of chat templates": (
            f"{template_process.MAX_BYTES // MI} MiB"
        ),
        "file of a PDF that is attached to a chat; its pages; its text": (
            f"{pdf_text.MAX_FILE_BYTES // MI} MiB; {grouped(pdf_text.MAX_PAGES)}; "
            f"{pdf_text.MAX_CHARACTERS // MI} Mi characters"
        ),
        "processor time and memory of the process that reads it": (
            f"{pdf_text.MAX_SECONDS:g} s, {pdf_text.MAX_BYTES // MI} MiB"
        ),
        "tools of an MCP server; rounds of calls before an answer": (
            f"{mcp_connections.MAX_TOOLS}; {session.MAX_ROUNDS}"
        ),
        "time of a call of an MCP server; its result": (
            f"{mcp_connections.CALL_SECONDS:g} s; "
            f"{tool_box.MAX_RESULT_CHARACTERS // KI} Ki characters"
        ),
        "output of a chat template, plus 64 characters for each of the conversation": (
            f"{template._BASE_CHARACTERS // KI} Ki characters"
        ),
        "header of a safetensors file": f"{safetensors_header.MAX_HEADER_BYTES // 10**6} MB",
        "config, index or tokenizer of a model": f"{folder.MAX_TEXT_BYTES // MI} MiB",
        "dimensions of a tensor in a GGUF file; depth of nested metadata": (
            f"{gguf_header.MAX_DIMENSIONS}; {gguf_values.MAX_DEPTH}"
        ),
        "tensors of a GGUF file, entries of its metadata, arrays in it; values of an array": (
            f"{grouped(gguf_values.MAX_ENTRIES)}; {gguf_values.MAX_VALUES // MI} Mi"
        ),
        "strangers that greet a cluster's port at a time": grouped(handshake.MOST_STRANGERS),
        "time for a whole greeting": f"{handshake.GREETING_S:g} s",
        "characters of a cluster's secret, at least": grouped(secret.LEAST_CHARACTERS),
    }


def schema_maximum(field: str) -> int:
    import msgspec

    schema = msgspec.json.schema_components([SamplingFields])[1]["SamplingFields"]
    kinds = schema["properties"][field]["anyOf"]
    return int(next(kind["maximum"] for kind in kinds if "maximum" in kind))


def head_bytes() -> int:
    from h11._connection import DEFAULT_MAX_INCOMPLETE_EVENT_SIZE

    return DEFAULT_MAX_INCOMPLETE_EVENT_SIZE


def test_the_budgets_are_those_of_the_program() -> None:
    assert {label: value for label, value in rows("bound")} == budgets()


#: Calls that make code of bytes, or a command of a text.
_CODE = re.compile(
    r"(pickle|cPickle|dill|cloudpickle|joblib|marshal|shelve|runpy|code|imp)\..*|eval|exec|compile"
    r"|__import__|(torch|np|numpy)\.load|torch\.hub\..*|yaml\.(load|full_load|unsafe_load).*"
    r"|os\.(system|popen)|subprocess\.getoutput|.*\.(broadcast|gather|scatter|send|recv)_object.*"
)
#: Modules that make objects of bytes as soon as they are used.
_MODULES = {"pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
#: The hook of the wheel runs the file beside it that compiles the kernels.
_ALLOWED = {("core/mrs/kernels/cpu/native/build.py", "runpy.run_path")}


@pytest.mark.full
@pytest.mark.parametrize("root", ["core/mrs", "cli/mrs_cli"])
def test_nothing_unpickles_or_evaluates(root: str) -> None:
    """No file of a model, message of a peer or text of a request can become code."""
    files = sorted((REPOSITORY / root).rglob("*.py"))
    assert len(files) > 50
    found = []
    for path in files:
        name = path.relative_to(REPOSITORY).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                unsafe = _CODE.fullmatch(called) and (name, called) not in _ALLOWED
                if unsafe or asks_for_code(called, node):
                    found.append(f"{name}:{node.lineno} {called}")
            elif isinstance(node, ast.Import | ast.ImportFrom):
                modules = [alias.name for alias in node.names]
                modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else modules
                found += [f"{name}:{node.lineno} {each}" for each in _MODULES & set(modules)]
    assert not found


def asks_for_code(called: str, call: ast.Call) -> bool:
    keywords = {keyword.arg for keyword in call.keywords}
    is_command = called.startswith("subprocess.") and "shell" in keywords
    return is_command or bool(keywords & {"allow_pickle", "trust_remote_code", "weights_only"})
