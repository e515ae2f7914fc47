"""The demo vision model answers questions about new images, run by the engine itself."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from PIL import Image

from demo_training.vision.dialogues import Dialogue
from demo_training.vision.drawing import draw
from demo_training.vision.evaluate import held_out_dialogues, held_out_images
from mrs.events import Finished, TextDelta
from mrs.media.read_media import read_media
from mrs.request import IMAGE_MARK, Message, ModelSource, RunRequest, Sampling, VisionRequest
from mrs.run.loaded_model import LoadedModel
from mrs.run.model_loader import ModelLoader
from support.suites import first

IMAGES = Path(__file__).parent.parent / "pictures"
GREEDY = Sampling(temperature=0, frequency_penalty=0, presence_penalty=0, max_tokens=100)


def load_demo(**fields: object) -> LoadedModel:
    source = ModelSource("demo-vision", "safetensors")
    return ModelLoader(
        RunRequest(source, cpu=True, max_seq_len=1024, vision=VisionRequest(), **fields)
    ).load()


@pytest.fixture(scope="module")
def demo() -> Iterator[LoadedModel]:
    model = load_demo(dtype="f32")
    yield model
    model.close()


def reply(model: LoadedModel, messages: Sequence[Message]) -> str:
    """The whole reply; empty when it did not end by itself."""
    events = list(model.stream_chat(messages, GREEDY))
    finished = events[-1]
    assert isinstance(finished, Finished)
    text = "".join(event.text for event in events if isinstance(event, TextDelta))
    return text if finished.reason == "stop" else ""


def user(text: str, images: Sequence[Path] = ()) -> Message:
    marked = IMAGE_MARK * len(images) + text
    return Message(role="user", content=marked, images=[read_media(str(image)) for image in images])


def messages_of(chat: Dialogue, folder: Path) -> list[Message]:
    """The dialogue up to its last question, its images written into `folder`."""
    messages = [Message(role="system", content=chat.system)] if chat.system else []
    for turn in chat.turns:
        files = [folder / f"{scene.seed}.png" for scene in turn.scenes]
        for file, scene in zip(files, turn.scenes, strict=True):
            draw(scene).save(file)
        messages.append(user(turn.asked.question, files))
        messages.append(Message(role="assistant", content=turn.asked.answer))
    return messages[:-1]


def wrong(
    model: LoadedModel, chats: Sequence[Dialogue], folder: Path
) -> list[tuple[str, str, str]]:
    """Question, reply and right answer where they differ."""
    asked = [(chat.turns[-1].asked, reply(model, messages_of(chat, folder))) for chat in chats]
    return [(turn.question, said, turn.answer) for turn, said in asked if said != turn.answer]


@pytest.mark.full
@pytest.mark.parametrize("num_images", first(1, (40, 100)))
def test_says_what_is_in_held_out_images(
    num_images: int, demo: LoadedModel, tmp_path: Path
) -> None:
    chats = list(held_out_images(num_images))
    failed = wrong(demo, chats, tmp_path)
    assert len(failed) <= 0.05 * len(chats), failed


@pytest.mark.full
@pytest.mark.parametrize("num_chats", first(1, (25, 60)))
def test_answers_in_held_out_dialogues(num_chats: int, demo: LoadedModel, tmp_path: Path) -> None:
    chats = list(held_out_dialogues(num_chats))
    failed = wrong(demo, chats, tmp_path)
    assert len(failed) <= 0.15 * len(chats), failed


@pytest.mark.full
@pytest.mark.parametrize("isq", ["q4k", "q8_0"])
def test_quantized_answers(isq: str, tmp_path: Path) -> None:
    model, chats = load_demo(isq=isq), list(held_out_images(40))
    failed = wrong(model, chats, tmp_path)
    model.close()
    assert len(failed) <= 0.1 * len(chats), failed


@pytest.mark.parametrize("path", sorted(IMAGES.glob("*.png")), ids=lambda path: path.stem)
def test_images_of_the_readme(demo: LoadedModel, path: Path) -> None:
    said = path.stem.replace("_", " ").capitalize() + "."
    assert reply(demo, [user("What is in the picture?", [path])]) == said


def test_follow_ups_and_a_second_image(demo: LoadedModel) -> None:
    paths = sorted(IMAGES.glob("*.png"))
    first, second = paths[:2]
    colour = first.stem.split("_")[1].capitalize()
    messages = [user("What is in the picture?", [first])]
    for question, right in (
        ("What colour are they?", f"{colour}."),
        ("Thank you!", "You are welcome!"),
    ):
        messages.append(Message(role="assistant", content=reply(demo, messages)))
        messages.append(user(question))
        assert reply(demo, messages) == right
    messages.append(Message(role="assistant", content=reply(demo, messages)))
    messages.append(user("And what is in this picture?", [second]))
    assert reply(demo, messages) == second.stem.replace("_", " ").capitalize() + "."


@pytest.mark.parametrize(
    ("question", "part"),
    [
        ("Hello!", "Hello!"),
        ("Who are you?", "vision demo"),
        ("What can you do?", "pictures"),
        ("What is in the picture?", "I see no picture"),
        ("How many circles are there?", "I see no picture"),
        ("What is the capital of France?", "I only know shapes"),
    ],
)
def test_text_alone(demo: LoadedModel, question: str, part: str) -> None:
    assert part in reply(demo, [user(question)])


def test_plain_drawings(demo: LoadedModel, tmp_path: Path) -> None:
    """Images as a person may draw them: other sizes, grey, with transparency."""
    from PIL import ImageDraw

    for name, mode, background, fill, said in (
        ("a.png", "RGB", "white", "red", "One red circle."),
        ("b.png", "L", 255, 0, "One black circle."),
        ("c.webp", "RGB", "black", "yellow", "One yellow circle."),
        ("d.jpg", "RGB", "lightgrey", "blue", "One blue circle."),
    ):
        image = Image.new(mode, (640, 480), background)  # type: ignore[arg-type]
        ImageDraw.Draw(image).ellipse((220, 140, 420, 340), fill=fill)
        image.save(tmp_path / name)
        assert reply(demo, [user("What is in the picture?", [tmp_path / name])]) == said
