"""Pages in a real browser, at the width of a phone."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess

import pytest
from report.test_page import METRICS, config, records

from tgflow.run.page import continual_report

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
WIDTH = 390
LABELS = {
    f"prequential.edge.{name}": 0.5 for name in ("ap", "ap_low", "ap_high", "accuracy", "auc")
}
# Prints the texts that stick out of the page, in which a browser as narrow as that is a frame.
MEASURE = """
<iframe id=page width=%d height=4000 style="border:0" srcdoc="%s"></iframe><pre id=found></pre>
<script>
page.onload = () => {
  const inside = page.contentDocument, found = [], range = inside.createRange();
  const texts = inside.createTreeWalker(inside.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const text = texts.currentNode;
    if (!text.parentElement.checkVisibility({visibilityProperty: true})) continue;
    range.selectNodeContents(text);
    const box = range.getBoundingClientRect();
    if (text.data.trim() && (box.left < 0 || box.right > %d)) found.push(text.data);
  }
  document.getElementById("found").textContent = JSON.stringify(found);
};
</script>
"""


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium")
def test_no_text_of_a_page_sticks_out_on_a_phone(tmp_path):
    page = continual_report(records(60), {**METRICS, **LABELS}, config("a" * 30 + ".csv"))
    path = tmp_path / "phone.html"
    path.write_text(MEASURE % (WIDTH, html.escape(page), WIDTH - 14))  # the page's own margin
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000")
    command = [BROWSER, *flags, f"--user-data-dir={tmp_path}", "--dump-dom", path.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    [found] = re.findall(r'<pre id="found">(.*?)</pre>', shown)
    assert json.loads(html.unescape(found)) == []
