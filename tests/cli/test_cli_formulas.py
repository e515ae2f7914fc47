"""Formulas of LaTeX in replies are Unicode text, or their source where Unicode has none."""

from __future__ import annotations

import io

import pytest
from mrs_runs import screen
from rich.console import Console

from mrs_cli.render.latex import unicode_math
from mrs_cli.render.markdown import MarkdownStream, ReplyMarkdown, split_finished


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        (r"x^2 + y_1", "x² + y₁"),
        (r"a - b", "a − b"),
        (r"\frac{a+b}{c}", "(a+b)/c"),
        (r"\frac{a}{bc}", "a/(bc)"),
        (r"\frac12 mv^2", "½ mv²"),
        (r"\frac{a}{b}x", "(a/b)x"),
        (r"\frac{a}{b} x", "(a/b) x"),
        (r"\frac{a}{b} + x", "a/b + x"),
        (r"\frac{1}{\frac{a}{b}}", "1/(a/b)"),
        (r"\sqrt{b^2-4ac}", "√(b²−4ac)"),
        (r"\sqrt 2", "√2"),
        (r"\sqrt[3]{8}", "∛8"),
        (r"\sum_{i=1}^{n} i", "∑ᵢ₌₁ⁿ i"),
        (r"e^{-x^2/2}", "e^(−x²/2)"),
        (r"a_{b_c}", "a_(b_c)"),
        (r"\mathbb{R}^n \to \mathcal{L}", "ℝⁿ → ℒ"),
        (r"\mathfrak{C}\mathbf{x}", "ℭ𝐱"),
        (r"2\sin x\cos y", "2 sin x cos y"),
        (r"\log_2 n", "log₂ n"),
        (r"\left(\frac{a}{b}\right)^2", "(a/b)²"),
        (r"\left. x \right|_0", "x |₀"),
        (r"90^\circ", "90°"),
        (r"f'(x)", "f′(x)"),
        (r"\text{if } x \in \{1, 2\}", "if x ∈ {1, 2}"),
        (r"50\%", "50%"),
        (r"\hat{x}", "x̂"),
        (r"n \bmod 2 \iff k \pmod 3", "n mod 2 ⇔ k (mod 3)"),
        (r"\begin{aligned} a &= b \\ c &= d \end{aligned}", "a = b\nc = d"),
    ],
)
def test_what_unicode_has(source, shown):
    assert unicode_math(source) == shown


@pytest.mark.parametrize(
    "source",
    [
        r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}",
        r"\begin{aligned} a",
        r"\binom{n}{k}",
        r"\overline{AB}",
        r"\unknown x",
        r"\frac{a}",
        r"\frac{}{b}",
        r"x^",
        r"x^^2",
        r"{a",
        r"a}",
        r"\mathbb{\alpha}",
        r"\text{a \textbf{b}}",
        r"\left",
        "{" * 5000,
        "{" * 1000 + "}" * 1000,
        "",
    ],
)
def test_what_unicode_has_not(source):
    assert unicode_math(source) is None


def rendered(text: str) -> str:
    out = io.StringIO()
    Console(file=out, width=72).print(ReplyMarkdown(text))
    return "\n".join(line.rstrip() for line in out.getvalue().split("\n")).strip()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (r"So \(x^2\) is it, and \[y_1 = 3\] too.", "So x² is it, and y₁ = 3 too."),
        ("So\n\\[\n- a\n+ b_1\n= c\n\\]\nis.", "So\n\n− a + b₁ = c\n\nis."),
        ("$$\n\\frac{a}{b}\n$$", "a/b"),
        ("It is $a_1 * b_1 * c_1$.", "It is a₁ * b₁ * c₁."),
        (r"**bold \(\beta^2\)**", "bold β²"),
        (r"- item \(\alpha\)", "• item α"),
        (r"\[\binom{n}{k} * a * b\]", r"\[\binom{n}{k} * a * b\]"),
        (r"Open \( x^2 and \[ y", r"Open \( x^2 and \[ y"),
        (r"`\(x^2\)` and C:\[x]", r"\(x^2\) and C:\[x]"),
        ("```\n\\(x^2\\)\n```", r"\(x^2\)"),
        (r"\[not a formula\]", r"\[not a formula\]"),
        ("I paid $5 and $10.", "I paid $5 and $10."),
        ("From $5-$10 or $HOME/$PATH or US$ a$.", "From $5-$10 or $HOME/$PATH or US$ a$."),
        (r"1\. and \* and \_", "1. and * and _"),
    ],
)
def test_in_markdown(text, shown):
    assert rendered(text) == shown


def test_a_table_has_formulas():
    text = "| a | b |\n|---|---|\n| \\(x^2\\) | \\[y_1\\] |"
    assert "x²" in rendered(text)
    assert "y₁" in rendered(text)


def test_a_formula_that_arrives_is_one_block():
    assert split_finished("\\[\n- a\n- b") == ([], "\\[\n- a\n- b")
    assert split_finished("\\[\n- a\n\\]\n\nx") == (["\\[\n- a\n\\]\n\n"], "x")


@pytest.mark.parametrize("piece", [1, 3, 7])
def test_while_it_streams(piece, monkeypatch):
    from mrs_cli.render import markdown

    monkeypatch.setattr(markdown, "REDRAW_S", 0.0)
    text = "The area is\n\n\\[\nA = \\pi r^2\n\\]\n\nand \\(r = \\frac{d}{2}\\).\n"
    out = io.StringIO()
    stream = MarkdownStream(Console(file=out, width=60, force_terminal=True, color_system=None))
    for start in range(0, len(text), piece):
        stream.feed(text[start : start + piece])
    stream.finish()
    shown = screen(out.getvalue(), 25)
    assert [line for line in shown if line] == ["The area is", "A = π r²", "and r = d/2."]
