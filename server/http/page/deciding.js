// The tokens that an answer is read from: those with the most weight in the last layer.
import {gridOf, kindOf} from "./ask.js";
import {edgesOf, spanOf} from "./graph.js";
import {byId, el, percent, plural, shown, styled, svg} from "./view.js";

const mostNamed = 5, mostShown = 1024;

// Each token of a sequence with its share of the weights of the sequence's last layer, mean over heads, in the rows
// that the answer is read from.
function sharesOf(model, prediction, graph, words, layer) {
  const {begin, length} = spanOf(model, graph, layer), shares = Array(length).fill(0);
  const valid = [...Array(length).keys()].filter((i) => !words[begin + i]?.pad);
  const masked = (prediction.tokens || []).map((token) => token.position || 0);
  const rows = {first: valid.slice(0, 1), last: valid.slice(-1), mean: valid}[model.pooling] ||
      (model.task === "fill-mask" ? masked : valid);
  const heads = graph.layers[layer].heads, read = new Set(rows);
  for (const {from, to, weight} of heads.flatMap(edgesOf)) {
    if (read.has(from)) shares[to] += weight / (heads.length * read.size);
  }
  return shares.map((share, i) => ({share, text: words[begin + i]?.text ?? `#${i}`}));
}

// Where an answer is read from, by ModelInfo.pooling.
const readFrom = {
  first: "in the row of the first token, where the answer is read",
  last: "in the row of the last token, where the answer is read",
  mean: "and over all rows, where the answer is read",
};
const readFromEach = {"fill-mask": "in the rows of the masks, where the answers are read"};
const titles = {image: "patches", features: "rows", ids: "tokens", text: "words"};

// An image, where the patches of small shares are faint.
function patches(source, shares, {columns, rows}) {
  const own = shares.slice(shares.length - columns * rows), most = Math.max(...own, 1e-9);
  const cells = own.map((share, i) => svg("rect",
    {x: i % columns, y: Math.floor(i / columns), width: 1, height: 1, opacity: (0.8 * (1 - share / most)).toFixed(3)}));
  const box = {viewBox: `0 0 ${columns} ${rows}`, preserveAspectRatio: "none", "aria-hidden": "true"};
  const picture = el("div", {class: "image"}, el("img", {src: source, alt: "The image"}), svg("svg", box, ...cells));
  return styled(picture, "--shape", columns / rows);
}

function shaded(model, own) {
  const most = Math.max(...own.map(({share}) => share), 1e-9), isText = kindOf(model) === "text";
  const spans = own.flatMap(({share, text}, i) => {
    const title = `${shown(text)}: ${percent(share)}`;
    const token = el("span", {class: "token", title}, text.replace(/^ (?=\S)/, ""));
    styled(token, "--shade", (share / most).toFixed(3));
    return [/^ \S/.test(text) && i > 0 ? " " : "", token, isText ? "" : " "];
  });
  return el("p", {class: `text weighed${isText ? "" : " apart"}`}, ...spans);
}

export function showWords(model, prediction, graph, words, image) {
  const section = byId("words");
  section.hidden = !graph || graph.layers.length === 0;
  if (section.hidden) return;
  // Both sequences of a pair count; of windows, which come one after another, the last one has the answer.
  const every = Number(model.layers), all = graph.layers.length;
  const lasts = Array.from({length: all / every}, (_, i) => every * (i + 1) - 1);
  const read = model.task === "causal-lm" ? lasts.slice(-1) : lasts;
  const sequences = read.map((layer) => sharesOf(model, prediction, graph, words, layer)), own = sequences.flat();
  const edges = read.flatMap((layer) => graph.layers[layer].heads.flatMap(edgesOf)).length;
  const where = readFrom[model.pooling] || readFromEach[model.task] || "and over all rows, each of which has an answer";
  const about = edges === 0 ? "The last layer has no edges here." :
    `Share of attention in the last layer, mean over its heads ${where}. That layer has ${plural(edges, "edge")}.`;
  const top = [...own].sort((a, b) => b.share - a.share).slice(0, mostNamed).filter(({share}) => share > 0);
  const names = top.map(({share, text}) => el("li", {}, el("b", {}, shown(text)), ` ${percent(share)}`));
  const grid = image && gridOf(model), drawn = edges > 0 && own.length <= mostShown;
  const pictures = grid ? [patches(image, own.map(({share}) => share), grid)] :
    drawn ? sequences.map((sequence) => shaded(model, sequence)) : [];
  section.replaceChildren(el("h2", {id: "words_title"}, `Deciding ${titles[kindOf(model)]}`), ...pictures,
    el("p", {class: "note"}, about), el("ol", {class: "strongest"}, ...names));
}
