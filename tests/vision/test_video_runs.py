"""A video, from a file to the reply: in Python, on the command line, through the server's parts."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from mrs import ChatCompletionRequest, Runner, Which
from mrs.architecture.vision_spec import Patches
from mrs.errors import Unsupported
from mrs.media.read_media import read_media
from mrs.model.vision.patches import PatchEmbedding
from mrs.request import IMAGE_MARK, Media, Message, ModelSource, RunRequest, Sampling, VisionRequest
from mrs.run.loaded_model import LoadedModel
from mrs.run.model_loader import ModelLoader
from mrs.server.http.errors import ApiError
from mrs.server.schemas.chat_message import ChatMessage, ImageUrl, VideoPart, conversation
from mrs_cli.app import main
from mrs_cli.environment import Environment
from support.tiny_qwen3_vl import byte_level_tokenizer, write_qwen3_vl
from support.video_files import video

REPLY_TOKENS = 10
GREEDY = Sampling(
    temperature=0, frequency_penalty=0, presence_penalty=0, max_tokens=REPLY_TOKENS, logprobs=0
)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return byte_level_tokenizer()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("qwen3_vl")
    write_qwen3_vl(target)
    return target


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("videos") / "a clip.mp4"
    path.write_bytes(video(3.0))
    return str(path)


@pytest.fixture(scope="module")
def loaded(folder: Path) -> LoadedModel:
    source = ModelSource(str(folder), "safetensors")
    return ModelLoader(RunRequest(source, cpu=True, dtype="f32", vision=VisionRequest())).load()


def question(text: str, *media: str) -> Message:
    return {"role": "user", "content": text, "images": list(map(read_media, media))}


@torch.inference_mode()
def expected_reply(folder: Path, loaded: LoadedModel, tokenizer: Any, message: Message) -> str:
    """What transformers says to the prompt that the published processor would have made."""
    prompt = loaded.prompts.chat([message], GREEDY)

    frame = "<|video_pad|>" * prompt.images[0].image.shape.rows
    shown = "".join(f"<{time} seconds><|vision_start|>{frame}<|vision_end|>" for time in TIMES)
    text = f"user: {message['content'].replace(IMAGE_MARK, shown)} assistant:"
    ids = tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"]
    assert ids[0].tolist() == list(prompt.ids)
    model = transformers.AutoModelForImageTextToText.from_pretrained(folder).float().eval()
    rows, columns = prompt.images[0].image.shape.grid
    made = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        pixel_values_videos=torch.cat([patches_of(each.image.pixels) for each in prompt.images]),
        video_grid_thw=torch.tensor([[len(prompt.images), 2 * rows, 2 * columns]]),
        mm_token_type_ids=(ids == tokenizer.convert_tokens_to_ids("<|video_pad|>")).int() * 2,
        max_new_tokens=REPLY_TOKENS,
        do_sample=False,
    )
    return whole(tokenizer.decode(made[0, ids.shape[1] :], skip_special_tokens=True))


#: The mean times of pairs of the frames 0 6 12 17 23 29 at 10 frames a second.
TIMES = ("0.3", "1.4", "2.6")


def patches_of(pixels: Tensor) -> Tensor:
    """(frames, 3, height, width) in transformers' order."""
    frames, channels, height, width = pixels.shape
    cut = pixels.view(frames, channels, height // 12, 2, 6, width // 12, 2, 6)
    return cut.permute(2, 5, 3, 6, 1, 0, 4, 7).reshape(height * width // 36, -1)


def whole(text: str) -> str:
    """A text of random bytes without what may be half a character at its end."""
    return text.rstrip("\ufffd")


def mrs(*words: str, stdin: str = "") -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    code = main(words, Environment(io.StringIO(stdin), out, err))
    return code, out.getvalue(), err.getvalue()


def test_a_reply(folder: Path, loaded: LoadedModel, tokenizer: Any, clip: str) -> None:
    """In Python and on the command line, by flag and by name, it is that of transformers."""
    asked = question(f"{IMAGE_MARK}What?", clip)
    expected = expected_reply(folder, loaded, tokenizer, asked)
    said = "".join(getattr(each, "text", "") for each in loaded.stream_chat([asked], GREEDY))
    assert whole(said) == expected
    assert loaded.num_images([asked]) == 3
    flags = ["--temperature", "0", "--frequency-penalty", "0", "--presence-penalty", "0"]
    words = [*flags, "--max-tokens", str(REPLY_TOKENS), "vision-plain", "-m", str(folder)]
    words = ["--cpu", "--json", *words, "-d", "f32"]
    for code, out, err in (
        mrs(*words, "-P", "What?", "--video", clip),
        mrs(*words, stdin=f"'{clip}' What?\n"),
    ):
        assert code == 0, err
        assert whole(json.loads(out)["text"]) == expected
        assert "the conversation has 3 images, but the plan counted on 1" in err


def test_python_requests(folder: Path, clip: str) -> None:
    runner = Runner(Which.VisionPlain(model_id=str(folder)), max_seqs=1)
    parts = [{"type": "video_url", "video_url": {"url": clip}}, {"type": "text", "text": "What?"}]
    request = ChatCompletionRequest(
        model="default",
        messages=[{"role": "user", "content": parts}],
        max_tokens=2,
        temperature=0,
    )
    usage = runner.send_chat_completion_request(request).usage
    assert usage.prompt_tokens > 60
    assert usage.completion_tokens == 2


def test_typed_tokens_show_no_video(loaded: LoadedModel) -> None:
    typed = "<|vision_start|><|video_pad|><|vision_end|>"
    count = loaded.prompt_tokens([{"role": "user", "content": typed}])
    assert count == len(f"user: {typed} assistant:")


def test_models_for_images_alone_refuse_videos(clip: str) -> None:
    source = ModelSource("demo-vision", "safetensors")
    model = ModelLoader(RunRequest(source, cpu=True, vision=VisionRequest())).load()
    with pytest.raises(Unsupported, match="this model takes no videos"):
        model.prompt_tokens([question(IMAGE_MARK, clip)])
    model.close()


@pytest.mark.parametrize(
    ("url", "is_allowed"),
    [
        ("data:video/mp4;base64,AAAAAGZ0eXBpc29t", True),
        ("data:image/png;base64,AAAA", False),
        ("https://example.com/a.mp4", False),
        ("/etc/a.mp4", False),
        ("file:///a.mp4", False),
    ],
)
def test_addresses_of_videos_in_requests(url: str, is_allowed: bool) -> None:
    given = [ChatMessage(role="user", content=[VideoPart(video_url=ImageUrl(url=url))])]
    if is_allowed:
        (message,) = conversation(given, allow_image_urls=False, check_media=lambda *_: None)
        film = Media.of(url, b"\0\0\0\0ftypisom", "video")
        assert (message["content"], message["images"]) == (IMAGE_MARK, [film])
        return
    with pytest.raises(ApiError) as raised:
        conversation(given, allow_image_urls=False, check_media=lambda *_: None)
    assert raised.value.param == "messages[0].content[0].video_url"


class _Weights:
    """Matrices by name."""

    def __init__(self, **vectors: Tensor) -> None:
        self._vectors = vectors

    def vector(self, name: str) -> Tensor:
        return self._vectors[name.replace(".", "_")]

    def optional_vector(self, name: str) -> Tensor | None:
        return self._vectors.get(name.replace(".", "_"))


def test_frames_with_matrices_of_their_own() -> None:
    """GGUF files have one for each frame: the sum is that of the joint matrix."""
    joint = torch.randn(5, 3, 2, 4, 4)
    whole_matrix: Any = _Weights(patches_weight=joint)
    parted: Any = _Weights(patches_weight=joint[:, :, 0], patches_1_weight=joint[:, :, 1])
    one = PatchEmbedding(Patches(4, frames=2), whole_matrix)
    other = PatchEmbedding(Patches(4, frames=2, apart=True), parted)
    for view in (torch.randn(3, 8, 13), torch.randn(2, 3, 8, 13)):
        assert torch.allclose(one(view), other(view), atol=1e-5)
        frames = view.expand(2, 3, 8, 13) if view.ndim == 3 else view
        expected = torch.nn.functional.conv3d(frames.transpose(0, 1)[None], joint, stride=(2, 4, 4))
        assert torch.allclose(one(view), expected[0].flatten(1).T, atol=1e-5)
