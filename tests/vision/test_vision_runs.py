"""A vision model, from a folder to its replies: in Python, on the command line, in a chat."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from llava_cases import CLIP
from PIL import Image
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from vision_case import TEXT
from vision_reference import picture

from mrs import ChatCompletionRequest, Runner, Which
from mrs.errors import UsageError
from mrs.media.read_media import read_media
from mrs.request import IMAGE_MARK, Message, ModelSource, RunRequest, Sampling, VisionRequest
from mrs.run.loaded_model import LoadedModel
from mrs.run.model_loader import ModelLoader
from mrs_cli.app import main
from mrs_cli.environment import Environment

#: Takes parts alone, as LLaVA's does.
TEMPLATE = """
{%- for message in messages %}{{ message['role'] + ': ' }}
{%- for part in message['content'] %}
{%- if part['type'] == 'image' %}{{ '<image>\n' }}{% else %}{{ part['text'] + ' ' }}{% endif %}
{%- endfor %}
{%- endfor %}{% if add_generation_prompt %}assistant:{% endif %}"""
REPLY_TOKENS = 12
GREEDY = Sampling(
    temperature=0, frequency_penalty=0, presence_penalty=0, max_tokens=REPLY_TOKENS, logprobs=0
)
SIZES = ((37, 53), (90, 41))


class Reference:
    """A tiny LLaVA of random weights, saved, and what transformers says with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        tokenizer = _tokenizer()
        images = CLIPImageProcessorPil(
            size={"shortest_edge": 24}, crop_size={"height": 24, "width": 24}
        )
        self.processor = transformers.LlavaProcessor(
            images,
            tokenizer,
            patch_size=6,
            vision_feature_select_strategy="default",
            num_additional_image_tokens=1,
            chat_template=TEMPLATE,
        )
        config = transformers.LlavaConfig(
            text_config={"model_type": "llama", **TEXT, "vocab_size": len(tokenizer)},
            vision_config=CLIP,
            image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
            image_seq_length=16,
        )
        torch.manual_seed(3)
        self.model = transformers.LlavaForConditionalGeneration(config).eval()
        self.model.save_pretrained(folder)
        self.processor.save_pretrained(folder)

    @torch.inference_mode()
    def reply(self, turns: Sequence[Message], images: Sequence[Image.Image]) -> list[int]:
        conversation = [
            {"role": turn["role"], "content": _parts(turn["content"])} for turn in turns
        ]
        text = self.processor.apply_chat_template(conversation, add_generation_prompt=True)
        inputs = self.processor(
            text=[text], images=list(images) or None, return_tensors="pt", add_special_tokens=False
        )
        made = self.model.generate(**inputs, max_new_tokens=REPLY_TOKENS, do_sample=False)
        ids: list[int] = made[0, inputs["input_ids"].shape[1] :].tolist()
        return ids


def _tokenizer() -> Any:
    """A token a byte, so that every text can be said."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {character: number for number, character in enumerate(alphabet)}
    backend = Tokenizer(models.BPE(vocab, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, normalized=False) for text in ("<s>", "<image>")])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<s>")


def _parts(content: str) -> list[dict[str, str]]:
    first, *rest = content.split(IMAGE_MARK)
    parts = [{"type": "text", "text": first}] if first else []
    for text in rest:
        parts.append({"type": "image"})
        if text:
            parts.append({"type": "text", "text": text})
    return parts


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return Reference(tmp_path_factory.mktemp("llava"))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Paths of two pictures."""
    folder = tmp_path_factory.mktemp("pictures")
    paths = [folder / f"{number} of 2.png" for number in range(len(SIZES))]
    for number, (path, size) in enumerate(zip(paths, SIZES, strict=True)):
        picture(*size, seed=number).save(path)
    return [str(path) for path in paths]


@pytest.fixture(scope="module")
def loaded(reference: Reference) -> LoadedModel:
    source = ModelSource(str(reference.folder), "safetensors")
    return ModelLoader(
        RunRequest(source, cpu=True, dtype="f32", vision=VisionRequest(max_num_images=2))
    ).load()


def opened(paths: Sequence[str]) -> list[Image.Image]:
    return [Image.open(path) for path in paths]


def text_of(reference: Reference, ids: Sequence[int]) -> str:
    return whole(reference.processor.tokenizer.decode(ids, skip_special_tokens=True))


def whole(text: str) -> str:
    """A text of random bytes without what may be half a character at its end."""
    return text.rstrip("\ufffd")


def said_by(model: LoadedModel, turns: Sequence[Message]) -> str:
    return "".join(getattr(event, "text", "") for event in model.stream_chat(turns, GREEDY))


def said_in(out: str) -> list[str]:
    """The replies of --json."""
    return [json.loads(line)["text"] for line in out.splitlines()]


def question(text: str, *images: str) -> Message:
    message: Message = {"role": "user", "content": text}
    if images:
        message["images"] = list(map(read_media, images))
    return message


def test_a_conversation(loaded: LoadedModel, reference: Reference, pictures: list[str]) -> None:
    """Three turns: without an image, with one, with another between words."""
    first, second = pictures
    turns: list[Message] = []
    shown: list[str] = []
    for asked in (
        question("Hello"),
        question(f"{IMAGE_MARK}What?", first),
        question(f"And {IMAGE_MARK}, {IMAGE_MARK}?", second, first),
    ):
        turns.append(asked)
        shown += [image.name for image in asked.get("images", ())]
        expected = reference.reply(turns, opened(shown))
        said = said_by(loaded, turns)
        assert whole(said) == text_of(reference, expected)
        turns.append({"role": "assistant", "content": said})
    assert len({turn["content"] for turn in turns}) == len(turns)


def test_a_typed_image_token_shows_no_image(
    loaded: LoadedModel, reference: Reference, pictures: list[str]
) -> None:
    count = loaded.prompt_tokens([question("<image>")])
    assert count == len("user: <image> assistant:")
    with_image = loaded.prompt_tokens([question(f"{IMAGE_MARK}<image>", pictures[0])])
    assert with_image == count + 16 + 1  # a row for each patch, and a line's end


def mrs(*words: str, stdin: str = "") -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    code = main(words, Environment(io.StringIO(stdin), out, err))
    return code, out.getvalue(), err.getvalue()


def greedy(folder: Path) -> list[str]:
    flags = ["--temperature", "0", "--frequency-penalty", "0", "--presence-penalty", "0"]
    model = ["vision-plain", "-m", str(folder), "-d", "f32", "--max-num-images", "2"]
    return ["--cpu", "--json", *flags, "--max-tokens", str(REPLY_TOKENS), *model]


def test_the_command_line(reference: Reference, pictures: list[str]) -> None:
    first, second = pictures
    code, out, err = mrs(*greedy(reference.folder), "-P", "Which?", "--image", first)
    expected = reference.reply([question(f"{IMAGE_MARK}Which?")], opened([first]))
    assert code == 0, err
    assert list(map(whole, said_in(out))) == [text_of(reference, expected)]
    code, out, err = mrs(
        "--each-line",
        *greedy(reference.folder),
        stdin=f"Which?\n'{first}' Which?\n'{second}' '{first}' Which?\n",
    )
    assert code == 0, err
    shown: tuple[list[str], ...] = ([], [first], [second, first])
    assert list(map(whole, said_in(out))) == [
        text_of(
            reference,
            reference.reply([question(IMAGE_MARK * len(paths) + "Which?")], opened(paths)),
        )
        for paths in shown
    ]


def test_a_chat(reference: Reference, pictures: list[str], tmp_path: Path) -> None:
    copies = [tmp_path / "a.png", tmp_path / "b.png"]
    for copy, path in zip(copies, pictures, strict=True):
        copy.write_bytes(Path(path).read_bytes())
    saved = tmp_path / "chat.json"
    lines = [f"{copies[0]} one", f"two {copies[1]}", "\\retry", f"\\save {saved}"]
    code, out, err = mrs("-i", *greedy(reference.folder), stdin="\n".join(lines))
    assert code == 0, err
    said = said_in(out)
    turns = [question(f"{IMAGE_MARK}one"), {"role": "assistant", "content": said[0]}]
    turns.append(question(f"{IMAGE_MARK}two"))
    expected = text_of(reference, reference.reply(turns, opened(pictures)))
    assert list(map(whole, said[1:])) == [expected, expected]
    for copy in copies:
        copy.unlink()
    lines = [f"\\load {saved}", "\\retry"]
    code, out, err = mrs("-i", *greedy(reference.folder), stdin="\n".join(lines))
    assert code == 0, err
    assert list(map(whole, said_in(out))) == [expected]


def test_the_python_face(reference: Reference, pictures: list[str]) -> None:
    runner = Runner(
        which=Which.VisionPlain(
            model_id=str(reference.folder), dtype="f32", max_num_images=2, max_image_length=64
        ),
        cpu=True,
    )
    held = "data:image/png;base64," + base64.b64encode(Path(pictures[1]).read_bytes()).decode()
    parts = [
        {"type": "image_url", "image_url": {"url": pictures[0]}},
        {"type": "text", "text": "Is it"},
        {"type": "image_url", "image_url": held},
        {"type": "text", "text": "?"},
    ]
    response = runner.send_chat_completion_request(
        ChatCompletionRequest(
            messages=[{"role": "user", "content": parts}],
            max_tokens=REPLY_TOKENS,
            n_choices=2,
            temperature=0,
        )
    )
    asked = [question(f"{IMAGE_MARK}Is it{IMAGE_MARK}?")]
    expected = text_of(reference, reference.reply(asked, opened(pictures)))
    assert [whole(choice.message.content) for choice in response.choices] == [expected] * 2
    runner.close()
    with pytest.raises(UsageError, match="max_num_images is 0: give"):
        Runner(which=Which.VisionPlain(model_id=str(reference.folder), max_num_images=0))


def planned(*words: str) -> dict[str, Any]:
    code, out, err = mrs("plan", "--dry-run", "--json", "--device", "cpu=8GiB", *words)
    assert code == 0, err
    document: dict[str, Any] = json.loads(out)
    return document


@pytest.mark.full
def test_plans_and_timings(reference: Reference) -> None:
    folder = str(reference.folder)
    sees = planned("vision-plain", "-m", folder)
    assert (
        planned("-m", folder)["devices"]
        == sees["devices"]
        != planned("plain", "-m", folder)["devices"]
    )
    more = planned("vision-plain", "-m", folder, "--max-num-images", "9")
    assert more["devices"] != sees["devices"]
    bench = ["bench", "-p", "20", "-g", "3", "-r", "1"]
    code, out, err = mrs("--cpu", *bench, "--json", "vision-plain", "-m", folder)
    assert code == 0, err
    assert json.loads(out)


def test_plain_leaves_the_eyes_out(reference: Reference, pictures: list[str]) -> None:
    source = ModelSource(str(reference.folder), "safetensors")
    model = ModelLoader(RunRequest(source, cpu=True, dtype="f32")).load()
    expected = reference.reply([question("Hello")], [])
    assert whole(said_by(model, [question("Hello")])) == text_of(reference, expected)
    with pytest.raises(UsageError, match="load it with vision-plain"):
        model.stream_chat([question(IMAGE_MARK, pictures[0])], GREEDY)
