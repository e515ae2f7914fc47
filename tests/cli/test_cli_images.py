"""Images in questions: attached, shown, kept through every command, and refused in a line."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import fake_model
import numpy as np
import pytest
from mrs_runs import PROMPT, Ran, Terminal
from PIL import Image

from mrs.media.open_image import open_image
from mrs.media.read_media import read_media
from mrs.request import IMAGE_MARK, ModelSource, RunRequest, VisionRequest
from mrs_cli.app import main
from mrs_cli.environment import Environment

NOBODY = "http://127.0.0.1:1/a.png"
THREE_PLANNED_AS_ONE = (
    "the conversation has 3 images, but the plan counted on 1: add --max-num-images 3"
)


def make_image(path: Path, seed: int = 0, size: tuple[int, int] = (12, 7)) -> Path:
    values = np.random.default_rng(seed).integers(0, 256, (*size[::-1], 3), dtype=np.uint8)
    Image.fromarray(values).save(path)
    return path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a cat and a dog in it."""
    monkeypatch.chdir(tmp_path)
    make_image(tmp_path / "cat.png", 1)
    make_image(tmp_path / "my dog.bmp", 2, (30, 20))
    return tmp_path


@pytest.fixture
def talk() -> Callable[..., Ran]:
    """A chat with a person at a simple terminal: errors do not end it."""

    def run(*said: str, flags: tuple[str, ...] = (), selector: str = "vision-plain") -> Ran:
        models: list[fake_model.FakeModel] = []

        def load(request: RunRequest, on_progress: object = None) -> fake_model.FakeModel:
            models.append(fake_model.load(request))
            return models[-1]

        out, err = io.StringIO(), io.StringIO()
        environment = Environment(Terminal("\n".join(said) + "\n"), out, err, {}, load)
        code = main(["-i", selector, "-m", "x", *flags], environment)
        return Ran(code, out.getvalue(), err.getvalue(), models)

    return run


def conversation(ran: Ran) -> list[tuple[str, list[int]]]:
    """The questions that the model was last asked, with the digests of their images."""
    return [
        (message["content"], [open_image(image).digest for image in message.get("images", ())])
        for message in ran.models[0].asked[-1][0]
        if message["role"] == "user"
    ]


def digest(path: Path) -> int:
    return open_image(read_media(str(path))).digest


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], {}),
        (["-e", "512"], {"max_edge": 512}),
        (["--max-edge", "512"], {"max_edge": 512}),
        (["--max-num-images", "3"], {"max_num_images": 3}),
        (["--max-image-length", "640"], {"max_image_length": 640}),
    ],
)
def test_flags(run_mrs, flags, expected):
    ran = run_mrs("vision-plain", "-m", "x", *flags, "-P", "hello")
    assert (ran.code, ran.request.vision) == (0, VisionRequest(**expected))


def test_vision_plain_is_plain_that_sees(run_mrs):
    line = "-i --isq q4k vision-plain -m meta-llama/Llama-3.2-11B-Vision-Instruct --max-seq-len"
    more = "4096 --max-batch-size 2 --max-num-images 2 --max-image-length 1024"
    assert run_mrs(*line.split(), *more.split(), stdin="hello\n").request == RunRequest(
        ModelSource("meta-llama/Llama-3.2-11B-Vision-Instruct", "safetensors"),
        isq="q4k",
        max_seq_len=4096,
        max_batch_size=2,
        vision=VisionRequest(None, 2, 1024),
    )
    assert run_mrs("plain", "-m", "x", "-P", "a").request.vision is None
    for flag in ("-e", "--max-num-images", "--max-image-length"):
        ran = run_mrs("vision-plain", "-m", "x", flag, "0", "-P", "a")
        assert ran.code == 2
        assert "out of range" in ran.err
        assert "it is a flag of vision-plain" in run_mrs("plain", "-m", "x", flag, "9").err


def test_images_go_with_the_prompt(run_mrs, folder):
    ran = run_mrs(
        *("--image", "cat.png", "vision-plain", "-m", "x", "-P", "What is it?"),
    )
    assert conversation(ran) == [(f"{IMAGE_MARK}What is it?", [digest(folder / "cat.png")])]
    nameless = folder / "shot"
    (folder / "cat.png").rename(nameless)
    held = "data:;base64," + base64.b64encode((folder / "my dog.bmp").read_bytes()).decode()
    ran = run_mrs(
        *("vision-plain", "-m", "x", "--image", str(nameless), "--image", held),
        *("-P", "Older than 'my dog.bmp'?"),
    )
    dog = digest(folder / "my dog.bmp")
    assert conversation(ran) == [(IMAGE_MARK * 3 + "Older than?", [digest(nameless), dog, dog])]
    assert ran.err.splitlines()[-1] == THREE_PLANNED_AS_ONE


def test_images_of_one_name_stay_apart(run_mrs, folder):
    """Images of flags go into the question as they are: nobody looks them up by their names."""
    uris = [
        "data:;name=a.png;base64," + base64.b64encode((folder / name).read_bytes()).decode()
        for name in ("cat.png", "my dog.bmp")
    ]
    ran = run_mrs(
        *("vision-plain", "-m", "x", "--image", uris[0], "--image", uris[1], "-P", "Which is it?")
    )
    both = [digest(folder / "cat.png"), digest(folder / "my dog.bmp")]
    assert conversation(ran) == [(IMAGE_MARK * 2 + "Which is it?", both)]


def test_a_chat_begins_with_images(talk, folder):
    ran = talk("history", flags=("--image", "cat.png", "-P", "What is it?"))
    cat = digest(folder / "cat.png")
    assert conversation(ran) == [(f"{IMAGE_MARK}What is it?", [cat]), ("history", [])]
    assert ran.err.splitlines()[1] == "\u25a3 cat.png 12\u00d77"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["vision-plain", "-m", "x", "--image", "cat.png"], 2, "--image needs a prompt"),
        (["-i", "vision-plain", "-m", "x", "--image", "cat.png"], 2, "add --prompt TEXT"),
        (["plain", "-m", "x", "-P", "a", "--image", "cat.png"], 2, "x is run for text only"),
        (["plain", "-m", "x", "--audio", "a.wav"], 2, "such as Qwen/Qwen3-ASR"),
        (["gguf", "-m", "x", "-f", "a", "-P", "a", "--image", "cat.png"], 2, "with --mmproj FILE"),
        (["vision-plain", "-m", "x", "-P", "a", "--image", "none.png"], 3, "image none.png cannot"),
        (["vision-plain", "-m", "x", "-P", "a", "--image", "bad.png"], 3, "it is not a png, jpg"),
    ],
)
def test_a_wrong_image_is_said_before_the_model_is_loaded(run_mrs, folder, words, code, said):
    (folder / "bad.png").write_text("not an image")
    ran = run_mrs(*words)
    assert (ran.code, len(ran.err.splitlines()), ran.models) == (code, 1, [])
    assert said in ran.err


def test_paths_in_prompts_and_pipes(run_mrs, folder):
    words = ["-q", "--each-line", "vision-plain", "-m", "x"]
    ran = run_mrs(*words, stdin="cat.png one\ntwo\n'my dog.bmp' three\n")
    cat, dog = digest(folder / "cat.png"), digest(folder / "my dog.bmp")
    asked = [messages[-1] for messages, _ in ran.models[0].asked]
    assert [message["content"] for message in asked] == [
        f"{IMAGE_MARK}one",
        "two",
        f"{IMAGE_MARK}three",
    ]
    assert [
        [open_image(image).digest for image in message.get("images", ())] for message in asked
    ] == [[cat], [], [dog]]
    assert (ran.code, ran.err) == (0, "")


def test_a_bad_image_in_a_pipe_is_said_in_its_turn(run_mrs, folder):
    (folder / "bad.png").write_text("not an image")
    words = ["-q", "--each-line", "vision-plain", "-m", "x"]
    ran = run_mrs(*words, stdin="one\nsee bad.png\nthree\n")
    assert (ran.code, ran.out) == (3, "You said: one\n")
    assert ran.err.startswith("mrs: error: image bad.png cannot be read")


def test_a_model_without_vision_is_said_to_see_the_names_of_images_only(run_mrs, folder):
    question = "Who draws cat.png, none.png or https://example.com/dog.png?"
    ran = run_mrs("plain", "-m", "x", "-P", question, stdin="my dog.bmp\nsee cat.png\n")
    ((message,),) = (messages for messages, _ in ran.models[0].asked)
    assert message["content"].startswith(question)
    assert ran.err.count("the model reads no images: of cat.png it sees the name only") == 1
    assert "dog" not in ran.err
    assert "none.png" not in ran.err
    assert ran.code == 0


def test_a_question_about_a_file_that_is_not_there_is_a_question(run_mrs, folder):
    ran = run_mrs("vision-plain", "-m", "x", "-P", "Who draws none.png or cat.png?")
    ((message,),) = (messages for messages, _ in ran.models[0].asked)
    assert message["content"] == f"{IMAGE_MARK}Who draws none.png or?"
    assert "there is no file none.png: the question was sent as it is" in ran.err
    assert ran.code == 0


def test_names_in_what_is_piped_in_attach_nothing(run_mrs, folder):
    words = ["vision-plain", "-m", "x", "-P", "Explain cat.png", "--image", "my dog.bmp"]
    ran = run_mrs(*words, stdin=f"open('cat.png') {IMAGE_MARK}http://127.0.0.1:1/a.png")
    ((message,),) = (messages for messages, _ in ran.models[0].asked)
    assert len(message["images"]) == 2
    piped = "open('cat.png') http://127.0.0.1:1/a.png"
    assert message["content"] == f"{IMAGE_MARK * 2}Explain\n\n{piped}"


@pytest.mark.parametrize("selector", ["plain", "gguf"])
def test_a_path_stays_text_for_models_that_do_not_see(run_mrs, folder, selector):
    source = ["-m", "x", "-f", "a.gguf"] if selector == "gguf" else ["-m", "x"]
    ran = run_mrs(selector, *source, "-P", "Look at cat.png!")
    assert conversation(ran) == [("Look at cat.png!", [])]


def test_a_chat_shows_its_images(talk, folder):
    ran = talk("What is in cat.png?", "cat.png 'my dog.bmp'", "history")
    cat, dog = digest(folder / "cat.png"), digest(folder / "my dog.bmp")
    assert conversation(ran) == [
        (f"{IMAGE_MARK}What is in?", [cat]),
        (IMAGE_MARK * 2, [cat, dog]),
        ("history", []),
    ]
    notes = [line for line in ran.err.splitlines() if "\u25a3" in line or "plan counted" in line]
    assert notes == [
        "> \u25a3 cat.png 12\u00d77",
        "> \u25a3 cat.png 12\u00d77",
        "\u25a3 my dog.bmp 30\u00d720",
        THREE_PLANNED_AS_ONE,
    ]
    assert "plan counted" not in talk("cat.png", "cat.png", flags=("--max-num-images", "2")).err


def test_a_bad_image_loses_nothing(talk, folder, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    (folder / "cut.png").write_bytes((folder / "cat.png").read_bytes()[:60])
    (folder / "bad.png").write_text("no image")
    ran = talk(
        *(
            "cat.png one",
            "bad.png two",
            "cut.png three",
            f"https://[/a.png {NOBODY}",
        ),
        *("\\retry", "history"),
    )
    assert conversation(ran) == [
        (f"{IMAGE_MARK}one", [digest(folder / "cat.png")]),
        ("history", []),
    ]
    errors = [line.removeprefix("> ") for line in ran.err.splitlines() if "error" in line]
    assert errors[0].startswith("mrs: error: image bad.png cannot be read (it is not a png")
    assert errors[1] == "mrs: error: image cut.png cannot be read (it is damaged)"
    nobody = f"mrs: error: image {NOBODY} cannot be read (no answer from 127.0.0.1:1: "
    assert [error.startswith(nobody) for error in errors[2:]] == [True, True]
    assert ran.code == 0


def test_a_mended_image_is_retried(talk, folder):
    ran = talk("late.png one", "\\edit cat.png one", "history")
    assert conversation(ran)[0] == (f"{IMAGE_MARK}one", [digest(folder / "cat.png")])


def test_commands_keep_images_whatever_becomes_of_the_files(talk, folder):
    saved = folder / "chat.json"
    cat, dog = digest(folder / "cat.png"), digest(folder / "my dog.bmp")
    talk("cat.png one", "'my dog.bmp' two", f"\\save {saved}")
    for path in (folder / "cat.png", folder / "my dog.bmp"):
        path.unlink()
    ran = talk(
        *(f"\\load {saved}", "\\retry", "\\edit three", "\\edit four 'my dog.bmp'"),
        *("\\edit cat.png five", "five", "\\undo", "\\undo", "six"),
    )
    assert 'last message: "my dog.bmp" two' in ran.err
    assert "removed: cat.png five" in ran.err
    assert "there is no file cat.png: the question was sent as it is" in ran.err
    asked = [messages[-1] for messages, _ in ran.models[0].asked]
    assert [message["content"].replace(IMAGE_MARK, "#") for message in asked] == [
        "#two",
        "#three",
        "#four",
        "cat.png five",
        "five",
        "six",
    ]
    for message in asked[:3]:
        assert [open_image(image).digest for image in message["images"]] == [dog]
    assert conversation(ran) == [(f"{IMAGE_MARK}one", [cat]), ("six", [])]


def test_a_file_that_changes_is_another_image(talk, folder, monkeypatch):
    before = digest(folder / "cat.png")
    answer = fake_model.FakeModel.stream_chat

    def stream_chat(self, messages, sampling):
        make_image(folder / "cat.png", 9)
        return answer(self, messages, sampling)

    monkeypatch.setattr(fake_model.FakeModel, "stream_chat", stream_chat)
    ran = talk("cat.png one", "\\retry", "cat.png two")
    after = digest(folder / "cat.png")
    assert before != after
    assert conversation(ran) == [(f"{IMAGE_MARK}one", [before]), (f"{IMAGE_MARK}two", [after])]


def test_a_saved_chat_goes_on_with_a_model_that_does_not_see(talk, folder):
    saved, again = folder / "chat.json", folder / "again.json"
    talk("cat.png one", f"\\save {saved}")
    ran = talk(f"\\load {saved}", "history", f"\\save {again}", selector="plain")
    assert conversation(ran) == [("one", []), ("history", [])]
    assert "this model has no vision support: it gets the text without the images" in ran.err
    first = json.loads(again.read_text())["messages"][0]
    assert first == json.loads(saved.read_text())["messages"][0]
    assert open_image(read_media(first["images"][0])).digest == digest(folder / "cat.png")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"images": "cat.png"}, "images of message 1 are not a list of texts"),
        ({"images": [1]}, "images of message 1 are not a list of texts"),
        ({"images": ["a.png", "b.png"]}, "images of message 1 do not match its text"),
        ({"content": "one"}, "images of message 1 do not match its text"),
    ],
)
def test_damaged_images_of_a_saved_chat(talk, folder, change, why):
    saved = folder / "chat.json"
    talk("cat.png one", f"\\save {saved}")
    value = json.loads(saved.read_text())
    value["messages"][0] |= change
    saved.write_text(json.dumps(value))
    assert why in talk(f"\\load {saved}").err


def test_the_log_names_images(run_mrs, folder):
    run_mrs("-l", "log", "vision-plain", "-m", "x", "-P", "cat.png What?")
    request = json.loads((folder / "log").read_text().splitlines()[0])
    assert request["messages"] == [
        {"role": "user", "content": f"{IMAGE_MARK}What?", "images": ["cat.png"]}
    ]


def test_without_a_template_images_go_with_the_conversation(run_mrs, folder):
    ran = run_mrs("vision-plain", "-m", "no-template", "-P", "cat.png What?")
    assert conversation(ran) == [(f"{IMAGE_MARK}What?", [digest(folder / "cat.png")])]
    assert run_mrs("vision-plain", "-m", "no-template", "-P", "What?").models[0].asked[0][0] == (
        "What?"
    )


@pytest.mark.full
def test_a_chat_in_a_terminal(chat, folder):
    child = chat(selector="vision-plain")
    child.send("What is in cat.png?\r")
    child.expect_exact("\u25a3 cat.png 12\u00d77")
    child.expect_exact("You said:")
    child.expect_exact(PROMPT)
    (folder / "cat.png").unlink()
    (folder / "bad.png").write_text("no image")
    child.send("bad.png two\r")
    child.expect_exact("image bad.png cannot be read")
    child.expect_exact(PROMPT)
    child.expect_exact("bad.png two")  # the message stands there again
    child.sendcontrol("u")
    child.send("three\r")
    child.expect_exact("You said: three")
    child.expect_exact(PROMPT)
    child.send("\\undo\r")
    child.expect_exact("removed: three")
    child.expect_exact(PROMPT)
    child.send("\\edit\r")
    child.expect_exact("cat.png What is in?")
    child.send(" Now?\r")
    child.expect_exact("\u25a3 cat.png 12\u00d77")
    child.expect(re.escape("What is in? Now?"))
    child.expect_exact(PROMPT)


@pytest.mark.full
@pytest.mark.parametrize(
    ("typed", "completed", "rest"),
    [
        ("See my\t", "\\ dog.bmp", " now?"),
        *(
            pytest.param(*each, marks=pytest.mark.full)
            for each in (
                ("See ca\t", "t.png", " now?"),
                ("See 'my\t", "dog.bmp'", " now?"),
                ("See sub/de\t", "ep/", "pig.png now?"),
            )
        ),
    ],
)
def test_tab_completes_the_paths_of_images(chat, folder, typed, completed, rest):
    (folder / "cat.txt").touch()
    (folder / "sub" / "deep").mkdir(parents=True)
    make_image(folder / "sub" / "deep" / "pig.png")
    child = chat(selector="vision-plain", cwd=folder)
    child.send(typed)
    child.expect_exact(completed)
    child.send(f"{rest}\r")
    child.expect_exact("12\u00d77" if "dog" not in completed else "30\u00d720")
    child.expect_exact("See now?")


@pytest.mark.full
def test_tab_leaves_messages_alone_where_the_model_does_not_see(chat, folder):
    child = chat(cwd=folder)
    child.send("hel\tlo\r")
    child.expect_exact("fake")
