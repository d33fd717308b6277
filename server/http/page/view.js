// Elements, and numbers as texts.

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

export const byId = (id) => document.getElementById(id);
export const el = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);
export const svg = (name, attributes = {}, ...children) =>
    fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);

// Sets a variable of the style sheet on an element.
export function styled(node, name, value) {
  node.style.setProperty(name, value);
  return node;
}

export const count = (number) => Math.round(Number(number)).toLocaleString("en");

// Three digits: 98.3, 0.0512.
export function digits(number) {
  if (!Number.isFinite(number)) return String(number);
  if (number === 0) return "0";
  return Math.abs(number) >= 100 ? count(number) : String(Number(number.toPrecision(3)));
}

export function percent(share) {
  const bound = share > 0.999 && share < 1 ? "> 99.9" : share > 0 && share < 1e-4 ? "< 0.01" : digits(100 * share);
  return `${bound}\u202f%`;
}
export const nats = (entropy) => `${entropy > 0 && entropy < 1e-3 ? "< 0.001" : digits(entropy)} nats`;
export const plural = (number, noun) => `${count(number)} ${noun}${Number(number) === 1 ? "" : "s"}`;

export const milliseconds = (microseconds) => `${digits(Number(microseconds || 0) / 1000)}\u202fms`;

// Whole characters of pieces of bytes, in base64: a piece that ends inside of one leaves it to the next.
export function texts(pieces) {
  const decoder = new TextDecoder();
  return pieces.map((piece) => decoder.decode(bytes(piece || ""), {stream: true}));
}

export const bytes = (base64) => Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));

// White space that can be seen.
export const shown = (text) =>
  text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replace(/^ +$/, "␣").trim() || "␣";
export const named = (text) => ({"␣": "space", "⏎": "line end"})[shown(text)] || shown(text);
