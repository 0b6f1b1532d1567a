'use strict';
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const content = JSON.parse(document.getElementById('content').textContent);
  const rowsOf = table => table.rows.map(row =>
    Object.fromEntries(table.fields.map((field, place) => [field, row[place]]).filter(([, v]) => v !== null)));
  const named = new Map(Object.entries(content.data).map(([name, table]) => [name, rowsOf(table)]));
  const views = new Map();

  // --- figures ---------------------------------------------------------------------------------------

  const datasetsOf = part => [...new Set([...JSON.stringify(part).matchAll(/"data":\{"name":"([^"]+)"\}/g)]
    .map(found => found[1]))];
  const datasets = name => Object.fromEntries(
    datasetsOf(content.figures[name]).map(data => [data, named.get(data) ?? []]));
  const copy = value => JSON.parse(JSON.stringify(value));

  // The specification of a figure that stands alone, as in the folder figures/.
  function standalone(name) {
    const specification = { $schema: 'https:' + '//vega.github.io/schema/vega-lite/v6.json',
      description: content.titles[name], ...copy(content.figures[name]), config: content.fileConfig,
      datasets: datasets(name) };
    delete specification.usermeta;
    if (!specification.facet && !specification.width) specification.width = 440;
    return specification;
  }

  // The specification for the place where the figure is shown: as wide as that, colours of the page.
  function placed(name, plot) {
    const specification = { ...copy(content.figures[name]), config: copy(content.pageConfig),
      datasets: datasets(name) };
    const room = plot.clientWidth;
    const layout = specification.usermeta?.layout;
    delete specification.usermeta;
    if (specification.params?.some(param => param.name === 'hidden'))
      for (const scale of ['color', 'shape', 'strokeDash']) withoutLegend(specification, scale);
    if (specification.facet) {
      const columns = specification.columns = Math.max(1, Math.min(5, Math.floor(room / 160)));
      specification.spec.width = Math.floor((room - 50 - specification.spacing * (columns - 1)) / columns);
    } else if (layout === 'square') {
      specification.width = specification.height = Math.max(180, Math.min(specification.width, room - 140));
    } else {
      specification.width = 'container';
      specification.autosize = { type: 'fit-x', contains: 'padding' };
    }
    return specification;
  }

  // The legend of series is the page's own; legends of other things stay in their figures.
  function withoutLegend(part, channel) {
    const encoding = part.encoding?.[channel];
    if (encoding?.field === 'method') encoding.legend = null;
    for (const child of [...(part.layer ?? []), ...(part.spec ? [part.spec] : [])]) withoutLegend(child, channel);
  }

  const quiet = { actions: false, ast: true, renderer: 'svg', logLevel: 1 };
  async function draw(figure) {
    const name = figure.dataset.figure, plot = figure.querySelector('.plot');
    views.get(name)?.finalize();
    const { view } = await vegaEmbed(plot, placed(name, plot),
      { ...quiet, tooltip: { disableDefaultStyle: true } });
    views.set(name, view);
    await tell(view);
    figure.dataset.drawn = 'true';
  }

  // --- the legend of all figures -----------------------------------------------------------------------

  const hidden = new Set();
  let focus = '', whole = false;
  async function tell(view) {
    for (const [signal, value] of [['hidden', [...hidden]], ['focus', focus], ['whole', whole]])
      try { view.signal(signal, value); } catch { /* a figure without that switch */ }
    await view.runAsync();
  }
  const tellAll = () => views.forEach(tell);
  for (const key of all('.legend .key')) {
    const name = key.dataset.name;
    key.addEventListener('click', () => {
      hidden.delete(name) || hidden.add(name);
      focus = '';
      key.setAttribute('aria-pressed', String(!hidden.has(name)));
      for (const row of all('tr[data-name]')) row.classList.toggle('off', hidden.has(row.dataset.name));
      tellAll();
    });
    const point = named => () => { if (!hidden.has(name)) { focus = named; tellAll(); } };
    key.addEventListener('pointerenter', event => event.pointerType === 'mouse' && point(name)());
    key.addEventListener('pointerleave', point(''));
    key.addEventListener('focus', () => key.matches(':focus-visible') && point(name)());
    key.addEventListener('blur', point(''));
  }

  // --- downloads ---------------------------------------------------------------------------------------

  function save(name, parts, type) {
    const link = document.createElement('a');
    link.href = URL.createObjectURL(new Blob(parts, { type }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  }
  const cell = value => value === undefined || value === null ? '' :
    /[",\n]/.test(String(value)) ? `"${String(value).replaceAll('"', '""')}"` : String(value);
  function csv(rows) {
    const fields = [...new Set(rows.flatMap(Object.keys))];
    return [fields, ...rows.map(row => fields.map(field => row[field]))]
      .map(line => line.map(cell).join(',') + '\n').join('');
  }
  async function drawnForFile(name, use) {
    const specification = standalone(name);
    if (specification.layer) specification.layer = specification.layer.filter(layer => layer.name !== 'evaluations');
    specification.params = specification.params?.filter(param => !param.views?.includes('evaluations'));
    const { view } = await vegaEmbed(document.createElement('div'), specification, quiet);
    const result = await use(view);
    view.finalize();
    return result;
  }
  const downloads = {
    SVG: async (name, file) => save(`${file}.svg`, [await drawnForFile(name, v => v.toSVG())], 'image/svg+xml'),
    PNG: async (name, file) => {
      const canvas = await drawnForFile(name, v => v.toCanvas(2.5));
      canvas.toBlob(blob => save(`${file}.png`, [blob], 'image/png'));
    },
    CSV: (name, file) => {
      for (const [data, rows] of Object.entries(datasets(name)))
        if (rows.length) save(`${file}.${data}.csv`, [csv(rows)], 'text/csv');
    },
    Specification: (name, file) =>
      save(`${file}.vl.json`, [JSON.stringify(standalone(name), null, 1)], 'application/json'),
  };
  function button(words, act) {
    const made = document.createElement('button');
    made.type = 'button';
    made.textContent = words;
    made.addEventListener('click', act);
    return made;
  }
  for (const figure of all('figure')) {
    const tools = document.createElement('div'), name = figure.dataset.figure;
    tools.className = 'tools';
    const run = () => figure.closest('#runs') && chosen ? '-' + chosen.name.replace(/[^a-z0-9]+/gi, '-') : '';
    for (const [words, act] of Object.entries(downloads)) tools.append(button(words, () => act(name, name + run())));
    if (JSON.stringify(content.figures[name]).includes('"name":"whole"')) tools.prepend(button('Whole range', () => {
      whole = !whole;
      for (const other of all('.tools button.range')) other.textContent = whole ? 'Useful range' : 'Whole range';
      tellAll();
    }));
    if (tools.firstChild.textContent === 'Whole range') tools.firstChild.className = 'range';
    figure.append(tools);
  }

  // --- the table: sorted by any column, saved as CSV ----------------------------------------------------

  for (const table of all('table.sortable')) {
    const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
    const valueOf = (row, place) => {
      const text = row.cells[place].dataset.value ?? row.cells[place].textContent;
      return text === '' ? null : isNaN(text) ? text : Number(text);
    };
    const compare = (a, b) => typeof a === 'string' || typeof b === 'string' ? String(a).localeCompare(String(b)) : a - b;
    heads.forEach((head, place) => {
      const words = head.textContent;
      head.replaceChildren(button(words, () => {
        const up = head.getAttribute('aria-sort') !== 'ascending';
        heads.forEach(other => other.removeAttribute('aria-sort'));
        head.setAttribute('aria-sort', up ? 'ascending' : 'descending');
        const rows = [...body.rows].map(row => [valueOf(row, place), row]);
        rows.sort(([a], [b]) => a === null || b === null ? (a === null) - (b === null) : (up ? 1 : -1) * compare(a, b));
        body.append(...rows.map(([, row]) => row));
      }));
    });
    const tools = document.createElement('div');
    tools.className = 'tools';
    tools.append(button('CSV', () => {
      const lines = [...table.rows].map(row => [...row.cells].map(one => cell(one.textContent)).join(',') + '\n');
      save('table.csv', lines, 'text/csv');
    }));
    table.parentElement.after(tools);
  }

  // --- single runs, one at a time ------------------------------------------------------------------------

  let chosen = null;
  function choose(place) {
    chosen = content.runs[place];
    for (const [data, table] of Object.entries(chosen.data)) named.set(data, rowsOf(table));
    for (const [name, words] of Object.entries(chosen.captions))
      document.querySelector(`figure[data-figure="${name}"] figcaption`).textContent = words;
  }
  if (content.runs?.length) {
    const label = document.createElement('label'), select = document.createElement('select');
    label.className = 'chooser';
    label.append('Run: ', select);
    for (const run of content.runs) select.add(new Option(run.name));
    select.selectedIndex = content.shownRun;
    choose(content.shownRun);
    select.addEventListener('change', async () => {
      choose(select.selectedIndex);
      for (const figure of all('#runs figure')) await draw(figure);
    });
    document.querySelector('#runs .figures').before(label);
  }

  for (const hint of all('.hint')) hint.hidden = false;
  const drawAll = async figures => { for (const figure of figures) await draw(figure); };
  const drawn = drawAll(all('figure')).then(() => { document.body.dataset.drawn = 'true'; });
  let timer, width = innerWidth;
  addEventListener('resize', () => {
    if (innerWidth === width) return;
    width = innerWidth;
    clearTimeout(timer);
    timer = setTimeout(() => drawn.then(() => drawAll(all('figure.wide, figure.square'))), 200);
  });
})();
