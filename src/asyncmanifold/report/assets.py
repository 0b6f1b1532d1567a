"""The page's style sheet and script, written by hand; nothing is loaded from elsewhere."""

STYLE = """\
:root { color-scheme: light dark; --bg: #ffffff; --text: #1b1f23; --quiet: #5b636b; --rule: #dfe3e7;
  --panel: #f6f7f9; --accent: #0072b2; }
@media screen and (prefers-color-scheme: dark) {
  :root { --bg: #15181c; --text: #e8eaed; --quiet: #a3abb3; --rule: #333a41; --panel: #1c2025;
    --accent: #9bd5f7; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 72rem; background: var(--bg); color: var(--text);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1, h2, h3 { line-height: 1.25; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; margin: .5rem 0; }
h2 { font-size: 1.2rem; margin: 2rem 0 .75rem; border-bottom: 1px solid var(--rule); padding-bottom: .3rem; }
h3 { font-size: 1rem; margin: 0 0 .5rem; }
header p, .caption, figcaption, .hint { color: var(--quiet); }
.caption, figcaption, .hint { font-size: .875rem; }
sub { line-height: 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; white-space: nowrap; width: 100%; }
th, td { padding: .3rem .7rem; text-align: right; border-bottom: 1px solid var(--rule); }
th { font-weight: 600; }
tbody th { font-weight: 400; }
th:first-child { text-align: left; position: sticky; left: 0; background: var(--bg); max-width: 18rem;
  white-space: normal; overflow-wrap: anywhere; }
tbody th:first-child { min-width: 9.2rem; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 27rem), 1fr));
  gap: 1.25rem; }
figure { margin: 0; padding: 1rem; border: 1px solid var(--rule); border-radius: 8px; min-width: 0;
  position: relative; break-inside: avoid; }
svg.fig { display: block; width: 100%; height: auto; max-width: 44rem; margin: 0 auto; }
figcaption { margin-top: .5rem; overflow-wrap: anywhere; }
details.run { margin: .5rem 0; }
summary { cursor: pointer; padding: .25rem 0; overflow-wrap: anywhere; }
select { font: inherit; max-width: 100%; padding: .35rem .5rem; background: var(--panel); color: var(--text);
  border: 1px solid var(--rule); border-radius: 6px; }
.problems { border-left: 4px solid #d55e00; padding-left: 1rem; overflow-wrap: anywhere; }
.key.switch { cursor: pointer; }
.key.off { opacity: .35; }
.key:focus-visible { outline: 2px solid var(--accent); }
.read { position: absolute; pointer-events: none; z-index: 1; background: var(--panel); color: var(--text);
  border: 1px solid var(--rule); border-radius: 6px; padding: .3rem .5rem;
  font-size: .8rem; line-height: 1.35; font-variant-numeric: tabular-nums; max-width: 16rem;
  box-shadow: 0 2px 8px rgb(0 0 0 / .2); }
.read div { display: flex; justify-content: space-between; gap: 1rem; }
.read b { font-weight: 600; }
.here { stroke: var(--quiet); stroke-width: 1; }
@media (max-width: 40rem) {
  body { padding: .75rem; }
  figure { padding: .6rem .35rem; }
  figure h3, figcaption { padding: 0 .35rem; }
  figure svg.fig text { font-size: 14px; }
  figure svg.fig text:is(.small, .over) { font-size: 13px; }
}
@media print {
  body { max-width: none; padding: 0; font-size: 10pt; }
  .figures { grid-template-columns: 1fr 1fr; gap: .75rem; }
  .hint, select, .read, label.chooser { display: none; }
  table, figcaption, .caption { font-size: 8.5pt; }
  figure { padding: .5rem; }
  sub { font-size: 6pt; }
  th, td { padding: .15rem .35rem; }
  h2 { break-after: avoid; }
}
"""

SCRIPT = """\
'use strict';
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const hidden = new Set();

  // Clicking an entry of a legend hides or shows its method, in every figure with lines.
  function toggle(series) {
    hidden.has(series) ? hidden.delete(series) : hidden.add(series);
    for (const mark of all('.lines [data-series]'))
      mark.style.display = hidden.has(mark.dataset.series) ? 'none' : '';
    for (const key of all('.key')) {
      key.classList.toggle('off', hidden.has(key.dataset.series));
      key.setAttribute('aria-pressed', String(!hidden.has(key.dataset.series)));
    }
  }
  for (const key of all('.key')) {
    key.classList.add('switch');
    key.setAttribute('role', 'button');
    key.setAttribute('tabindex', '0');
    key.setAttribute('aria-pressed', 'true');
    key.addEventListener('click', () => toggle(key.dataset.series));
    key.addEventListener('keydown', event => {
      if (event.key !== 'Enter' && event.key !== ' ') return;
      event.preventDefault();
      toggle(key.dataset.series);
    });
  }
  for (const hint of all('.hint')) hint.hidden = false;
  for (const svg of all('svg.fig')) if (svg.querySelector('.key')) svg.setAttribute('role', 'group');

  // Pointing at a figure with lines shows the values of all visible lines there.
  const back = (pixel, [low, high, start, end]) => low + (pixel - start) / (end - start) * (high - low);
  function valueAt(points, x) {
    if (x < points[0][0] - 0.5 || x > points[points.length - 1][0] + 0.5) return null;
    const next = points.findIndex(point => point[0] >= x);
    if (next <= 0) return next === 0 ? points[0][1] : points[points.length - 1][1];
    const [a, b] = [points[next - 1], points[next]];
    return b[0] === a[0] ? b[1] : a[1] + (x - a[0]) / (b[0] - a[0]) * (b[1] - a[1]);
  }
  function row(name, value, strong) {
    const line = document.createElement('div');
    for (const [tag, words] of [['span', name], [strong ? 'b' : 'span', value]]) {
      const part = document.createElement(tag);
      part.textContent = words;
      line.append(part);
    }
    return line;
  }
  for (const lines of all('.lines')) {
    const svg = lines.ownerSVGElement, figure = svg.closest('figure');
    const numbers = lines.dataset.scales.split(',').map(Number);
    const xs = numbers.slice(0, 4), ys = numbers.slice(4);
    const points = line => line.getAttribute('d').slice(1).split('L').map(p => p.split(' ').map(Number));
    const series = all('[data-name]', lines).filter(g => g.querySelector('.line')).map(g => ({
      id: g.dataset.series, name: g.dataset.name,
      points: points(g.querySelector('.line')),
    }));
    const box = document.createElement('div');
    const here = document.createElementNS(svg.namespaceURI, 'line');
    box.className = 'read';
    here.setAttribute('class', 'here');
    here.setAttribute('y1', ys[2]);
    here.setAttribute('y2', ys[3]);
    const leave = () => { box.remove(); here.remove(); };
    const show = event => {
      const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
      if (at.x < xs[2] || at.x > xs[3] || at.y > ys[2] || at.y < ys[3]) return leave();
      const read = series.filter(one => !hidden.has(one.id))
        .map(one => [one.name, valueAt(one.points, at.x)]).filter(entry => entry[1] !== null)
        .sort((a, b) => a[1] - b[1]);
      box.replaceChildren(row(figure.querySelector('h3').textContent.split(' against ').pop(),
        back(at.x, xs).toPrecision(4), true));
      for (const [name, y] of read) box.append(row(name, back(y, ys).toFixed(3), false));
      here.setAttribute('x1', at.x);
      here.setAttribute('x2', at.x);
      lines.append(here);
      figure.append(box);
      const frame = figure.getBoundingClientRect(), place = event.clientX - frame.left;
      const right = place + 16 + box.offsetWidth < frame.width ? place + 16 : place - 16 - box.offsetWidth;
      box.style.left = Math.max(0, right) + 'px';
      box.style.top = Math.max(0, event.clientY - frame.top - box.offsetHeight / 2) + 'px';
    };
    svg.addEventListener('pointermove', show);
    svg.addEventListener('pointerdown', show);
    svg.addEventListener('pointerleave', event => event.pointerType === 'touch' || leave());
    document.addEventListener('pointerdown', event => figure.contains(event.target) || leave());
  }

  // Show one run at a time, chosen from a list instead of folded blocks.
  const runs = all('details.run');
  if (runs.length > 1) {
    const label = document.createElement('label'), select = document.createElement('select');
    label.className = 'chooser';
    label.append('Run: ', select);
    for (const run of runs) select.add(new Option(run.querySelector('summary').textContent));
    select.selectedIndex = Math.max(0, runs.findIndex(run => run.open));
    const show = () => runs.forEach((run, place) => {
      run.open = place === select.selectedIndex;
      run.hidden = !run.open;
    });
    select.addEventListener('change', show);
    runs[0].before(label);
    for (const run of runs) run.querySelector('summary').hidden = true;
    show();
  }
})();
"""
