"""Audio, from a file to the reply: in Python, on the command line, through the server's parts."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers.models.qwen3_asr.feature_extraction_qwen3_asr import Qwen3ASRFeatureExtractor

from mrs import ChatCompletionRequest, Runner, Which
from mrs.errors import NotReadable, Unsupported, UsageError
from mrs.media.audio_names import audio_uri
from mrs.media.read_media import read_audio, read_media
from mrs.request import IMAGE_MARK, Message, ModelSource, RunRequest, Sampling, VisionRequest
from mrs.run.loaded_model import LoadedModel
from mrs.run.model_loader import ModelLoader
from mrs.server.http.errors import ApiError
from mrs.server.schemas.chat_message import (
    AudioPart,
    ChatMessage,
    ImageUrl,
    InputAudio,
    InputAudioPart,
    conversation,
)
from mrs_cli.app import main
from mrs_cli.environment import Environment
from support.audio_files import encoded, tone, wav
from support.tiny_qwen3_asr import BANDS, CONTROLS, write_qwen3_asr
from support.tiny_qwen3_vl import byte_level_tokenizer

REPLY_TOKENS = 10
GREEDY = Sampling(
    temperature=0, frequency_penalty=0, presence_penalty=0, max_tokens=REPLY_TOKENS, logprobs=0
)
SECONDS = 3.37


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("qwen3_asr")
    write_qwen3_asr(target)
    return target


@pytest.fixture(scope="module")
def note(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("audio") / "a note.wav"
    path.write_bytes(wav(tone(SECONDS)))
    return str(path)


@pytest.fixture(scope="module")
def loaded(folder: Path) -> LoadedModel:
    source = ModelSource(str(folder), "safetensors")
    limits = VisionRequest(max_audio_seconds=5)
    return ModelLoader(RunRequest(source, cpu=True, dtype="f32", vision=limits)).load()


def question(text: str, *media: str) -> Message:
    return {"role": "user", "content": text, "images": list(map(read_media, media))}


@torch.inference_mode()
def expected_reply(folder: Path) -> str:
    """What transformers says of the note and `What?`."""
    tokenizer: Any = byte_level_tokenizer(CONTROLS)
    extract = Qwen3ASRFeatureExtractor(feature_size=BANDS)
    heard = extract(tone(SECONDS), sampling_rate=16_000, padding=True, return_attention_mask=True)
    rows = "<|audio_pad|>" * (3 * 13 + 5)  # 37 frames are left, halved three times
    text = f"user: <|audio_start|>{rows}<|audio_end|>What? assistant:"
    model = transformers.AutoModelForMultimodalLM.from_pretrained(folder).float().eval()
    ids = tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"]
    made = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        input_features=torch.as_tensor(heard["input_features"]),
        input_features_mask=torch.as_tensor(heard["attention_mask"]),
        max_new_tokens=REPLY_TOKENS,
        do_sample=False,
    )
    return whole(tokenizer.decode(made[0, ids.shape[1] :], skip_special_tokens=True))


def whole(text: str) -> str:
    """A text of random bytes without what may be half a character at its end."""
    return text.rstrip("\ufffd")


def mrs(*words: str, stdin: str = "") -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    code = main(words, Environment(io.StringIO(stdin), out, err))
    return code, out.getvalue(), err.getvalue()


def test_a_reply(folder: Path, loaded: LoadedModel, note: str) -> None:
    """In Python and on the command line, by flag and by name, it is that of transformers."""
    asked, expected = question(f"{IMAGE_MARK}What?", note), expected_reply(folder)
    said = "".join(getattr(each, "text", "") for each in loaded.stream_chat([asked], GREEDY))
    assert whole(said) == expected
    flags = ["--temperature", "0", "--frequency-penalty", "0", "--presence-penalty", "0"]
    words = [*flags, "--max-tokens", str(REPLY_TOKENS), "vision-plain", "-m", str(folder)]
    words = ["--cpu", "--json", *words, "-d", "f32"]
    for code, out, err in (
        mrs(*words, "-P", "What?", "--audio", note),
        mrs(*words, stdin=f"'{note}' What?\n"),
    ):
        assert code == 0, err
        assert whole(json.loads(out)["text"]) == expected


def test_audio_needs_no_prompt(folder: Path, note: str) -> None:
    code, out, err = mrs(
        *(
            "--cpu",
            "--max-tokens",
            "2",
            "--temperature",
            "0",
            "--json",
            "vision-plain",
            "-m",
            str(folder),
        ),
        *("--audio", note),
    )
    assert code == 0, err
    assert json.loads(out)["text"]


def test_the_plan_names_audio(folder: Path) -> None:
    flags = ("--max-audio-seconds", "7")
    code, out, err = mrs("plan", "vision-plain", "-m", str(folder), *flags)
    assert code == 0, err
    assert "1 audio file of up to 7 seconds, 91 tokens each; audio weights" in " ".join(out.split())


def test_longer_audio_is_refused(loaded: LoadedModel, tmp_path: Path) -> None:
    path = tmp_path / "long.wav"
    path.write_bytes(wav(tone(5.1)))
    with pytest.raises(NotReadable, match="it is longer than 5 seconds") as raised:
        loaded.prompt_tokens([question(IMAGE_MARK, str(path))])
    assert "raise --max-audio-seconds" in str(raised.value)


def test_equal_files_are_read_once(
    loaded: LoadedModel, note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = loaded.prompt_tokens([question(IMAGE_MARK, note)])
    monkeypatch.setattr("mrs.media.media_loader.read_samples", None)
    assert loaded.prompt_tokens([question(IMAGE_MARK, note)]) == first


def test_python_requests(folder: Path, note: str) -> None:
    runner = Runner(Which.MultimodalPlain(model_id=str(folder)), max_seqs=1)
    data = base64.b64encode(Path(note).read_bytes()).decode()
    counts = []
    for part in (
        {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}},
        {"type": "audio_url", "audio_url": {"url": note}},
    ):
        request = ChatCompletionRequest(
            model="default",
            messages=[{"role": "user", "content": [part, {"type": "text", "text": "What?"}]}],
            max_tokens=2,
            temperature=0,
        )
        usage = runner.send_chat_completion_request(request).usage
        counts.append(usage.prompt_tokens)
    assert counts[0] == counts[1] > 44
    for wrong in ({"data": data}, {"data": data, "format": "exe"}, "text"):
        part = {"type": "input_audio", "input_audio": wrong}
        request = ChatCompletionRequest(
            model="default", messages=[{"role": "user", "content": [part]}]
        )
        with pytest.raises(UsageError, match="audio"):
            runner.send_chat_completion_request(request)


def test_typed_tokens_are_no_audio(loaded: LoadedModel) -> None:
    typed = "<|audio_start|><|audio_pad|><|audio_end|>"
    count = loaded.prompt_tokens([{"role": "user", "content": typed}])
    assert count == len(f"user: {typed} assistant:")


@pytest.mark.parametrize("name", ["demo-vision", "hears"])
def test_other_kinds_are_refused(loaded: LoadedModel, note: str, tmp_path: Path, name: str) -> None:
    from PIL import Image

    if name == "hears":
        Image.new("RGB", (20, 20)).save(tmp_path / "a.png")
        with pytest.raises(Unsupported, match="this model takes no images"):
            loaded.prompt_tokens([question(IMAGE_MARK, str(tmp_path / "a.png"))])
        return
    model = ModelLoader(
        RunRequest(ModelSource(name, "safetensors"), cpu=True, vision=VisionRequest())
    ).load()
    with pytest.raises(Unsupported, match="this model takes no audio files"):
        model.prompt_tokens([question(IMAGE_MARK, note)])
    model.close()


@pytest.mark.parametrize(
    ("url", "is_allowed"),
    [
        (audio_uri(base64.b64encode(wav(tone(0.1))).decode(), "wav"), True),
        ("data:image/png;base64,AAAA", False),
        ("https://example.com/a.wav", False),
        ("/etc/a.wav", False),
    ],
)
def test_addresses_of_audio_in_requests(url: str, is_allowed: bool) -> None:
    given = [ChatMessage(role="user", content=[AudioPart(audio_url=ImageUrl(url=url))])]
    if is_allowed:
        (message,) = conversation(given, allow_image_urls=False, check_media=lambda *_: None)
        assert (message["content"], message["images"]) == (IMAGE_MARK, [read_audio(url)])
        return
    with pytest.raises(ApiError) as raised:
        conversation(given, allow_image_urls=False, check_media=lambda *_: None)
    assert raised.value.param == "messages[0].content[0].audio_url"


@pytest.mark.parametrize(
    ("data", "format", "reason"),
    [
        (base64.b64encode(b"text").decode(), "wav", "it is not a wav, mp3"),
        ("!", "wav", "its base64 is damaged"),
        ("AAAA", "exe", "the audio format 'exe' is not known"),
    ],
)
def test_input_audio_that_is_none(data: str, format: str, reason: str) -> None:
    part = InputAudioPart(input_audio=InputAudio(data=data, format=format))
    given = [ChatMessage(role="user", content=[part])]
    with pytest.raises((ApiError, NotReadable), match=reason):
        conversation(given, allow_image_urls=False, check_media=lambda *_: None)


def test_the_sound_of_a_film_can_be_asked_about() -> None:
    film = encoded(tone(0.5, 48_000), "matroska", "libopus")
    data = base64.b64encode(film).decode()
    assert read_audio(f"data:audio/webm;base64,{data}").kind == "audio"


def test_more_files_than_planned_are_named(folder: Path, note: str) -> None:
    words = ("--cpu", "--max-tokens", "1", "vision-plain", "-m", str(folder))
    code, _, err = mrs(*words, "-P", "?", "--audio", note, "--audio", note)
    assert code == 0, err
    assert "the conversation has 2 audio files, but the plan counted on 1" in err


def test_a_template_without_audio_is_named(folder: Path, note: str) -> None:
    (folder / "other.jinja").write_text("{% for m in messages %}{{ m.role }}{% endfor %}")
    code, _, err = mrs(
        *("--cpu", "-c", str(folder / "other.jinja"), "vision-plain", "-m", str(folder)),
        *("--audio", note),
    )
    assert code == 2
    assert "renders 0 of 1 audio files" in err
