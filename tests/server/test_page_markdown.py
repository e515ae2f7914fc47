"""What the chat page makes of the Markdown of replies, in a browser."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from browser import Browser

pytestmark = pytest.mark.full


def markdown(page: Browser, text: str) -> Any:
    """The markup that the page makes of a reply."""
    return page.run(
        "import('./page/markdown.js').then(({showMarkdown}) => {"
        "  const box = document.createElement('div');"
        f" showMarkdown(box, {json.dumps(text)}); return box.innerHTML; }})"
    )


def test_replies_cannot_add_markup(page: Browser) -> None:
    hostile = (
        "<img src=x onerror=alert(1)> <script>alert(1)</script>\n\n[a](javascript:alert(1))\n\n"
        "![b](https://evil.example/x.png)\n\n```<b>\n</code><script>\n```\n\n|<i>|b|\n|-|-|\n|<u>|c|\n\n"
        "$$\\href{javascript:alert(1)}{x}$$ $\\includegraphics{https://evil.example/y.png}$\n\n"
        "$\\htmlStyle{color:red}{x}\\htmlId{prompt}{x}$ <a href='https://evil.example'>x</a>\n\n"
        '![c" onerror="alert(1)](https://evil.example/"onerror=alert(1)) '
        "![d](data:image/png;base64,AA)"
    )
    made = markdown(page, hostile)
    assert not re.search(
        r"<(script|img|b|i|u|style)\b|href=.javascript|<[^>]* (on\w+|style|id)=", made
    )
    address = 'href="https://evil.example/x.png"'
    assert re.search(rf"<a [^>]*{address}", made)
    links = re.findall(r"<a [^>]*>", made)
    assert links
    assert all('target="_blank"' in link and 'rel="noopener noreferrer"' in link for link in links)


def test_the_filter_alone_stops_markup(page: Browser) -> None:
    """Even if the parser let HTML through."""
    made = page.run(
        "import('./page/markdown.js').then(({clean}) => {"
        "  const box = document.createElement('div');"
        "  box.append(clean('<img src=x onerror=alert(1)><svg><script>1</script></svg><form><input>"
        '</form><a href="javascript:alert(1)" id=prompt style="color:red">a</a><math><mtext>'
        "<style><img src=x></style></mtext></math><iframe src=/></iframe>'));"
        " return box.innerHTML; })"
    )
    assert not re.search(
        r"<(script|img|svg|form|input|style|iframe)|javascript|(on\w+|id|style)=", made
    )
    assert ">a</a>" in made
    # Where the filter reads it, nothing runs; the policy says so, too.
    blocked = re.compile("inline (style|event handler)")
    page.problems[:] = [each for each in page.problems if not blocked.search(each)]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("# A *b*", "<h3>A <em>b</em></h3>"),
        ("a **b** ~~c~~ `d*e*`", "<strong>b</strong> <s>c</s> <code>d*e*</code>"),
        ("2 * 3 * 4 x_y_z \\*a\\*", "<p>2 * 3 * 4 x_y_z *a*</p>"),
        ("***a***", "<p><em><strong>a</strong></em></p>"),
        ("a\nb", "<p>a<br>b</p>"),
        ("- a\n\n# b\nc", "<ul><li>a</li></ul><h3>b</h3><p>c</p>"),
        ("C# and F# are#not # headers", "<p>C# and F# are#not # headers</p>"),
        ("a#b\n#c", "<p>a#b<br>#c</p>"),
        ("1. a\n2. b\n   - c", "<ol><li>a</li><li>b<ul><li>c</li></ul></li></ol>"),
        ("> a\n> - b", "<blockquote><p>a</p><ul><li>b</li></ul></blockquote>"),
        ("|a|b|\n|-|-:|\n|1|2|", '<td>1</td><td class="right">2</td>'),
        ("|a|b|\n|-|-|\n|`x\\|y`|2|", "<td><code>x|y</code></td><td>2</td>"),
        ("---", "<hr>"),
        ("if $x$, then", "</math></span>,</span> then"),
        ("```c\nreturn;\n\nb", '<code><span class="hljs-keyword">return</span>;b</code>'),
        ("```nolanguage\na < b\n```", "<code>a &lt; b</code>"),
        ("[`f`](https://a.example/b_(c))", 'href="https://a.example/b_(c)"'),
        ("see https://a.example/b_c.", 'href="https://a.example/b_c"'),
        ("readme.md and [a](b.html)", "<p>readme.md and [a](b.html)</p>"),
        ("- [x] a\n- [ ] b", 'aria-label="Done:">☑</span> a</li>'),
        ("- [x] a\n- [ ] b", 'aria-label="To do:">☐</span> b</li>'),
        ("- [x](https://a.example) a", '<li><a href="https://a.example"'),
        ("it is \\(x^2\\) now", "<msup><mi>x</mi><mn>2</mn></msup>"),
        ("it is $x^2$ now", "<msup><mi>x</mi><mn>2</mn></msup>"),
        ("\\[\na\n- b\n\\]", 'display="block"'),
        ("so $$a$$ so", 'display="block"'),
        ("1. b\n   $$\n   a\n   $$", 'display="block"'),
        ("$\\mathbb{R}^n \\mathcal{Lg}$", '<mi mathvariant="double-struck">\u211d</mi>'),
        ("costs $5 and $6, or \\$7", "<p>costs $5 and $6, or $7</p>"),
        ("`$a$` and `\\(b\\)`", "<code>$a$</code> and <code>\\(b\\)</code>"),
        ("$\\frac{1}{$ x", "<code>\\frac{1}{</code>"),
        ("\\[ not closed", "<p>[ not closed</p>"),
    ],
)
def test_markdown(page: Browser, text: str, wanted: str) -> None:
    assert wanted in markdown(page, text).replace("\n", "")


def test_blocks_that_do_not_change_stay_as_they_are(page: Browser) -> None:
    kept = page.run(
        "import('./page/markdown.js').then(({showMarkdown}) => {"
        "  const box = document.createElement('div');"
        "  showMarkdown(box, 'a\\n\\n- b'); const [first, second] = box.children;"
        "  showMarkdown(box, 'a\\n\\n- b c\\n\\nd');"
        "  const isSame = [first === box.children[0], second === box.children[1]];"
        "  return [...isSame, box.childNodes.length]; })"
    )
    assert kept == [True, False, 3]


@pytest.mark.parametrize(
    "text",
    [
        "> ",
        "- ",
        "**a ",
        "[",
        "`a ``",
        "_*a",
        "![a](",
        "|",
        "\\(",
        "<",
        "$a ",
        "$$\na\n",
        "\\[",
        "{",
    ],
)
def test_replies_that_never_end_cost_little(page: Browser, text: str) -> None:
    long = json.dumps(text * (50_000 // len(text)))
    page.call("Performance.enable", timeDomain="threadTicks")
    before_s = processor_s(page)
    page.run(
        "import('./page/markdown.js').then(({showMarkdown}) => {"
        f" showMarkdown(document.createElement('div'), {long}); }})"
    )
    assert processor_s(page) - before_s < 10


def processor_s(page: Browser) -> float:
    metrics = page.call("Performance.getMetrics")["metrics"]
    return next(each["value"] for each in metrics if each["name"] == "TaskDuration")
