"""Web addresses of models on the hub, and what models are called."""

from __future__ import annotations

from pathlib import Path

import pytest

from mrs.errors import NotReadable, UsageError
from mrs.request import ModelSource
from mrs.source.address import model_name, parse_address
from mrs.source.find import find_selector
from mrs.source.folder import LocalFolder
from mrs.source.locate import DEMO_FOLDER, locate
from mrs.source.weights_files import gguf_files

HUB = "https://huggingface.co"


def apart(address: str, *filenames: str) -> tuple[str, str, tuple[str, ...]]:
    source = parse_address(ModelSource(address, "gguf", filenames=filenames))
    return source.model_id, source.revision, source.filenames


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        (f"{HUB}/ORG/NAME", ("ORG/NAME", "main", ())),
        (f"{HUB}/ORG/NAME/", ("ORG/NAME", "main", ())),
        ("HTTPS://hf.co/ORG/N.A-ME?not=1#here", ("ORG/N.A-ME", "main", ())),
        (f"{HUB}/gpt2", ("gpt2", "main", ())),
        (f"{HUB}/gpt2/tree/v1", ("gpt2", "v1", ())),
        (f"{HUB}/ORG/NAME/tree/refs%2Fpr%2F1", ("ORG/NAME", "refs/pr/1", ())),
        (f"{HUB}/ORG/NAME/blob/main/Q4/a%20b.gguf", ("ORG/NAME", "main", ("Q4/a b.gguf",))),
        (
            f"{HUB}/ORG/NAME/resolve/v2/a.gguf?download=true",
            ("ORG/NAME", "v2", ("a.gguf",)),
        ),
        ("ORG/NAME", ("ORG/NAME", "main", ())),
        ("hf.co/ORG/NAME", ("ORG/NAME", "main", ())),
        ("huggingface.co/ORG/NAME/tree/v1", ("ORG/NAME", "v1", ())),
        ("hf.co/ORG/NAME:Q4_K_M", ("ORG/NAME", "main", ("Q4_K_M",))),
        (f"{HUB}/ORG/NAME:Q4_K_M", ("ORG/NAME", "main", ("Q4_K_M",))),
        ("ORG/NAME:Q4_K_M", ("ORG/NAME", "main", ("Q4_K_M",))),
        ("ORG/NAME:latest", ("ORG/NAME", "main", ())),
    ],
)
def test_an_address_is_parsed(address, expected):
    assert apart(address) == expected


@pytest.mark.parametrize(
    "address",
    [
        HUB,
        f"{HUB}/datasets/ORG/NAME",
        f"{HUB}/ORG/NAME/discussions",
        f"{HUB}/ORG/NAME/tree",
        "https://example.org/ORG/NAME",
        "https://[/x",
        f"{HUB}/../NAME",
    ],
)
def test_an_address_of_no_model(address):
    with pytest.raises(UsageError, match="is not a model's address on the hub"):
        apart(address)


def test_the_hub_of_the_environment(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9/hub")
    assert apart("http://127.0.0.1:9/hub/ORG/NAME/tree/v1") == ("ORG/NAME", "v1", ())


def test_two_names_for_a_file(tmp_path):
    assert apart(f"{HUB}/O/N/blob/main/a.gguf", "a.gguf")[2] == ("a.gguf",)
    (tmp_path / "a.gguf").touch()
    for model_id in (f"{HUB}/O/N/blob/main/a.gguf", str(tmp_path / "a.gguf")):
        with pytest.raises(UsageError, match=r"-f b\.gguf is not the file that -m names"):
            locate(ModelSource(model_id, "gguf", filenames=("b.gguf",)))


def test_a_file_that_no_selector_takes_is_said():
    with pytest.raises(UsageError, match=r"-f model\.safetensors is not a \.gguf file"):
        find_selector(ModelSource("demo", "safetensors", filenames=("model.safetensors",)))


@pytest.fixture
def quantized(tmp_path):
    for name in ("m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "m-UD-Q4_K_XL.gguf", "m.q8_0.gguf"):
        (tmp_path / name).touch()
    return LocalFolder(tmp_path)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("Q4_K_M", "m-Q4_K_M.gguf"),
        ("q4_k_s", "m-Q4_K_S.gguf"),
        ("UD-Q4_K_XL", "m-UD-Q4_K_XL.gguf"),
        ("Q8_0", "m.q8_0.gguf"),
        ("m-Q4_K_M.gguf", "m-Q4_K_M.gguf"),
    ],
)
def test_a_quantization_names_its_file(quantized, name, file):
    assert gguf_files(quantized, (name,)) == (file,)
    source = ModelSource(str(quantized.path), "safetensors", filenames=(name,))
    assert find_selector(source) == "gguf"


@pytest.mark.parametrize("name", ["Q4_K", "Q5_K_M", "Q4"])
def test_a_quantization_that_no_file_has_is_said_with_those_there(quantized, name):
    with pytest.raises(NotReadable, match=rf"no file {name} .*: there are m-Q4_K_M\.gguf"):
        gguf_files(quantized, (name,))


def test_a_quantization_of_a_model_without_gguf_files_is_said():
    folder = str(DEMO_FOLDER / "vision_model")
    with pytest.raises(UsageError, match=r"-f Q4_K_M is not a \.gguf file: quantize it with --isq"):
        find_selector(ModelSource(folder, "safetensors", filenames=("Q4_K_M",)))


@pytest.mark.parametrize(
    ("model_id", "name"),
    [
        ("/very/long/path/to/model", "model"),
        ("./model/", "model"),
        ("a/b/c.gguf", "c.gguf"),
        ("ORG/NAME", "ORG/NAME"),
        (f"{HUB}/ORG/NAME/tree/main", "ORG/NAME"),
        ("hf.co/ORG/NAME:Q4_K_M", "ORG/NAME"),
        ("ORG/NAME:Q4_K_M", "ORG/NAME"),
        ("demo", "demo"),
        ("/", "/"),
    ],
)
def test_what_a_model_is_called(model_id, name):
    assert model_name(model_id) == name


@pytest.mark.parametrize("model_id", ["/none/such", "./none", "~nobody-x/model"])
def test_a_missing_folder_is_called_missing(model_id):
    for container in ("gguf", "safetensors"):
        with pytest.raises(NotReadable, match="no such folder or file"):
            locate(ModelSource(model_id, container))


def test_all_spellings_of_a_path_have_one_name(tmp_path, monkeypatch):
    folder = tmp_path / "org" / "model"
    folder.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    spellings = ["org/model", "./org/model/", "org/model/.", "org/x/../model", "~/org/model"]
    for spelling in [*spellings, str(folder), f"{folder}//"]:
        assert model_name(spelling) == "model"
    monkeypatch.chdir(folder)
    assert {model_name(each) for each in (".", "./", "../model", "../../org/model")} == {"model"}


def test_a_folder_of_the_hubs_cache_has_its_hub_id():
    folder = "/a/hub/models--ORG--NAME/snapshots/0123456789abcdef"
    assert model_name(folder) == model_name(f"{folder}/") == "ORG/NAME"


def test_this_folder_has_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert model_name(".") == tmp_path.resolve().name
    assert model_name("..") == Path("..").resolve().name
