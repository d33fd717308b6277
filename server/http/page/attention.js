// Which tokens attend to which: a graph with its weights, or how often each key is attended to.
import {edgesOf, spanOf} from "./graph.js";
import {byId, count, digits, el, percent, plural, shown, styled, svg} from "./view.js";

const mostLines = 64, bins = 64, smallBins = 24, shades = 8, mostNamed = 5;
const rowHeight = 22, letter = 8.5;  // pixels

let chosen = {layer: 0, head: 0, row: ""};  // stays while the model does
export const forget = () => {
  chosen = {layer: 0, head: 0, row: ""};
};

// A matrix of at most cells x cells squares, shaded by the weight of their edges: one path for each shade.
function matrix(head, positions, cells) {
  const side = Math.min(cells, positions), sums = new Map();
  let most = 0;
  for (const {from, to, weight} of edgesOf(head)) {
    const at = Math.floor(from * side / positions) * side + Math.floor(to * side / positions);
    const sum = (sums.get(at) || 0) + weight;
    sums.set(at, sum);
    most = Math.max(most, sum);
  }
  const paths = Array.from({length: shades}, () => "");
  for (const [at, sum] of sums) {
    paths[Math.max(0, Math.ceil(shades * sum / most) - 1)] += `M${at % side} ${Math.floor(at / side)}h1v1h-1z`;
  }
  return paths.map((d, i) => svg("path", {d, opacity: ((i + 1) / shades).toFixed(2)}));
}

// Queries on the left, keys on the right, a line for each edge.
function lines(head, words, width) {
  const names = words.map(({text}) => shown(text)), longest = Math.max(8, ...names.map((name) => name.length));
  const column = Math.min(letter * longest + 16, width * 0.36), letters = Math.floor((column - 8) / letter);
  const middle = width / 2, right = width - column, height = rowHeight * (words.length + 1);
  const y = (i) => rowHeight * (i + 1.5);
  const drawn = edgesOf(head).filter(({from}) => chosen.row === "" || from === Number(chosen.row));
  const most = Math.max(...drawn.map(({weight}) => weight), 1e-9);
  const line = ({from, to, weight}) => svg("path", {
    d: `M${column} ${y(from)}C${middle} ${y(from)} ${middle} ${y(to)} ${right} ${y(to)}`,
    opacity: (0.12 + 0.88 * weight / most).toFixed(2),
  });
  const label = (x, anchor) => (name, i) => svg("text", {x, y: y(i) + 4.5, "text-anchor": anchor},
    name.length > letters ? `${name.slice(0, letters - 1)}…` : name);
  return svg("svg", {class: "lines", viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true"},
    ...drawn.sort((a, b) => a.weight - b.weight).map(line),
    svg("text", {class: "end", x: column - 8, y: 14, "text-anchor": "end"}, "token"),
    svg("text", {class: "end", x: right + 8, y: 14}, "attends to"),
    ...names.map(label(column - 8, "end")), ...names.map(label(right + 8, "start")));
}

function degreeBars(degrees) {
  const side = Math.min(bins * 2, degrees.length), sums = Array(side).fill(0);
  degrees.forEach((degree, i) => { sums[Math.floor(i * side / degrees.length)] += degree; });
  const most = Math.max(...sums, 1), box = `0 0 ${side} 40`;
  return svg("svg", {class: "degrees", viewBox: box, preserveAspectRatio: "none", "aria-hidden": "true"},
    svg("path", {d: sums.map((sum, i) => `M${i + 0.5} 40v${(-40 * sum / most).toFixed(2)}`).join("")}));
}

function strongest(edges, words) {
  const most = [...edges].sort((a, b) => b.weight - a.weight).slice(0, mostNamed), name = (i) => shown(words[i].text);
  return el("ol", {class: "strongest"}, ...most.map(({from, to, weight}) =>
    el("li", {}, el("b", {}, name(from)), " attends to ", el("b", {}, name(to)), ` by ${percent(weight)}`)));
}

// A radio button for each layer and head, with a small picture of it.
function chooser(pictures, heads, names, redraw) {
  const group = el("div", {class: "heads", role: "radiogroup", "aria-label": "Layer and head"});
  styled(group, "--heads", heads);
  pictures.forEach((picture, i) => {
    const layer = Math.floor(i / heads), head = i % heads, name = `${names(layer)}, head ${head + 1}`;
    const checked = layer === chosen.layer && head === chosen.head;
    const radio = el("input", {type: "radio", name: "head", class: "unseen", "aria-label": name, checked});
    radio.addEventListener("change", () => {
      chosen = {...chosen, layer, head};
      redraw();
    });
    group.append(el("label", {title: name}, radio, picture));
  });
  return group;
}

const layerName = (model, layer) => {
  const all = Number(model.layers), part = Math.floor(layer / all);
  return `${part > 0 ? `Sequence ${part + 1}, layer` : "Layer"} ${layer % all + 1}`;
};

// Shows these parts; the focus stays where it was.
function show(...parts) {
  const section = byId("attention"), had = document.activeElement, inside = section.contains(had);
  section.replaceChildren(...parts);
  if (inside) section.querySelector(had.id === "row" ? "#row" : "input:checked")?.focus();
}

function rowChooser(words, redraw) {
  const option = ({text}, i) =>
    el("option", {value: i, selected: chosen.row === String(i)}, `${i + 1}: ${shown(text)}`);
  const row = el("select", {id: "row"}, el("option", {value: ""}, "every token"), ...words.map(option));
  row.addEventListener("change", () => {
    chosen.row = row.value;
    redraw();
  });
  return el("div", {class: "line"}, el("label", {"for": "row"}, "Show the edges of"), row);
}

function square(head, positions, cells, className) {
  const side = Math.min(cells, positions);
  return svg("svg", {class: className, viewBox: `0 0 ${side} ${side}`, "aria-hidden": "true"},
    ...matrix(head, positions, cells));
}

function showGraph(model, graph, words, note) {
  const redraw = () => showGraph(model, graph, words, note), nameOf = (layer) => layerName(model, layer);
  const head = graph.layers[chosen.layer].heads[chosen.head], edges = edgesOf(head);
  const {begin, length} = spanOf(model, graph, chosen.layer), own = words.slice(begin, begin + length);
  const pictures = graph.layers.flatMap((layer) => layer.heads.map(
    (each) => square(each, each.rowOffsets.length - 1, smallBins, "matrix")));
  const parts = [
    el("h2", {id: "attention_title"}, "Who attends to whom"),
    chooser(pictures, graph.layers[0].heads.length, nameOf, redraw),
    el("p", {class: "caption"}, el("b", {}, `${nameOf(chosen.layer)}, head ${chosen.head + 1}`),
      `: ${plural(edges.length, "edge")} of ${count(length * length)} pairs${note}. `,
      "Above, a row is a layer and a column a head."),
  ];
  if (length <= mostLines) {
    const width = Math.max(260, Math.min(760, byId("attention").clientWidth - 40));
    parts.push(rowChooser(own, redraw), lines(head, own, width));
  } else {
    const each = digits(length / Math.min(bins, length));
    parts.push(square(head, length, bins, "matrix large"), el("p", {class: "note"},
      "Rows are the tokens that look, columns those that are looked at, from the first to the last; a square stands " +
      `for ${each} by ${each} tokens, stronger with more weight.`));
  }
  if (edges.some(({weight}) => weight > 0)) parts.push(el("h3", {}, "Strongest"), strongest(edges, own));
  show(...parts);
}

function showDegrees(model, layers, words, why) {
  const redraw = () => showDegrees(model, layers, words, why), nameOf = (layer) => layerName(model, layer);
  const {keyDegrees = [], edges = 0} = layers[chosen.layer].heads[chosen.head];
  const top = keyDegrees.map((degree, i) => [degree, i]).sort((a, b) => b[0] - a[0]).slice(0, mostNamed);
  const later = chosen.layer >= Number(model.layers);  // of the second sequence
  const name = (i) => shown(words[later ? words.length - keyDegrees.length + i : i]?.text || `#${i}`);
  const pictures = layers.flatMap((layer) => layer.heads.map((head) => degreeBars(head.keyDegrees || [0])));
  show(el("h2", {id: "attention_title"}, "Who is attended to"),
    chooser(pictures, layers[0].heads.length, nameOf, redraw),
    el("p", {class: "caption"}, el("b", {}, `${nameOf(chosen.layer)}, head ${chosen.head + 1}`),
      `: ${plural(edges, "edge")}`),
    degreeBars(keyDegrees),
    el("p", {class: "note"}, `How many tokens attend to each, from the first to the last. ${why}`),
    el("ol", {class: "strongest"}, ...top.map(([degree, i]) =>
      el("li", {}, el("b", {}, name(i)), ` by ${plural(degree, "token")}`))));
}

// `graph`: null where there is none, and `why` says why; `note` is said of the graph.
export function showAttention(model, prediction, graph, words, {note = "", why = ""}) {
  const layers = graph?.layers || prediction.edges?.layers || [];
  byId("attention").hidden = layers.length === 0;
  if (layers.length === 0) return;
  if (chosen.layer >= layers.length || chosen.head >= layers[0].heads.length) forget();
  graph ? showGraph(model, graph, words, note) : showDegrees(model, layers, words, why);
}
