"""`\\model`: another model goes on with the conversation."""

from __future__ import annotations

import io

import fake_model
import pytest
from mrs_runs import Terminal
from PIL import Image

from mrs.errors import DoesNotFit, MrsError
from mrs_cli.app import main
from mrs_cli.environment import Environment


class Chats:
    """Chats with models of which some fit beside others; `models` are those that were loaded."""

    def __init__(self) -> None:
        self.models: list[fake_model.FakeModel] = []
        self.leaves = False
        self.refusal: MrsError | None = None
        self.broken: set[str] = set()

    def load(self, request, on_progress=None):
        if self.leaves and self.models:
            assert self.models[-1].closed
        if request.source.model_id in self.broken:
            raise DoesNotFit("it does not fit any more", missing_bytes=1)
        self.models.append(fake_model.load(request, on_progress))
        return self.models[-1]

    def must_unload(self, request, loaded):
        if self.refusal is not None:
            raise self.refusal
        return self.leaves

    def __call__(self, *said: str, flags=()) -> tuple[str, str]:
        out, err = io.StringIO(), io.StringIO()
        source = Terminal("\n".join(said) + "\n")
        environment = Environment(source, out, err, {}, self.load, must_unload=self.must_unload)
        assert main(["-i", *flags, "plain", "-m", "warm"], environment) == 0
        return out.getvalue(), err.getvalue()

    def asked(self, index: int) -> list[str]:
        return [message["content"] for message in self.models[index].asked[-1][0]]


@pytest.fixture
def chats() -> Chats:
    return Chats()


@pytest.mark.parametrize("leaves", [True, False])
def test_the_conversation_goes_on_with_the_new_model(chats, leaves):
    chats.leaves = leaves
    _, err = chats("hello", "\\model demo", "history", flags=["--isq", "q4k", "--top-p", "0.5"])
    old, new = chats.models
    assert old.closed
    assert new.closed  # at the end
    assert chats.asked(1) == ["hello", fake_model.REPLIES["hello"], "history"]
    assert (new.request.source.model_id, new.request.isq) == ("demo", "q4k")
    assert ("demo does not fit beside warm, which is unloaded first" in err) == leaves
    assert "model is now fake: a book of answers" in err
    # What the old model suggested is gone, what the person chose stays.
    sampling = new.asked[-1][1]
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.7, 0.5, 0)


def test_a_refusal_leaves_all_as_it_was(chats):
    chats.refusal = DoesNotFit("12 GiB are missing on cpu", missing_bytes=1)
    out, err = chats("hello", "\\model demo", "history")
    assert "12 GiB are missing on cpu" in err
    assert len(chats.models) == 1
    assert "user=hello" in out
    _, err = chats("\\model /none/such", "hello")
    assert "/none/such" in err


def test_a_model_that_cannot_be_loaded_gives_the_old_one_back(chats):
    chats.leaves, chats.broken = True, {"demo"}
    out, err = chats("hello", "\\model demo", "history")
    assert "it does not fit any more" in err
    assert [each.request.source.model_id for each in chats.models] == ["warm", "warm"]
    assert "user=hello" in out


def test_which_model_runs(chats):
    assert "model is fake: a book of answers on cpu, 1.00 MiB" in chats("\\model")[1]


def test_images_that_the_new_model_cannot_see_are_named(chats, tmp_path, monkeypatch):
    Image.new("RGB", (8, 8)).save(tmp_path / "cat.png")
    monkeypatch.chdir(tmp_path)
    out, err = io.StringIO(), io.StringIO()
    source = Terminal("cat.png What?\n\\model demo\nhistory\nhistory\n")
    environment = Environment(source, out, err, {}, chats.load, must_unload=chats.must_unload)
    assert main(["-i", "vision-plain", "-m", "warm"], environment) == 0
    assert err.getvalue().count("this model has no vision support") == 1
    assert chats.models[1].asked[0][0][0] == {"role": "user", "content": "What?"}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["demo", "missing"])
def test_real_plans(name, chat):
    """With the real planner, in a terminal."""
    child = chat()
    child.send(f"\\model {name}\r")
    child.expect_exact("model is now fake" if name == "demo" else "missing")
