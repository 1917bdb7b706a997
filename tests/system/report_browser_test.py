"""The report in a real browser: Chromium without a window, on a telephone, on two desktops, in the dark and
on paper. No figure is cut, no label of a plot covers another, and every text can be read.

Usage: report_browser_test.py REPOSITORY BUILD. Speaks the DevTools protocol over pipes, so it needs the
standard library alone and no network. Exit status 77 (skipped) without Chromium, jinja2 or matplotlib;
screenshots and the PDF stay in BUILD/report_browser for who wants to look.
"""

import base64
import json
import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
import zlib

DESKTOP, PHONE, WIDE = (1280, 900), (360, 780), (1920, 1080)
# px with the appendix folded, on the desktop and on the telephone; sheets of A4
MOST_HEIGHT, MOST_ON_PHONE, MOST_PAGES = 6000, 9000, 8
LEAST_LETTER = 11  # px
LEAST_CONTRAST, OF_LARGE = 4.5, 3.0  # WCAG 2.1, level AA (1.4.3)
# that the report tries
PYTHONS = ([os.environ["OUTGRAD_PYTHON"]] if os.environ.get("OUTGRAD_PYTHON")
           else ["python3", "/usr/bin/python3"])
SECONDS = 1200  # for everything; a quiet machine needs 20
# Fewer would mean that a section was lost: 4 that answer, 4 for each of three formats, 3 of T against O, 8
# activations' fronts and more.
LEAST_PLOTS = 40
SECTIONS = ["Four pictures", "What is kept", "Speed", "What was made when", "Error curves", "T against O",
            "What to choose from", "Channel stability",
            "Norm bounds under attack", "Sweep coverage", "Errors as x have them",
            "Beside others", "Bits kept against the error of the gradient", "Bytes kept", "Training",
            "Requirements", "Errors, kept apart", "Forward",
            "Coefficients and cost", "Tuning", "Tests beside the suite", "Inputs"]

failures = []


def expect(holds, what):
    if not holds:
        failures.append(what)
        print("FAILED:", what, file=sys.stderr)


class Browser:
    """A Chromium that reads commands from its descriptor 3 and writes answers and events to 4, each ended by
    a zero byte."""

    def __init__(self, program, profile):
        read_commands, self.commands = os.pipe()
        self.answers, write_answers = os.pipe()

        def place():
            # Above both, so that neither move overwrites the other's source.
            high = [os.dup2(read_commands, 200), os.dup2(write_answers, 201)]
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        self.process = subprocess.Popen(
            [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--disable-extensions", "--disable-background-networking", "--disable-component-update",
             "--no-first-run", "--host-resolver-rules=MAP * ~NOTFOUND", "--remote-debugging-pipe",
             "--user-data-dir=" + profile, "--force-color-profile=srgb", "--hide-scrollbars"],
            preexec_fn=place, pass_fds=(3, 4), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True)
        os.close(read_commands)
        os.close(write_answers)
        self.buffer, self.last, self.events, self.session = b"", 0, [], None
        self.deadline = time.monotonic() + SECONDS

    def receive(self):
        while b"\0" not in self.buffer:
            left = self.deadline - time.monotonic()
            if left <= 0 or not select.select([self.answers], [], [], left)[0]:
                raise TimeoutError(f"the browser said nothing more within {SECONDS} s")
            piece = os.read(self.answers, 1 << 20)
            if not piece:
                raise EOFError("the browser ended")
            self.buffer += piece
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, **parameters):
        self.last += 1
        command = {"id": self.last, "method": method, "params": parameters}
        if self.session:
            command["sessionId"] = self.session
        data = json.dumps(command).encode() + b"\0"
        while data:
            data = data[os.write(self.commands, data):]
        while True:
            message = self.receive()
            if message.get("id") == self.last:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self.events.append(message)

    def open_tab(self):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")

    def load(self, url, size, dark=False, media=""):
        width, height = size
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                  mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", media=media,
                  features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        seen = len(self.events)
        self.call("Page.navigate", url=url)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events[seen:]):
            self.events.append(self.receive())

    def value(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def screenshot(self, size, scale=1.0):
        clip = {"x": 0, "y": self.value("window.scrollY"), "width": size[0], "height": size[1],
                "scale": scale}
        return base64.b64decode(self.call("Page.captureScreenshot", format="png", clip=clip)["data"])

    def close(self):
        try:
            self.session = None
            self.call("Browser.close")
            self.process.wait(10)
        except Exception:  # it is gone, or has to go
            pass
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def pixels(png):
    """Rows of an 8-bit PNG, with the bytes of a pixel (specification: sections 7 and 9)."""
    place, data, channels, width = 8, b"", 0, 0
    while place < len(png):
        length, kind = int.from_bytes(png[place:place + 4], "big"), png[place + 4:place + 8]
        body = png[place + 8:place + 8 + length]
        if kind == b"IHDR":
            width, channels = int.from_bytes(body[:4], "big"), {2: 3, 6: 4}[body[9]]
            assert body[8] == 8 and body[12] == 0, "8 bits, not interlaced"
        elif kind == b"IDAT":
            data += body
        place += 12 + length
    raw, stride = zlib.decompress(data), width * channels
    above, rows = bytearray(stride), []
    for start in range(0, len(raw), stride + 1):
        method, row = raw[start], bytearray(raw[start + 1:start + 1 + stride])
        for i in range(stride):
            left = row[i - channels] if i >= channels else 0
            up, corner = above[i], above[i - channels] if i >= channels else 0
            if method == 1:
                add = left
            elif method == 2:
                add = up
            elif method == 3:
                add = (left + up) // 2
            elif method == 4:
                guess = left + up - corner
                add = min((abs(guess - left), 0, left), (abs(guess - up), 1, up),
                          (abs(guess - corner), 2, corner))[2]
            else:
                break
            row[i] = (row[i] + add) & 255
        rows.append(row)
        above = row
    return rows, channels


def colours(png):
    """How many pixels have each colour, colours in steps of 32."""
    count = {}
    rows, channels = pixels(png)
    for row in rows:
        for i in range(0, len(row), channels):
            key = (row[i] >> 5, row[i + 1] >> 5, row[i + 2] >> 5)
            count[key] = count.get(key, 0) + 1
    return count


def check_picture(png, name, dark):
    count = colours(png)
    total = sum(count.values())
    paper = max(count, key=count.get)
    expect(len(count) >= 8, f"{name}: {len(count)} colours only")
    expect(0.3 < count[paper] / total < 0.985,
           f"{name}: {100 * count[paper] / total:.1f}% of the picture is the background")
    expect((max(paper) <= 2) == dark, f"{name}: the background is {paper} of 7")


# The page as it opens, with the appendix folded.
FOLDED = """(() => ({
  height: document.documentElement.scrollHeight,
  appendix: (e => e.checkVisibility() && !e.open)(document.getElementById('appendix')),
  verdict: document.querySelector('.verdict').getBoundingClientRect().bottom,
  tiles: document.querySelector('.tiles').getBoundingClientRect().bottom,
  begins: document.querySelector('.verdict').textContent.slice(0, 2),
}))()"""

# Everything wider than the page, what a box of its own shows a part of only, and what is drawn without size.
LAYOUT = """(() => {
  const wide = [], flat = [];
  for (const e of document.querySelectorAll('body *')) {
    if (e.closest('svg') && e.tagName != 'svg' || e.closest('details:not([open])')) continue;
    if (e.getBoundingClientRect().right > document.documentElement.clientWidth + 0.5)
      wide.push(e.tagName + '.' + e.className + ': ' + (e.textContent || '').slice(0, 40));
  }
  const svgs = [...document.querySelectorAll('svg')];
  for (const s of svgs) {
    const box = s.getBoundingClientRect();
    const drawn = s.querySelectorAll('path, circle, use, polygon, rect').length;
    if (box.width < 200 || box.height < 80 || drawn < 10) flat.push(s.querySelector('title').textContent);
  }
  return {
    width: document.documentElement.scrollWidth, body: document.body.scrollWidth,
    wide: wide.slice(0, 5), flat, plots: svgs.length,
    cut: [...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth)
      .map(e => `${e.getAttribute('aria-label')}: ${e.scrollWidth} of ${e.clientWidth}`),
  };
})()"""

# Every text that is seen: those too small, those of too little contrast with what is below them, and in plots
# those that cover another or leave their picture.
TEXTS = """(([least, contrast, of_large]) => {
  const small = [], faint = [], covered = [], outside = [];
  const parts = colour => colour.match(/[0-9.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const below = e => {
    for (; e; e = e.parentElement) {
      const colour = parts(getComputedStyle(e).backgroundColor);
      if (colour.length < 4 || colour[3] == 1) return colour;
    }
    return [255, 255, 255];
  };
  const shown = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const e = walker.currentNode.parentElement;
    const seen = !e.closest('title, style') && e.checkVisibility();
    if (seen && walker.currentNode.textContent.trim()) shown.push(e);
  }
  for (const e of new Set(shown)) {
    const style = getComputedStyle(e), svg = e.closest('svg'), said = e.textContent.trim().slice(0, 40);
    const scale = svg ? svg.getBoundingClientRect().width / svg.viewBox.baseVal.width : 1;
    const size = parseFloat(style.fontSize) * scale;
    if (size < least - 0.01) small.push(`${size.toFixed(1)} px: ${said}`);
    const colours = [parts(svg ? style.fill : style.color), below(svg ? svg.parentElement : e)];
    const [one, other] = colours.map(light);
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    const large = size >= 24 || size >= 18.66 && style.fontWeight >= 700;
    if (ratio < (large ? of_large : contrast)) faint.push(`${ratio.toFixed(2)}: ${said}`);
  }
  for (const svg of document.querySelectorAll('svg')) {
    if (!svg.checkVisibility()) continue;
    const box = svg.getBoundingClientRect(), name = svg.querySelector('title').textContent.slice(0, 50);
    const texts = [...svg.querySelectorAll('text')].filter(t => t.textContent.trim());
    const boxes = texts.map(t => t.getBoundingClientRect());
    boxes.forEach((one, i) => {
      if (one.left < box.left - 1 || one.right > box.right + 1 || one.top < box.top - 1
          || one.bottom > box.bottom + 1) outside.push(`${name}: ${texts[i].textContent}`);
      for (let k = 0; k < i; ++k) {
        const other = boxes[k];
        const across = Math.min(one.right, other.right) - Math.max(one.left, other.left);
        const down = Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top);
        // Boxes have room above and below their letters.
        if (across > 1 && down > 0.35 * Math.min(one.height, other.height))
          covered.push(`${name}: "${texts[k].textContent}" and "${texts[i].textContent}"`);
      }
    });
  }
  return {seen: shown.length, small, faint, covered, outside};
})"""

OPEN = "for (const e of document.querySelectorAll('details')) e.open = true"

# What a reader without eyes needs: headings in order, a name for every picture, headers for every table; and
# the sections in theirs.
STRUCTURE = """(() => {
  const level = e => Number(e.tagName[1]);
  const headings = [...document.querySelectorAll('h1, h2, h3, h4')];
  return {
    first: headings.slice(0, 2).map(e => e.tagName),
    language: document.documentElement.lang, title: document.title,
    jumps: headings.filter((e, i) => i > 0 && level(e) > level(headings[i - 1]) + 1).map(e => e.textContent),
    sections: [...document.querySelectorAll('main section h2')].slice(1).map(e => e.textContent),
    nameless: [...document.querySelectorAll('svg')].filter(s => s.getAttribute('role') != 'img' ||
      !document.getElementById(s.getAttribute('aria-labelledby'))?.textContent.trim()).length,
    names: new Set([...document.querySelectorAll('svg > title')].map(e => e.textContent)).size,
    headless: [...document.querySelectorAll('table')]
      .filter(t => !t.tHead || [...t.tHead.rows[0].cells].some(c => c.scope != 'col')).length,
    uncommanded: [...document.querySelectorAll('figure')]
      .filter(f => !/^(\\.\\/outgrad |python notebooks_data\\/studies\\/)/
        .test((f.querySelector('.made code') || {textContent: ''}).textContent))
      .map(f => f.textContent.slice(0, 60)),
    broken: [...document.querySelectorAll('a[href]')]
      .filter(a => !document.getElementById(a.getAttribute('href').slice(1))).map(a => a.href),
    outside: [...document.querySelectorAll('[src], link, script, iframe, object, image')].length,
  };
})()"""

# On paper there is no appendix, folded tables are open, and no table is wider than the page.
PAPER = """(() => {
  const width = document.documentElement.clientWidth;
  const tables = [...document.querySelectorAll('table')];
  return {
    hidden: tables.filter(t => !t.closest('#appendix') && !t.checkVisibility()).length, tables: tables.length,
    appendix: document.getElementById('appendix').checkVisibility(),
    cut: tables.filter(t => t.getBoundingClientRect().right > width + 0.5)
      .map(t => t.parentElement.getAttribute('aria-label')),
    background: getComputedStyle(document.body).backgroundColor,
    navigation: getComputedStyle(document.querySelector('nav')).display,
  };
})()"""


def check_html(text):
    for pattern in (r"\b(?:src|href)\s*=\s*[\"'](?!#)", r"url\(\s*[\"']?(?!#)", r"@import", r"<script",
                    r"<link", r"<iframe"):
        expect(not re.search(pattern, text), f"the page refers outside: {pattern}")


def check_texts(browser, name):
    found = browser.value(f"{TEXTS}({json.dumps([LEAST_LETTER, LEAST_CONTRAST, OF_LARGE])})")
    expect(found["seen"] > 500, f"{name}: {found['seen']} texts are seen")
    for kind, what in (("small", f"letters under {LEAST_LETTER} px"), ("faint", "too little contrast"),
                       ("covered", "labels that cover one another"), ("outside", "labels beyond their plot")):
        expect(not found[kind], f"{name}: {len(found[kind])} {what}: {found[kind][:6]}")


def keep_picture(browser, keep, name, size):
    with open(os.path.join(keep, name + ".png"), "wb") as file:
        file.write(browser.screenshot(size))


def check_folded(browser, name, size):
    """The page as it opens: the verdict with T and the key figures are on the first screen."""
    folded = browser.value(FOLDED)
    expect(folded["appendix"], f"{name}: the appendix is not there, or not folded")
    expect(folded["begins"] == "T ", f"{name}: the verdict begins with {folded['begins']}")
    expect(folded["verdict"] <= size[1],
           f"{name}: the verdict ends at {folded['verdict']} px, the first screen at {size[1]}")
    most = MOST_ON_PHONE if size == PHONE else MOST_HEIGHT
    expect(folded["height"] <= most, f"{name}: {folded['height']} px without the appendix")
    if size[0] >= DESKTOP[0]:
        expect(folded["tiles"] <= size[1], f"{name}: the key figures end at {folded['tiles']} px")
    return folded["height"]


def check_screen(browser, url, keep, name, size, dark):
    """One screen: folded, then with everything open. Returns the height when folded, and the plots."""
    browser.load(url, size, dark)
    height = check_folded(browser, name, size)
    keep_picture(browser, keep, name, size)
    check_picture(browser.screenshot(size, 0.25), name, dark)
    browser.value(OPEN)
    layout = browser.value(LAYOUT)
    expect(layout["width"] <= size[0] and layout["body"] <= size[0],
           f"{name}: the page is {layout['width']} wide, the screen {size[0]}")
    expect(not layout["wide"], f"{name}: beyond the screen's edge: {layout['wide']}")
    expect(not layout["cut"], f"{name}: {len(layout['cut'])} tables of which a part is shown only: "
           f"{layout['cut'][:5]}")
    expect(not layout["flat"], f"{name}: plots without size or content: {layout['flat']}")
    expect(layout["plots"] >= LEAST_PLOTS, f"{name}: {layout['plots']} plots")
    check_texts(browser, name)
    browser.value("document.getElementById('four-pictures').scrollIntoView()")
    keep_picture(browser, keep, name + "-pictures", size)
    check_picture(browser.screenshot(size, 0.25), name + ", pictures", dark)
    return height, layout["plots"]


def check_report(browser, url, keep):
    heights = {}
    for name, size, dark in (("desktop", DESKTOP, False), ("phone", PHONE, False), ("wide", WIDE, False),
                             ("dark", DESKTOP, True)):
        heights[name], plots = check_screen(browser, url, keep, name, size, dark)

    structure = browser.value(STRUCTURE)
    expect(structure["first"] == ["H1", "H2"], f"first headings: {structure['first']}")
    expect(structure["language"] == "en" and "outgrad" in structure["title"],
           f"language and title: {structure['language']}, {structure['title']}")
    expect(not structure["jumps"], f"headings that skip a level: {structure['jumps']}")
    expect(structure["sections"] == SECTIONS, f"sections: {structure['sections']}")
    expect(structure["nameless"] == 0, f"{structure['nameless']} plots have no name")
    expect(structure["names"] == plots, f"{structure['names']} names of {plots} plots")
    expect(structure["headless"] == 0, f"{structure['headless']} tables lack headers of columns")
    expect(not structure["uncommanded"], f"no command: {structure['uncommanded']}")
    expect(not structure["broken"], f"links that lead nowhere: {structure['broken']}")
    expect(structure["outside"] == 0, f"{structure['outside']} elements load something")

    a4 = (703, 1000)  # 186 mm of text at 96 pixels an inch
    browser.load(url, a4, dark=True, media="print")
    paper = browser.value(PAPER)
    expect(paper["tables"] > 10 and paper["hidden"] == 0,
           f"on paper {paper['hidden']} of {paper['tables']} tables are folded")
    expect(not paper["appendix"], "the appendix is on paper")
    expect(not paper["cut"], f"on paper wider than the page: {paper['cut']}")
    expect(paper["background"] == "rgb(255, 255, 255)" and paper["navigation"] == "none",
           f"on paper: {paper}")
    pdf = base64.b64decode(browser.call("Page.printToPDF", preferCSSPageSize=True)["data"])
    with open(os.path.join(keep, "print.pdf"), "wb") as file:
        file.write(pdf)
    pages = max([int(n) for n in re.findall(rb"/Type\s*/Pages\b[^>]*?/Count\s+(\d+)|/Count\s+(\d+)", pdf)
                 for n in n if n] or [0])
    expect(pdf.startswith(b"%PDF-") and 2 <= pages <= MOST_PAGES, f"the PDF has {pages} pages")

    said = [event["params"] for event in browser.events if event.get("method") in (
        "Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")]
    expect(not said, f"the console says {json.dumps(said)[:400]}")
    asked = {event["params"]["request"]["url"] for event in browser.events
             if event.get("method") == "Network.requestWillBeSent"}
    expect(asked <= {url}, f"the page asked for {sorted(asked - {url})[:3]}")
    expect(url in asked, "requests are not seen")
    return plots, pages, heights


def main():
    root, build = sys.argv[1], sys.argv[2]
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not program:
        print("skipped: no chromium (Debian: chromium)")
        return 77
    if not os.access(os.path.join(build, "outgrad-check"), os.X_OK) or not any(
            shutil.which(python) and subprocess.run([python, "-c", "import jinja2, matplotlib"],
                                                    capture_output=True, check=False).returncode == 0
            for python in PYTHONS):
        print("skipped: this build has no fitter, or no Python has jinja2 and matplotlib (Debian: "
              "python3-jinja2, python3-matplotlib)")
        return 77
    keep = os.path.join(build, "report_browser")
    os.makedirs(keep, exist_ok=True)
    begin = time.monotonic()
    command = [os.path.join(build, "outgrad-check"), "report", "--in", "notebooks_data", "--out", keep]
    made = subprocess.run(command, cwd=root, stdout=subprocess.DEVNULL, check=False)
    # 1: a requirement is not met, which the page says too
    expect(made.returncode in (0, 1), f"report: status {made.returncode}")
    built = time.monotonic() - begin
    page = os.path.join(keep, "index.html")
    with open(page, encoding="utf-8") as file:
        check_html(file.read())
    plots, pages, heights = 0, 0, {}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(program, profile)
        try:
            browser.open_tab()
            plots, pages, heights = check_report(browser, "file://" + os.path.realpath(page), keep)
        finally:
            browser.close()
    print("; ".join(f"{name} {height} px" for name, height in heights.items()))
    print(f"{plots} plots, {pages} pages on paper; report {built:.1f} s, all {time.monotonic() - begin:.1f} "
          f"s; {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
