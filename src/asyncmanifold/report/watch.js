'use strict';
(() => {
  const find = id => document.getElementById(id);
  const SVG = 'http://www.w3.org/2000/svg', COLOURS = 8, BUSY = 2000, IDLE = 10000;
  let chosen = null, shown = '', heard = 0, state = null;

  // --- words ---------------------------------------------------------------------------------------------

  const known = value => value !== null && value !== undefined;
  const number = (value, digits = 3) => known(value) ? Number(value.toPrecision(digits)).toLocaleString('en') : '–';
  const exactly = value => known(value) ? Number(value).toLocaleString('en') : '–';
  function score(value) {
    if (!known(value)) return '–';
    return Math.abs(value) < 1000 ? value.toFixed(4) : value.toExponential(2);
  }
  function bytes(value) {
    if (!known(value)) return '–';
    const units = ['B', 'kB', 'MB', 'GB', 'TB'];
    const step = value < 1 ? 0 : Math.min(4, Math.floor(Math.log10(value) / 3));
    return `${number(value / 1000 ** step)} ${units[step]}`;
  }
  function duration(seconds) {
    if (!known(seconds)) return '–';
    const whole = Math.round(seconds), pad = part => String(part).padStart(2, '0');
    if (whole < 60) return `${whole} s`;
    const hours = Math.floor(whole / 3600), minutes = Math.floor(whole / 60) % 60;
    if (hours >= 48) return `${Math.floor(hours / 24)} d ${hours % 24} h`;
    return hours ? `${hours}:${pad(minutes)}:${pad(whole % 60)}` : `${minutes}:${pad(whole % 60)}`;
  }
  const shortName = run => run.method ? `${run.method}, seed ${run.seed ?? '–'}` : run.place;
  const nameOf = run => // a run's place tells it from others of the same method and seed
    state.runs.filter(other => shortName(other) === shortName(run)).length > 1 ? run.place : shortName(run);
  const failuresOf = run => run.failed + run.rejected + run.dropped;

  // --- elements: text only ever becomes text -------------------------------------------------------------

  function make(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }
  function draw(tag, attributes, words) {
    const made = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (words !== undefined) made.textContent = words;
    return made;
  }
  const colour = place => `var(--series-${place % COLOURS})`;
  const bar = run => make('progress', { max: run.total || 1, value: run.done, 'aria-label': 'progress' });
  const badge = word => make('span', { class: `state ${word}` }, word);

  // --- charts --------------------------------------------------------------------------------------------

  function ticks(low, high, most) {
    const rough = (high - low) / most, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map(factor => factor * power).find(one => one >= rough);
    const found = [];
    for (let tick = Math.ceil(low / step) * step; tick <= high + step * 1e-9; tick += step) found.push(tick);
    return found;
  }
  function range(values, atLeast) {
    let low = Infinity, high = -Infinity;
    for (const value of values) { low = Math.min(low, value); high = Math.max(high, value); }
    if (!(high > low)) { low -= atLeast / 2; high = low + atLeast; }
    return [low, high];
  }
  function chart(box, series, target, empty = 'nothing yet') {
    const lines = series.map(one => ({ ...one, points: one.points.filter(point => known(point[1])) }));
    const all = lines.flatMap(one => one.points);
    const words = lines.map(one => one.points.length ? `${one.name}: ${number(one.points.at(-1)[1], 4)}` : '').join('; ');
    const width = Math.max(240, box.clientWidth), height = 152, left = 44, bottom = 20, top = 8, right = 8;
    const svg = draw('svg', { viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': words || empty });
    if (!all.length) {
      svg.append(draw('text', { x: width / 2, y: height / 2, 'text-anchor': 'middle' }, empty));
      box.replaceChildren(svg);
      return;
    }
    const values = all.map(point => point[1]);
    const [low, high] = range(known(target) ? [...values, target] : values, 1e-3 * Math.max(1, Math.abs(values[0])));
    const [first, last] = range(all.map(point => point[0]), 1);
    const x = value => left + (value - first) / (last - first) * (width - left - right);
    const y = value => height - bottom - (value - low) / (high - low) * (height - bottom - top);
    for (const tick of ticks(low, high, 4)) {
      svg.append(draw('line', { class: 'grid', x1: left, x2: width - right, y1: y(tick), y2: y(tick) }));
      svg.append(draw('text', { x: left - 6, y: y(tick) + 4, 'text-anchor': 'end' }, number(tick, 4)));
    }
    for (const tick of ticks(first, last, Math.max(3, width / 80)).filter(Number.isInteger)) {
      const words = tick.toLocaleString('en'), room = width - 4 * words.length; // where it still fits around its place
      svg.append(draw('text', { x: Math.min(x(tick), room), y: height - 4, 'text-anchor': 'middle' }, words));
    }
    if (known(target))
      svg.append(draw('line', { class: 'cross', x1: left, x2: width - right, y1: y(target), y2: y(target) }));
    lines.forEach(one => {
      const path = one.points.map(point => `${x(point[0]).toFixed(1)},${y(point[1]).toFixed(1)}`).join(' ');
      svg.append(draw('polyline', { class: 'line', points: path, stroke: one.colour }));
      if (one.points.length) {
        const [end, value] = one.points.at(-1);
        svg.append(draw('circle', { cx: x(end), cy: y(value), r: 2.5, fill: one.colour }));
      }
    });
    const told = draw('g', {});
    svg.append(told);
    svg.addEventListener('pointerleave', () => told.replaceChildren());
    svg.addEventListener('pointermove', event => {
      const box = svg.getBoundingClientRect();
      const at = [event.clientX - box.left, event.clientY - box.top].map(place => place * width / box.width);
      let nearest = null, distance = Infinity;
      for (const one of lines) for (const point of one.points) {
        const far = Math.hypot(x(point[0]) - at[0], (y(point[1]) - at[1]) / 4);
        if (far < distance) { distance = far; nearest = { one, point }; }
      }
      const [place, value] = nearest.point, end = x(place) > width / 2;
      told.replaceChildren(
        draw('line', { class: 'cross', x1: x(place), x2: x(place), y1: top, y2: height - bottom }),
        draw('circle', { cx: x(place), cy: y(value), r: 4, fill: nearest.one.colour }),
        draw('text', { class: 'told', x: x(place) + (end ? -8 : 8), y: top + 10, 'text-anchor': end ? 'end' : 'start' },
          `${lines.length > 1 ? nearest.one.name + ': ' : ''}${number(value, 4)} at update ${exactly(place)}`));
    });
    box.replaceChildren(svg);
  }

  // --- several runs --------------------------------------------------------------------------------------

  function compare(runs) {
    find('compare').hidden = runs.length < 2;
    if (runs.length < 2) return;
    chart(find('all-scores'), runs.map((run, place) => ({ name: nameOf(run), points: run.scores, colour: colour(place) })));
    const has = { bytes: runs.some(run => known(run.upload)), epsilon: runs.some(run => known(run.epsilon)) };
    const heads = ['run', 'state', 'updates', 'score', 'left', 'per s', 'staleness', 'training', 'failures',
      ...(has.bytes ? ['up', 'down'] : []), ...(has.epsilon ? ['ε'] : [])];
    const rows = runs.map((run, place) => {
      const key = make('span', { class: 'key' });
      key.style.background = colour(place);
      const button = make('button', { class: 'run', type: 'button', title: run.place }, nameOf(run));
      button.addEventListener('click', () => { chosen = run.place; look(); });
      const current = run.place === state.chosen?.place ? { 'aria-current': 'true' } : {};
      return make('tr', current, make('th', { scope: 'row' }, key, button), make('td', {}, badge(run.state)),
        make('td', {}, `${exactly(run.done)}/${exactly(run.total)}`, bar(run)), ...[score(run.score), duration(run.left),
          number(run.rate), number(run.staleness, 2), exactly(run.training), exactly(failuresOf(run)),
          ...(has.bytes ? [bytes(run.upload), bytes(run.download)] : []),
          ...(has.epsilon ? [number(run.epsilon)] : [])].map(words => make('td', {}, words)));
    });
    table(find('runs'), heads, rows);
  }
  function table(place, heads, rows) {
    const scrolled = place.parentElement.scrollLeft;
    place.replaceChildren(make('thead', {}, make('tr', {}, ...heads.map(head =>
      make('th', { scope: 'col', ...(head === 'last problem' ? { class: 'words-head' } : {}) }, head)))),
      make('tbody', {}, ...rows));
    place.parentElement.scrollLeft = scrolled;
  }

  // --- one run -------------------------------------------------------------------------------------------

  function cards(run) {
    const kinds = ['failed', 'rejected', 'dropped'].filter(kind => run[kind]).map(kind => `${run[kind]} ${kind}`);
    const all = [
      ['updates', `${exactly(run.done)}`, `of ${exactly(run.total)}`, bar(run)],
      [run.metric || 'score', score(run.score), known(run.target) ? `target ${run.target}` : ''],
      ['time left', run.state === 'running' ? duration(run.left) : run.state],
      ['throughput', number(run.rate), 'updates/s'],
      ['staleness', number(run.staleness, 2), 'versions'],
      ['training now', exactly(run.training), `of ${exactly(run.clients)} clients`],
      ['failures', exactly(failuresOf(run)), kinds.join(', ')],
      ['rests', exactly(run.rests)],
    ];
    if (known(run.upload)) all.push(['uploads', bytes(run.upload)], ['downloads', bytes(run.download)]);
    if (known(run.epsilon)) all.push(['ε at most', number(run.epsilon)]);
    if (run.controls) all.push(['control', exactly(run.controls), 'requests']);
    find('cards').replaceChildren(...all.map(([name, value, note, more]) =>
      make('div', {}, make('dt', {}, name), make('dd', {}, value, make('small', {}, note ?? '')), more ?? '')));
  }
  function activity(client, run) {
    if (client.is_excluded) return ['excluded', 'excluded'];
    if (client.is_retired) return ['retired', 'budget spent'];
    if (!client.is_present) return ['left', 'away'];
    if (client.rests_for > 0) return ['resting', `resting ${duration(client.rests_for)}`];
    if (known(client.sent)) {
      const since = Math.max(0, state.chosen.now - client.sent);
      return ['training', state.chosen.is_real ? `training ${duration(since)}` : 'training'];
    }
    return ['idle', ['running', 'paused'].includes(run.state) ? 'idle' : '–'];
  }
  function clients(run, details) {
    const rows = details.clients, has = { bytes: known(run.upload), epsilon: known(run.epsilon), node: details.is_real };
    const troubles = ['failed', 'rejected', 'dropped', 'rests'].filter(kind => rows.some(client => client[kind]));
    const isTimed = rows.some(client => client.train_seconds), isTroubled = rows.some(client => client.reason);
    const heads = ['client', 'now', 'updates', ...(has.epsilon ? ['ε'] : []), ...troubles, 'staleness',
      ...(isTimed ? ['last job'] : []), ...(has.bytes ? ['up', 'down'] : []), ...(isTroubled ? ['last problem'] : [])];
    table(find('clients'), heads, rows.map(client => {
      const [kind, words] = activity(client, run);
      const name = client.name ? `${client.client} ${client.name}` : `${client.client}`;
      const said = [exactly(client.updates), ...(has.epsilon ? [number(client.epsilon)] : []),
        ...troubles.map(trouble => exactly(client[trouble])), client.updates ? number(client.staleness, 2) : '–',
        ...(isTimed ? [client.train_seconds ? `${number(client.train_seconds, 2)} s` : '–'] : []),
        ...(has.bytes ? [bytes(client.upload_bytes), bytes(client.download_bytes)] : [])];
      return make('tr', {}, make('th', { scope: 'row', ...(has.node && client.node ? { title: `node ${client.node}` } : {}) }, name),
        make('td', { class: kind }, words), ...said.map(text => make('td', {}, text)),
        ...(isTroubled ? [make('td', { class: 'words' }, client.reason)] : []));
    }));
    find('more').hidden = !details.more_clients;
    find('more').textContent = `and ${exactly(details.more_clients)} more clients without a problem`;
  }
  function events(details) {
    find('events').replaceChildren(...details.events.map(event => make('li', {},
      make('time', {}, details.is_real ? duration(event.time) : number(event.time)), make('span', {}, event.text))));
    if (!details.events.length) find('events').append(make('li', {}, make('span', { class: 'quiet' }, 'none yet')));
  }
  function one(run, details) {
    find('run').hidden = !run;
    if (!run) return;
    find('run-name').replaceChildren(`${run.scenario ? run.scenario + ': ' : ''}${nameOf(run)} `, badge(run.state));
    cards(run);
    find('score-name').textContent = run.metric || 'Score';
    const line = points => [{ name: nameOf(run), points, colour: colour(0) }];
    chart(find('scores'), line(details.scores), run.target);
    chart(find('staleness'), line(details.staleness));
    chart(find('loss'), line(details.loss), null, known(run.epsilon) ? 'withheld by the clients' : undefined);
    clients(run, details);
    events(details);
  }

  // --- news ----------------------------------------------------------------------------------------------

  function show() {
    find('title').textContent = state.title;
    document.title = `${state.title} · asyncmanifold watch`;
    compare(state.runs);
    one(state.runs.find(run => run.place === state.chosen?.place), state.chosen);
    document.body.dataset.drawn = 'true';
  }
  function news() {
    const place = find('news'), isLost = heard && Date.now() - heard > 3 * IDLE;
    place.classList.toggle('problem', Boolean(isLost));
    if (isLost) place.textContent = 'no answer: does asyncmanifold watch still run?';
    else if (state && !state.runs.length) place.textContent = 'no run here yet';
    else if (state) {
      const run = state.runs.find(one => one.place === state.chosen?.place) ?? state.runs[0];
      place.textContent = ['finished', 'stopped'].includes(run.state)
        ? `ended: ${run.ended ?? run.state}` : `last written ${duration(run.age + (Date.now() - heard) / 1000)} ago`;
    }
  }
  let timer;
  async function look() {
    clearTimeout(timer);
    try {
      const answer = await fetch('state' + (chosen === null ? '' : `?run=${encodeURIComponent(chosen)}`));
      const text = await answer.text();
      heard = Date.now();
      state = JSON.parse(text);
      const bare = JSON.stringify(state, (key, value) => key === 'age' ? undefined : value);
      if (bare !== shown) { shown = bare; show(); }
    } catch { /* the line at the top says how old the news is */ }
    news();
    const isBusy = state?.runs.some(run => ['running', 'paused'].includes(run.state)) ?? true;
    timer = setTimeout(look, document.hidden || !isBusy ? IDLE : BUSY);
  }
  setInterval(news, 1000);
  document.addEventListener('visibilitychange', () => { if (!document.hidden) look(); });
  addEventListener('resize', () => { if (state) show(); });
  look();
})();
