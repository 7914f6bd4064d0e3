# SPDX-License-Identifier: Apache-2.0
"""dsakit report: one file, opened in a browser that has no network."""

import json
import pathlib
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser

import ml_dtypes
import numpy as np
import pytest

import dsakit
from dsakit import debug
from dsakit.debug.picture import DARK, PAPER

Image = pytest.importorskip("PIL.Image")
SCRIPT = pathlib.Path(sys.executable).parent / "dsakit"
BROWSER = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "chrome"))), None)


def record(folder):
    """An indexer, the attention over its list and a quantisation; the second call's result is not what it computes."""
    random = np.random.default_rng(8)

    def bf16(*shape):
        return random.standard_normal(shape).astype(ml_dtypes.bfloat16)

    with dsakit.capture(folder, caches="whole"):
        for layer in range(2):
            dsakit.mark(layer=layer, step=0)
            listed = dsakit.quant_lightning_indexer(
                random.integers(-127, 128, (1, 30, 4, 32), np.int8),
                random.integers(-127, 128, (1, 60, 1, 32), np.int8),
                random.random((1, 30, 4)).astype(np.float16), random.random((1, 30, 4)).astype(np.float16),
                random.random((1, 60, 1)).astype(np.float16), sparse_count=12,
            )  # fmt: skip
            key = bf16(1, 60, 1, 16)
            out = dsakit.sparse_flash_attention(
                bf16(1, 30, 3, 16), key, key, listed, 0.3, query_rope=bf16(1, 30, 3, 8), key_rope=bf16(1, 60, 1, 8),
                attention_mode=2,
            )[0]  # fmt: skip
        dsakit.npu_dynamic_quant(out)
    files = sorted(folder.glob("0*"))
    case = debug.Case.load(files[1])
    out = case["out.attention_out"]
    out[0, :5] = -out[0, :5]
    case["out.attention_out"] = out
    case.set_metadata("producer", "<b>somebody</b> else")  # text, not markup
    case.save(files[1])
    return files


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    files = record(folder / "dump")
    said = debug.report(folder / "dump", folder / "r.html")
    return files, folder / "r.html", said


class _Page(HTMLParser):
    """The links of a page, its tags and its text."""

    def __init__(self, text):
        super().__init__()
        self.links, self.tags, self.text = [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [v for k, v in attributes if k in ("src", "href", "xlink:href", "srcset", "data", "action")]

    def handle_data(self, data):
        self.text += data


def test_everything_is_in_it(written):
    files, path, said = written
    page = _Page(path.read_text())
    assert all(link.startswith(("#", "data:")) for link in page.links)
    assert not {"script", "link", "iframe", "object", "img"} & set(page.tags)
    assert "url(" not in re.sub(r"url\(#", "", path.read_text()) and "@import" not in path.read_text()
    for file in files:
        assert file.name in page.text
        for line in subprocess.run([SCRIPT, "explain", file], capture_output=True, text=True).stdout.splitlines():
            assert line in page.text
    assert subprocess.run([SCRIPT, "diff", files[0].parent], capture_output=True, text=True).stdout in page.text
    assert "<b>somebody</b>" in page.text and "b" not in page.tags
    kinds = [c["pictures"] for c in said["calls"]]
    indexer, attention = ["selection", "profile"], ["mass", "recency", "heads", "ulp"]
    assert kinds == [indexer, attention, indexer, attention, ["ulp", "codes"]]
    assert page.tags.count("svg") == 1 + sum(map(len, kinds)) == page.text.count("source: ")  # one of all indexers
    assert said["verdict"] == "operator" and said["said"] == "4 x agrees, 1 x operator"
    assert said["calls"][1]["verdict"] == "operator" and said["file"] == str(path)


def test_it_is_the_same_every_time(written, tmp_path):
    for name in ("a.html", "b.html"):
        debug.report(written[0][4], tmp_path / name)
    assert (tmp_path / "a.html").read_text() == (tmp_path / "b.html").read_text()


def test_what_does_not_agree_is_shown_first(written, tmp_path):
    said = debug.report(written[0][0].parent, tmp_path / "one.html", cases=1)
    assert [bool(c["pictures"]) for c in said["calls"]] == [False, True, False, False, False]
    assert "1 shown in full" in (tmp_path / "one.html").read_text()


def test_wanted_results_from_elsewhere(written, tmp_path):
    files = written[0]
    case = debug.Case.load(files[3])
    case["out.attention_out"] = -case["out.attention_out"]
    case.save(tmp_path / "other.safetensors")
    said = debug.report(files[3], tmp_path / "r.html", ref=tmp_path / "other.safetensors")
    assert said["calls"][0]["side"] == "call" and "beside group ref" in (tmp_path / "r.html").read_text()
    with pytest.raises(dsakit.Error, match="ref is given with 5 cases, wanted one case"):
        debug.report(files[0].parent, tmp_path / "r.html", ref=files[0])


def test_the_command_of_the_wheel(written, tmp_path):
    files = written[0]
    done = subprocess.run([SCRIPT, "report", files[1], "-o", tmp_path / "r.html"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"operator: {tmp_path}/r.html, 1 x operator\n"
    for target, source, code in (("r.pdf", files[1], 2), ("r.html", tmp_path / "none", 3)):
        done = subprocess.run([SCRIPT, "report", source, "-o", tmp_path / target], capture_output=True, text=True)
        assert done.returncode == code and done.stdout == "" and done.stderr.count("\n") == 1


# ---- in a browser


def browse(page, folder, *options):
    """What the browser prints, and the addresses that it asked for: it has no network, and a log of what it tried."""
    if BROWSER is None:
        pytest.skip("no chromium is installed (.ci/debian-packages)")
    log = folder / "net.json"
    done = subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
         "--proxy-server=127.0.0.1:9", "--host-resolver-rules=MAP * ~NOTFOUND", f"--log-net-log={log}",
         f"--user-data-dir={folder / 'profile'}", *options, page.as_uri()],
        capture_output=True, timeout=600, env={"HOME": str(folder), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    try:
        events = json.loads(log.read_text())["events"]
    except ValueError:  # a browser that is ended early leaves its list open
        events = json.loads(log.read_text().rstrip().rstrip(",") + "]}")["events"]
    return done.stdout.decode(), {e["params"]["url"] for e in events if "url" in e.get("params", {})}


def outside(addresses):
    return {a for a in addresses if not a.startswith(("file:", "data:", "about:", "chrome:"))}


PROBE = """<script>
const box = e => { const r = e.getBoundingClientRect(); return [r.width, r.height] };
const svgs = [...document.querySelectorAll('svg')].map(s => ({size: box(s),
  texts: [...s.querySelectorAll('text')].filter(t => box(t)[0] > 0).map(t => t.textContent),
  shapes: [...s.querySelectorAll('path, image')].filter(t => box(t)[0] > 0 || box(t)[1] > 0).length}));
const told = JSON.stringify({text: document.body.innerText, svgs, wide: document.documentElement.scrollWidth});
document.body.innerHTML = ''; document.body.textContent = 'PROBE' + told + 'END';
</script></body>"""


def test_text_and_pictures_are_laid_out(written, tmp_path):
    """The same file with a script at its end, which asks the browser what became of it."""
    files, path, said = written
    text = re.sub(r'<meta http-equiv="Content-Security-Policy".*?>\n', "", path.read_text())
    (tmp_path / "probe.html").write_text(text.replace("</body>", PROBE))
    out, addresses = browse(tmp_path / "probe.html", tmp_path, "--window-size=1000,800", "--dump-dom")
    told = re.search(r"PROBE(.*)END", out, re.DOTALL)[1]
    told = json.loads(told.replace("&lt;", "<").replace("&gt;", ">").replace("&nbsp;", " ").replace("&amp;", "&"))
    assert "4 x agrees, 1 x operator" in told["text"] and files[1].name in told["text"]
    assert told["wide"] <= 1000  # nothing hangs over
    assert len(told["svgs"]) == 1 + sum(len(c["pictures"]) for c in said["calls"])
    for svg in told["svgs"]:
        assert svg["size"][0] > 400 and svg["size"][1] > 200 and svg["shapes"] >= 5
        assert any(t.startswith("n = ") for t in svg["texts"]) and len(svg["texts"]) > 10
    assert not outside(addresses)


@pytest.mark.parametrize("setting", ["light", "dark"])
def test_it_is_drawn_in_both_settings_and_asks_nobody(written, tmp_path, setting):
    image = tmp_path / "r.png"
    options = ["--window-size=1000,6000", f"--screenshot={image}"]
    options.append(f"--blink-settings=preferredColorScheme={int(setting == 'light')}")
    _, addresses = browse(written[1], tmp_path, *options)
    assert not outside(addresses)
    drawn = np.asarray(Image.open(image).convert("RGB")).astype(int)
    paper = [int((DARK[PAPER] if setting == "dark" else PAPER)[i : i + 2], 16) for i in (1, 3, 5)]
    assert drawn[0, 0].tolist() == paper
    away = np.abs(drawn - paper).max(2)
    assert (away > 60).mean() > 0.01  # ink
    yellow = (drawn[..., 0] > 240) & (drawn[..., 1] > 220) & (drawn[..., 2] < 90)
    assert yellow.sum() > 3000  # of shares
    for colour in ("#0072b2", "#d55e00", "#009e73"):  # of lines
        rgb = [int((DARK[colour] if setting == "dark" else colour)[i : i + 2], 16) for i in (1, 3, 5)]
        assert (np.abs(drawn - rgb).max(2) < 8).sum() > 300, colour


def test_a_page_that_asks_is_caught(tmp_path):
    (tmp_path / "bad.html").write_text('<html><body>x<img src="http://example.invalid/x.png"></body></html>')
    _, addresses = browse(tmp_path / "bad.html", tmp_path, "--dump-dom")
    assert outside(addresses) == {"http://example.invalid/x.png"}
