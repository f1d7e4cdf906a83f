// Blocks of starling.tui.web.blocks -> elements. Texts are set as text, never as markup: peers wrote some of them.

const SVG = "http://www.w3.org/2000/svg";
const LABELLED = 40; // members of a drawing whose names have room

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function shape(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function cell([text, role]) {
  return element("span", { class: role }, text);
}

function words(block) {
  const list = element("dl");
  for (const [name, text] of block.rows) list.append(element("dt", {}, cell(name)), element("dd", {}, text));
  return list;
}

function text(block) {
  return element("pre", {}, block.text);
}

function table(block, linked) {
  const head = element("tr");
  for (const name of block.columns) {
    const sorted = block.sortable && name === block.sorted_by;
    const shown = sorted ? `${name} ${block.sign}` : name;
    const reverse = sorted && !block.title.endsWith(" reversed") ? "1" : "";
    head.append(element("th", {}, block.sortable ? element("a", { href: linked({ sort: name, reverse }) }, shown) : shown));
  }
  const body = element("tbody");
  for (const row of block.rows) {
    const line = element("tr", row.chosen ? { class: "chosen" } : {});
    row.cells.forEach((each, place) => {
      const leads = row.go !== "" && place === 0;
      const shown = leads ? element("a", { href: linked(Object.fromEntries(new URLSearchParams(row.go))) }, cell(each)) : cell(each);
      line.append(element("td", {}, shown));
    });
    body.append(line);
  }
  if (!block.rows.length) body.append(element("tr", {}, element("td", { class: "dim" }, "–  nothing to show")));
  return element("div", { class: "scroll" }, element("table", {}, element("thead", {}, head), body));
}

function curve(block) {
  if (!block.points.length) return element("p", { class: "dim" }, "–  not known yet");
  const [left, right, top, bottom] = [58, 348, 10, 150];
  const across = (at) => left + at * (right - left);
  const up = (at) => bottom - at * (bottom - top);
  const picture = shape("svg", { viewBox: "0 0 360 172", role: "img", "aria-label": block.title });
  picture.append(shape("path", { class: "axis", d: `M${left} ${top}V${bottom}H${right}` }));
  for (const tick of block.y_ticks) {
    picture.append(shape("text", { x: left - 6, y: up(tick.at) + 4, "text-anchor": "end" }, tick.text));
  }
  for (const tick of block.x_ticks) {
    picture.append(shape("text", { x: across(tick.at), y: bottom + 16, "text-anchor": "middle" }, tick.text));
  }
  const points = block.points.map(([x, y]) => `${across(x).toFixed(1)},${up(y).toFixed(1)}`);
  if (points.length > 1) {
    picture.append(shape("polyline", { class: "drawn", points: points.join(" ") }));
  } else {
    const [x, y] = points[0].split(",");
    picture.append(shape("circle", { class: "drawn point", cx: x, cy: y, r: 3 }));
  }
  return picture;
}

function graph(block) {
  if (!block.members.length) return element("p", { class: "dim" }, "–  no member known yet");
  const [width, height, x, y] = [640, 400, 190, 170];
  const places = block.members.map((_, number) => {
    const angle = (2 * Math.PI * number) / block.members.length;
    return [Math.sin(angle), -Math.cos(angle)];
  });
  const at = ([sine, cosine], by = 1) => [(width / 2 + by * x * sine).toFixed(1), (height / 2 + by * y * cosine).toFixed(1)];
  const picture = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": block.title });
  const line = (kind, [one, other]) => {
    const [[x1, y1], [x2, y2]] = [at(places[one]), at(places[other])];
    picture.append(shape("line", { class: kind, x1, y1, x2, y2 }));
  };
  for (const pair of block.edges) line("edge", pair);
  for (const pair of block.links) line(pair.includes(block.own) ? "link mine" : "link", pair);
  block.members.forEach(([name, role], number) => {
    const place = places[number];
    const [cx, cy] = at(place);
    const dot = shape("circle", { class: role, cx, cy, r: number === block.own ? 6 : 4, fill: "currentColor" });
    dot.append(shape("title", {}, name));
    picture.append(dot);
    if (block.members.length > LABELLED) return;
    const [tx, ty] = at(place, 1.07);
    const anchor = Math.abs(place[0]) < 0.15 ? "middle" : place[0] > 0 ? "start" : "end";
    const shown = number === block.own ? `[${name}]` : name;
    picture.append(shape("text", { class: role, x: tx, y: Number(ty) + 4, "text-anchor": anchor }, shown));
  });
  return picture;
}

const KINDS = { words, text, table, curve, graph };

export function draw(block, linked) {
  const box = element("section", { class: block.kind });
  box.append(element("h2", {}, block.title), KINDS[block.kind](block, linked));
  if (block.note) box.append(element("p", { class: "note" }, block.note));
  return box;
}
